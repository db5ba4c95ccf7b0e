"""The file of a chain: stages, references, refusals, and what a dry run says."""

import json
from pathlib import Path
from typing import Any

import pytest
from lab.tests.unit.helpers.judge_cards import write_card
from tests.refusals import refuses
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.datasets.rows import Comparison
from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.llm.trained_judge_card import JudgeCard
from adjudge_lab.judge_training.chain import evaluation
from adjudge_lab.judge_training.chain.evaluation import (
    CapitalGold,
    _load_benchmark,
)
from adjudge_lab.judge_training.chain.file import ChainFile, EvaluateStage
from adjudge_lab.judge_training.chain.run import ChainFolder, chain_plan
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.synthetic import SyntheticSettings, synthetic_preferences

EXAMPLE = Path(__file__).parents[3] / "examples" / "judge_tiny.toml"
MADE = {"synthetic": {"n": 20}}
SFT = {"name": "sft", "judge": {"method": "sft", "data": MADE}}
JUDGE = {
    "name": "judge",
    "judge": {"method": "bradley_terry", "data": MADE, "model": {"path": "@sft"}},
}
CHECK: dict[str, Any] = {"name": "check", "evaluate": {"judge": "@judge", **MADE}}
POLICY = {
    "name": "policy",
    "run": {
        "model": {"base": "@sft"},
        "judge": {"folder": "@judge", "combine_mode": "replace"},
        "services": {"judge_url": "serve"},
    },
}


def chain(*stages: Any, environ: dict[str, str] | None = None, **more: Any) -> ChainFile:
    data = {"kind": "chain", "stages": list(stages), **more}
    return ChainFile.from_dict(data, where="c.toml", environ=environ or {})


def refused(*stages: Any) -> str:
    with pytest.raises(ConfigError) as found:
        chain(*stages)
    return str(found.value)


