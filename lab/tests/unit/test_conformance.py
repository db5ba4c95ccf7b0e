"""The conformance suite: it passes what is exact, and sees what is not."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.refusals import refuses
from typer.testing import CliRunner

from adjudge.errors import ConfigError
from adjudge_lab.cli.conformance import conformance
from adjudge_lab.conformance import reference
from adjudge_lab.conformance.checks import CheckEnd, TrainerVerdict, run_conformance
from adjudge_lab.conformance.driver import Batch, StepResult, Way
from adjudge_lab.conformance.drivers import build_driver
from adjudge_lab.conformance.reference import ReferenceTrainer, ZeroFillTrainer
from adjudge_lab.conformance.source import TrainerSource
from adjudge_lab.conformance.testing import conformance_tests


def test_an_exact_trainer_passes_every_check() -> None:
    found = run_conformance(ReferenceTrainer())
    assert [one for one in found.findings if one.outcome is not CheckEnd.PASSES] == []
    assert found.verdict is TrainerVerdict.EXACT


def test_filling_in_a_number_is_seen() -> None:
    found = run_conformance(ZeroFillTrainer())
    for setting in ReferenceTrainer.settings:
        assert found.judge_way("None", setting) is TrainerVerdict.WRONG


class TwoWays(ReferenceTrainer):
    """``None`` is exact; another way fills in 0."""

    def __init__(self, *ways: Way) -> None:
        self.ways = ways

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        trainer = ReferenceTrainer() if way == "None" else ZeroFillTrainer()
        return trainer.run_step(batch, way, setting)


def test_one_exact_way_is_enough() -> None:
    found = run_conformance(TwoWays(Way("zero"), Way("None")))
    assert (found.best_way, found.verdict) == ("None", TrainerVerdict.EXACT)
    assert found.judge_way("zero") is TrainerVerdict.WRONG


@pytest.mark.parametrize("empty", ["left out", "zeros", "raises"])
@pytest.mark.parametrize("leak", [0.0, 0.5])
def test_a_group_that_is_dropped_teaches_nothing_false(empty: str, leak: float) -> None:
    class Dropping(ReferenceTrainer):
        def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
            gone = [None in group for group in batch.groups]
            if empty == "raises" and all(gone):
                raise ValueError("the batch is empty")
            groups = [[0.0] * len(group) if None in group else group for group in batch.groups]
            made = super().run_step(
                msgspec.structs.replace(batch, groups=tuple(map(tuple, groups))), way, setting
            )
            left = 0.0 if empty == "zeros" else None
            rows = [
                [left if leak == 0.0 or reward is not None else leak for reward in group]
                if None in group
                else row
                for group, row in zip(batch.groups, made.advantages, strict=True)
            ]
            return StepResult(advantages=rows)

    found = run_conformance(Dropping())
    assert found.verdict is (TrainerVerdict.WRONG if leak else TrainerVerdict.DROPS)


def test_two_functions_have_a_verdict_of_their_own() -> None:
    found = run_conformance(TwoWays(Way("None"), Way("None of one of two functions", functions=2)))
    assert (found.best_way, found.verdict) == ("None", TrainerVerdict.EXACT)
    assert found.beside_another == ["None of one of two functions"]
    assert found.judge_way(found.beside_another[0]) is TrainerVerdict.WRONG
    outages = [one.outcome for one in found.findings if one.check == "outage"]
    assert outages == [CheckEnd.PASSES] * 3 + [CheckEnd.UNKNOWN] * 3


def test_a_way_that_the_trainer_names_comes_before_an_undocumented_stop() -> None:
    class Named(ReferenceTrainer):
        ways: tuple[Way, ...] = (Way("None", documented=False), Way("mask"))

        def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
            if way == "None" and any(None in group for group in batch.groups):
                raise TypeError("must be real number, not NoneType")
            return ZeroFillTrainer().run_step(batch, way, setting)

    found = run_conformance(Named())
    assert (found.best_way, found.verdict) == ("mask", TrainerVerdict.WRONG)


def test_nan_that_reaches_other_groups_is_seen() -> None:
    class Poisoned(ReferenceTrainer):
        def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
            made = super().run_step(batch, way, setting)
            if any(r is not None and math.isnan(r) for group in batch.groups for r in group):
                rows: list[list[float | None]] = [[math.nan] * len(g) for g in made.advantages]
                return StepResult(advantages=rows)
            return made

    found = run_conformance(Poisoned())
    assert {one.outcome for one in found.findings if one.check == "NaN"} == {CheckEnd.FAILS}


PRESENCE = {"present": "[True] * len(values)", "mask": "[True] * len(group)", "there": "True"}


def mutants() -> Iterator[tuple[str, ast.Module]]:
    """The reference with one defect: each place where it says who has a reward, put wrong."""
    text = Path(reference.__file__).read_text(encoding="utf-8")
    for number in range(10_000):
        tree = ast.parse(text)
        places = list(_defects(tree))
        if number >= len(places):
            return
        node, becomes = places[number]
        label = f"line {node.lineno}: {ast.unparse(node)} becomes {becomes}"
        new = ast.parse(becomes, mode="eval").body
        yield label, ast.fix_missing_locations(_Replace(node, new).visit(tree))


def _defects(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    trainer = next(node for node in tree.body if getattr(node, "name", "") == "ReferenceTrainer")
    for node in ast.walk(trainer):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in PRESENCE:
            yield node, PRESENCE[node.id]
            if node.id == "there":
                yield node, "not there"
        elif isinstance(node, ast.Name) and node.id == "count" and isinstance(node.ctx, ast.Load):
            yield node, "len(group)"
        elif isinstance(node, ast.Attribute) and node.attr == "isfinite":
            yield node, "(lambda value: True)"
        elif isinstance(node, ast.IfExp) and ast.unparse(node.orelse) == "0.0":
            yield node.orelse, "-0.5"
            yield node.orelse, "float('nan')"
        elif isinstance(node, ast.Compare) and ast.unparse(node) == "count < 2":
            yield node, "count < 1"
            yield node, "count < 3"
        elif isinstance(node, ast.Compare) and "len({" in ast.unparse(node):
            yield node, ast.unparse(node).replace("> 1", "> 0")
            yield node, ast.unparse(node).replace("> 1", "> 2")


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)


def test_defects_put_into_the_reference_are_seen() -> None:
    survivors, count = [], 0
    for label, tree in mutants():
        count += 1
        scope: dict[str, Any] = {"__name__": "mutant"}
        exec(compile(tree, label, "exec"), scope)  # our own file
        try:
            found = run_conformance(scope["ReferenceTrainer"]())
        except ConfigError:
            continue  # it does not even work with nothing missing
        if found.verdict is TrainerVerdict.EXACT:
            survivors.append(label)
    assert count > 30
    assert len(survivors) <= 0.05 * count, survivors


def test_the_command_shows_a_table_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    app = typer.Typer()
    app.command()(conformance)
    good = CliRunner().invoke(app, ["reference"])
    assert good.exit_code == 0
    assert "None is exact" in good.output
    bad = CliRunner().invoke(app, ["zero-fill", "--json"])
    assert bad.exit_code == 1
    said = json.loads(bad.output)
    assert (said["verdict"], said["ways"]) == ("wrong", {"None": "wrong"})
    assert len(said["findings"]) == 30


def test_an_unknown_trainer_and_a_folder_without_it_are_named(tmp_path: Path) -> None:
    with refuses("trainer"):
        build_driver("trll")
    with pytest.raises(ConfigError, match=f"{tmp_path}: has no folder trl"):
        TrainerSource("trl", "trl", tmp_path)
    with pytest.raises(ConfigError, match="pip download --no-deps no-such-trainer"):
        TrainerSource("no_such_trainer", "no-such-trainer")


class DriverOfAUser:
    """Built without arguments, and without a KL term."""

    name = version = decided_at = "own"
    ways = (Way("None"),)
    settings = ("centre",)
    batch_wide: frozenset[str] = frozenset()

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        return ReferenceTrainer().run_step(msgspec.structs.replace(batch, kl=0.0), way, "dr_grpo")


def test_a_driver_needs_no_argument_and_its_unread_kl_term_is_not_judged() -> None:
    driver = build_driver(f"{__name__}:DriverOfAUser")
    outcomes = {one.check: one.outcome for one in run_conformance(driver).findings}
    assert outcomes.pop("divergence") is CheckEnd.UNKNOWN
    assert set(outcomes.values()) == {CheckEnd.PASSES}


def test_a_trainers_own_text_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "core.py").write_text(
        "import a_stack_that_is_not_here\n"
        "def mean(values):\n    return sum(values) / len(values)\n"
        "class Trainer:\n"
        "    @property\n    def scale(self):\n        return self.size * 2\n"
        "    def step(self, rewards):\n"
        "        log = []\n"
        "        if rewards:\n            baseline = mean(rewards)\n"
        "            log.append(baseline)\n"
    )
    source = TrainerSource("toy", "toy", tmp_path)
    assert source.find_line("core.py", "baseline = mean") == "toy/core.py:11"
    scope: dict[str, Any] = {}
    source.load_names("core.py", ["mean", "Trainer.scale"], scope)
    assert scope["mean"]([1.0, 2.0]) == 1.5
    assert scope["scale"](type("Self", (), {"size": 3})) == 6
    found = source.load_statements("core.py", "Trainer.step", lambda text: text.startswith("base"))
    assert source.run_statements("core.py", found, {**scope, "rewards": [3.0]})["baseline"] == 3.0
    with pytest.raises(ConfigError, match="the trainer has no gone"):
        source.load_names("core.py", ["gone"], {})
    with pytest.raises(ConfigError, match="this version has its code elsewhere"):
        source.load_names("gone.py", ["x"], {})
    with pytest.raises(ConfigError, match="this version has its code elsewhere"):
        source.find_line("gone.py", "x")


def test_a_trainer_whose_libraries_are_not_here_is_an_error_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with refuses("trl"):
        build_driver("trl")


def run_pytest(folder: Path, text: str) -> str:
    """What pytest prints of the tests that ``text`` makes, in a process of its own."""
    (folder / "test_missing_rewards.py").write_text(text)
    options = ["-q", "-rf", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.stdout


CENTRED = """
from adjudge_lab.conformance.driver import StepResult, Way

