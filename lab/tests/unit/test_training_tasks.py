"""From a run file to its task: where training begins, environments of one's own."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adjudge import RewardSpec
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge_lab.environments import DatasetTask, Episode, Policy
from adjudge_lab.rl.episodes import build_task, draw_training_seeds
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file

SPEC = RewardSpec.from_dict({"graders": [{"name": "none", "type": "length"}]})

OWN = '''
from adjudge_lab.environments import Step


class Doors:
    """Says what it was told."""

    name, instructions = "doors", "Open one."

    def __init__(self, count=2, *, names=()):
        if not isinstance(count, int):
            raise TypeError("count must be a number")
        self.count, self.names = count, names

    def reset(self, seed):
        return f"{self.count} {self.names!r} {seed}"

    def step(self, reply):
        return Step("", 1.0, True)


class Anything(Doors):
    """Takes what it gets."""

    def __init__(self, **given):
        super().__init__(given["count"])
'''


class Endless:
    name = "endless"
    size: int | None = None

    async def play(self, seed: int, policy: Policy) -> Episode:
        raise AssertionError("nobody plays here")


def rows(count: int) -> DatasetTask:
    return DatasetTask([{"prompt": str(row)} for row in range(count)], name="rows", pay=None)


@given(st.data(), st.integers(1, 20), st.integers(0, 5))
def test_every_row_comes_once_before_any_again_and_no_held_out_one(
    data: st.DataObject, size: int, seed: int
) -> None:
    held = data.draw(st.sets(st.integers(0, 25)))
    left = set(range(size)) - held
    seeds = draw_training_seeds(rows(size), held, seed)
    if not left:
        with pytest.raises(ConfigError, match=f"all {size} rows are held out"):
            next(seeds)
        return
    rounds = [[next(seeds) for _ in left] for _ in range(3)]
    assert all(set(one) == left for one in rounds)
    again = draw_training_seeds(rows(size), held, seed)
    assert [next(again) for _ in range(3 * len(left))] == [one for row in rounds for one in row]


def test_the_order_of_rows_is_the_seeds() -> None:
    first, second = (list(islice(draw_training_seeds(rows(50), [], seed), 100)) for seed in (0, 1))
    assert first != second
    assert first[:50] != first[50:] != sorted(first[50:])


def test_where_any_seed_goes_they_are_drawn_and_never_a_held_out_one() -> None:
    free = list(islice(draw_training_seeds(Endless(), [], 4), 200))
    assert len(set(free)) == 200
    held = free[::2]
    assert list(islice(draw_training_seeds(Endless(), held, 4), 100)) == free[1::2]
    assert min(free) >= 0


def run(folder: Path, name: str = "own_doors:Doors", **config: Any) -> RunFile:
    (folder / "own_doors.py").write_text(OWN)
    return resolve_run_file(
        {"model": {"base": "some/model"}, "rollout": {"env_name": name, "env_config": config}},
        folder=folder,
    )


def opening(task: Any) -> str:
    episode: Episode = run_blocking(task.play(5, lambda _: "x"))
    return str(episode.messages[1]["content"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_doors", raising=False)
    return tmp_path


def test_an_environment_of_ones_own_gets_its_settings(folder: Path) -> None:
    assert opening(build_task(run(folder), SPEC)) == "2 () 5"
    found = build_task(run(folder, count=3, names=["a"]), SPEC)
    assert opening(found) == "3 ('a',) 5"  # tables have lists
    assert found.name == "own_doors:Doors"
    assert opening(build_task(run(folder, "own_doors:Anything", count=7), SPEC)) == "7 () 5"


@pytest.mark.parametrize(
    ("name", "config", "complaint"),
    [
        ("own_doors:Doors", {"colour": 1}, "env_config.colour.*no such setting.*count, names"),
        ("own_doors:Doors", {"count": "x"}, "env_config.*count must be a number"),
        ("own_doors:Windows", {}, "rollout.env_name.*cannot be imported"),
        (
            "json:__name__",
            {},
            "rollout.env_name: must be a class with reset and step .*of type str",
        ),
        ("no_such_module:Doors", {}, "rollout.env_name.*cannot be imported"),
    ],
)
def test_what_an_environment_does_not_take_is_refused_at_once(
    folder: Path, name: str, config: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_task(run(folder, name, **config), SPEC)


def test_a_dataset_is_paid_by_its_grader(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    graders = [{"name": "right", "type": "answer"}]
    found = resolve_run_file(
        {
            "model": {"base": "some/model"},
            "graders": graders,
            "rollout": {"dataset": "questions.jsonl", "env_grader": "right"},
        },
        folder=tmp_path,
    )
    task = build_task(found, RewardSpec.from_dict({"graders": graders}))
    assert (task.name, task.size) == ("questions", 1)
    assert run_blocking(task.play(0, lambda _: "4")).rewards == [1.0]
    assert run_blocking(task.play(0, lambda _: "5")).rewards == [0.0]