def changed(stage: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A stage whose table has other values."""
    (kind,) = (name for name in stage if name != "name")
    return {**stage, kind: {**stage[kind], **values}}


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([JUDGE], "c.toml: stages.judge: model.path: stage @sft does not exist"),
        ([JUDGE, SFT], "model.path: stage @sft comes later (before this one: none)"),
        ([SFT, changed(JUDGE, model={"path": "@stf"})], "did you mean 'sft'?"),
        ([SFT, JUDGE, CHECK, changed(CHECK, judge="@check")], "two stages of this name"),
        (
            [SFT, JUDGE, CHECK, changed({**CHECK, "name": "c2"}, judge="@check")],
            "stages.c2: judge: stage @check leaves an evaluation, no model, but this key takes a",
        ),
        (
            [SFT, changed(CHECK, judge="@sft")],
            "stage @sft leaves a model taught to answer, but this key",
        ),
        (
            [SFT, JUDGE, changed(POLICY, model={"base": "@judge"})],
            "stages.policy: model.base: stage @judge leaves a scalar judge, but this key takes",
        ),
        (
            [{"name": "x"}],
            "needs exactly one of [stages.judge], [stages.evaluate], [stages.run] (found none)",
        ),
        ([{**SFT, "name": "../x"}], "a stage's name"),
        ([{**SFT, "name": "config"}], "'config' is the chain's own"),
        ([SFT, changed(JUDGE, data={"train": ["@sft"]})], "data.train: stage @sft is a folder."),
        ([changed(SFT, optm={})], "c.toml: stages.sft: optm: unknown key; did you mean 'optim'?"),
        ([changed(SFT, data={})], "c.toml: stages.sft: data.train: is required"),
        ([SFT, JUDGE, {"name": "c", "evaluate": {"judge": "@judge"}}], "needs either files or"),
        (
            [SFT, JUDGE, changed(CHECK, synthetic={"n": 9, "ties": 0.5})],
            "stages.check: synthetic: preferences have neither ties nor positions",
        ),
        ([SFT, JUDGE, changed(POLICY, backend="verl")], "stages.policy: backend: must be 'trl'"),
    ],
)
def test_what_is_wrong_is_said_by_stage_and_key(stages: list[Any], said: str) -> None:
    assert said in refused(*stages)


def test_a_seed_is_added_to_each_stage_s(tmp_path: Path) -> None:
    seeded = changed(SFT, trainer={"seed": 3})
    sft, judge, check, policy = (
        chain(seeded, JUDGE, CHECK, POLICY).with_seed_offset(4).stages_in(tmp_path)
    )
    assert isinstance(sft.file, JudgeFile)
    assert isinstance(judge.file, JudgeFile)
    assert isinstance(policy.file, RunFile)
    assert (sft.file.trainer.seed, judge.file.trainer.seed) == (7, 4)
    assert policy.file.training.seed == 4
    assert isinstance(check.file, EvaluateStage)
    assert check.data == {**CHECK["evaluate"], "judge": check.data["judge"]}


def claimed(path: Path, made: ChainFile, source: Path) -> bool:
    folder = ChainFolder(path, made, source)
    folder.close()
    return folder.resumed


def test_what_another_run_left_where_a_stage_will_be_is_not_taken_for_it(tmp_path: Path) -> None:
    source, out = tmp_path / "c.toml", tmp_path / "runs"
    source.write_text("a = 1")
    (out / "sft").mkdir(parents=True)
    (out / "sft" / "summary.json").write_text("{}")
    for _ in range(2):  # nor when it is tried again
        with pytest.raises(RunFolderError, match=r"holds sft/summary\.json of another run"):
            claimed(out, chain(SFT), source)


def test_a_stage_s_file_says_what_the_chain_s_does(tmp_path: Path) -> None:
    source = tmp_path / "c.toml"
    source.write_text("a = 1")
    made = chain(SFT, JUDGE, POLICY)
    folder = ChainFolder(tmp_path / "out", made, source)
    _, judge, policy = made.stages_in(tmp_path / "out")
    read = JudgeFile.load(folder.stage_file(judge), environ={})
    assert read.model_dump() == judge.file.model_dump()
    assert load_run_file(folder.stage_file(policy)).model_dump() == policy.file.model_dump()
    folder.close()


def test_the_example_s_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_PATH", raising=False)
    found = chain_plan(ChainFile.load(EXAMPLE, environ={}), tmp_path / "out")
    assert [one["kind"] for one in found["stages"]] == [
        "judge", "judge", "evaluate", "evaluate", "run",
    ]  # fmt: skip
    arguments = ["train", str(EXAMPLE), "-o", str(tmp_path / "out"), "--dry-run"]
    said = CliRunner().invoke(command_line(), arguments)
    assert said.exit_code == 0, said.output
    assert "behind adjudge serve, builds on sft, judge" in said.output
    plain = CliRunner().invoke(command_line(), [*arguments, "--json"])
    assert json.loads(plain.output)["stages"] == json.loads(json.dumps(found["stages"]))
    assert not (tmp_path / "out").exists()


def test_a_chain_is_not_submitted_and_not_taken_for_something_else(tmp_path: Path) -> None:
    given = (
        (["--ray", "http://h:8265"], "--ray"),
        (["--type", "judge"], "--type"),
        (["--approximate"], "--approximate: works only for the training of a policy"),
    )
    for more, said in given:
        arguments = ["train", str(EXAMPLE), "-o", str(tmp_path / "out"), *more]
        found = CliRunner().invoke(command_line(), arguments)
        assert found.exit_code == 2
        assert said in found.output


def test_what_a_later_stage_needs_is_looked_for_before_the_first(tmp_path: Path) -> None:
    learns = changed(
        JUDGE, model={"path": "tiny"}, data={"train": ["@sft/made.jsonl", "x.jsonl", "hf:a/b"]}
    )
    asks = {"name": "ask", "evaluate": {"judge": "@judge", "files": ["@sft/y.jsonl", "y.jsonl"]}}
    other = {"name": "other", "evaluate": {"judge": "gone", **MADE}}
    made = ChainFile.from_dict(
        {"stages": [SFT, learns, asks, other]}, where="c.toml", folder=tmp_path, environ={}
    )
    sft, *lacking = made.stages_in(tmp_path / "out")
    evaluation.check_stage_inputs(sft, tmp_path / "out")
    for stage, name in zip(lacking, ("x.jsonl", "y.jsonl", "gone/judge.json"), strict=True):
        with pytest.raises(
            ConfigError, match=f"stages.{stage.name}: .*/{name}: there is no such file"
        ):
            evaluation.check_stage_inputs(stage, tmp_path / "out")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        evaluation.check_stage_inputs(stage, tmp_path / "out")


def test_pairs_that_the_judge_was_trained_on_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = {"n": 30, "noise": 0.2}
    card = write_card(tmp_path / "x", data={"synthetic": dials})

    def found(card: JudgeCard = card, **given: Any) -> tuple[int, dict[str, Any]]:
        check = EvaluateStage.model_validate({"judge": "x", **given})
        benchmark, facts = _load_benchmark(check, tmp_path, card)
        return len(benchmark.items), facts

    items, facts = found(synthetic={"n": 40, "noise": 0.2})
    assert (items, facts["left_out"]) == (10, 30)
    assert facts["bayes_accuracy"] == pytest.approx(0.8)
    assert found(synthetic={"n": 40, "seed": 9})[1]["left_out"] < 5
    with refuses("synthetic"):
        found(synthetic=dials)
    first = synthetic_preferences(SyntheticSettings(n=40)).rows[0]
    compared = Comparison(
        prompt=first.chosen[:1], a=first.rejected[1]["content"], b=first.chosen[1]["content"],
        label="B",
    )  # fmt: skip
    monkeypatch.setattr(evaluation, "_made_training_pairs", lambda _: [compared])
    assert found(synthetic={"n": 40})[1]["left_out"] == 1


def test_the_gold_of_a_text() -> None:
    grader = CapitalGold()
    asked = "What is the capital of Peru?"
    assert grader.evaluate(asked, "Sure, the capital of Peru is Lima.").score == 4.0
    assert grader.evaluate(asked, "Sure, it is Rome.").score == 1.0
    with pytest.raises(Exception, match="none of the known capitals"):
        grader.evaluate("Who are you?", "Lima")