class CentredTrainer:
    name, version, decided_at = "centred", "1", "train.py:1"
    ways, settings, batch_wide = (Way("None"),), ("centre",), frozenset()

    def run_step(self, batch, way, setting):
        advantages = []
        for group in batch.groups:
            filled = [reward or 0.0 for reward in group]
            mean = sum(filled) / len(filled)
            advantages.append([reward - mean for reward in filled])
        return StepResult(advantages=advantages)
"""


@pytest.mark.slow  # a run of pytest
def test_a_trainers_author_has_a_test_for_each_way_setting_and_check(tmp_path: Path) -> None:
    (tmp_path / "my_driver.py").write_text(CENTRED)
    said = run_pytest(
        tmp_path,
        "from adjudge_lab.conformance.testing import conformance_tests\n"
        "from my_driver import CentredTrainer\n"
        'test_exact = conformance_tests("reference")\n'
        'test_zero_fill = conformance_tests("zero-fill", known_failures=["advantages"])\n'
        'test_own = conformance_tests(CentredTrainer, known_failures=["advantages", "NaN"])\n'
        "def test_nothing_heavy_is_loaded_to_collect():\n"
        "    import sys\n"
        '    conformance_tests("trl")\n'
        '    assert not {"torch", "trl", "numpy"} & set(sys.modules)\n',
    )
    assert "20 failed, 42 passed, 4 skipped, 5 xfailed" in said
    assert "FAILED test_missing_rewards.py::test_zero_fill[None-grpo-normaliser]" in said
    assert "gradients of the others are" in said
    assert "[None-centre-missing answer] - Failed: [–, –, 1, –] gives [-0.25, -0.25, 0.7" in said


def test_a_way_and_a_check_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown 'NaN' \(allowed: None\)"):
        conformance_tests(ReferenceTrainer, ways=["NaN"])
    with pytest.raises(ValueError, match=r"unknown 'speed' \(allowed: advantages, missing answer"):
        conformance_tests("reference", known_failures=["speed"])
