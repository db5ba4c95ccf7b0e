"""``adjudge.grade`` and ``adjudge.make_reward``: what they take, and what comes out."""

import asyncio
import doctest
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.rows import write_jsonl

import adjudge
from adjudge import api
from adjudge.errors import ConfigError, ErrorKind, RolloutError, RunFolderError
from adjudge.types import Sample

RULE = {"graders": [{"name": "right", "type": "string_match"}], "reward": {"group": "centre"}}
ROWS: list[dict[str, Any]] = [
    {"prompt": "2 + 2?", "response": "4", "reference": "4", "env_reward": 1},
    {"prompt": "2 + 2?", "response": "5", "reference": "4", "env_reward": 0},
    {"prompt": "3 + 3?", "response": "6", "reference": "6", "env_reward": 1},
    {"prompt": "3 + 3?", "response": "6", "reference": "6", "env_reward": 1},
]
REWARDS = [0.5, -0.5, 0.0, 0.0]


def judged(script: str) -> dict[str, Any]:
    judge = {"type": "scripted", "script": script}
    return {"graders": [{"name": "good", "type": "helpfulness"}], "judges": {"main": judge}}


def count_letters(response: str) -> int:
    return len(response)


class Frame:
    """As much of a pandas table as is read: missing values are NaN, cells may be arrays."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows[0])

    def iterrows(self) -> None:
        raise AssertionError("slow")

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [row | {"group": float("nan")} for row in self._rows]


class Table:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def to_pylist(self) -> list[dict[str, Any]]:
        return self._rows


FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "list": list,
    "generator": iter,
    "samples": lambda rows: [
        Sample(prompt=row["prompt"], response=row["response"], extra=row) for row in rows
    ],
    "pandas": Frame,
    "arrow": Table,
}


@pytest.mark.parametrize("form", FORMS)
def test_rollouts_in_memory(form: str) -> None:
    run = adjudge.grade(FORMS[form](ROWS), RULE)
    assert run.rewards == REWARDS
    assert [row.index for row in run] == [0, 1, 2, 3]
    assert (run.summary["groups"]["count"], run.summary["groups"]["source"]) == (2, "equal prompts")
    assert run.folder is None


def test_files_and_a_folder_are_the_commands(tmp_path: Path) -> None:
    """The same job writes the same files; the page can be written again anywhere."""
    one, two, spec = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "reward.toml"
    write_jsonl(one, ROWS[:2])
    write_jsonl(two, ROWS[2:])
    spec.write_text('[[graders]]\nname = "right"\ntype = "string_match"\n')
    run = adjudge.grade([one, str(two)], spec, output=tmp_path / "out")
    assert run.folder == tmp_path / "out"
    lines = (run.folder / "rewards.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [row.as_dict() for row in run]
    assert json.loads((run.folder / "summary.json").read_text()) == run.summary
    page = run.report(tmp_path / "page.html")
    assert page.read_bytes() == (run.folder / "report.html").read_bytes()
    again = adjudge.grade([one, two], adjudge.RewardSpec.load(spec), output=str(run.folder))
    assert again.summary["resumed_results"] == 4
    assert adjudge.grade(str(one), str(spec)).rewards == [1.0, 0.0]


def test_a_run_may_be_inside_a_running_loop() -> None:
    async def notebook() -> list[float | None]:
        return adjudge.grade(ROWS, RULE).rewards

    assert asyncio.run(notebook()) == REWARDS


def test_a_failed_judge_is_missing_with_its_kind() -> None:
    run = adjudge.grade(ROWS[:1], judged("no verdict"))
    [row] = run
    assert row.reward is None
    assert row.scores == {"good": None}
    assert row.missing is not None
    assert row.missing.kind in set(ErrorKind)
    assert "1 missing" in repr(run)


def test_broken_rows_are_named_by_their_place(caplog: pytest.LogCaptureFixture) -> None:
    run = adjudge.grade([ROWS[0], {"prompt": "?"}], RULE)
    assert "1 rows are no samples" in caplog.text
    assert [(row.where, len(run)) for row in run.broken] == [("rollouts[1]", 1)]
    assert "1 broken rows" in repr(run)
    with pytest.raises(RolloutError, match="neither 'messages' nor 'response'"):
        adjudge.grade([ROWS[0], {"prompt": "?"}], RULE, strict=True)
    with pytest.raises(RolloutError, match="rollouts in memory: no usable row"):
        adjudge.grade([], RULE)
    with refuses("rollouts[1]"):
        adjudge.grade([ROWS[0], 5], RULE)
    with refuses("rollouts"):
        adjudge.grade(ROWS[0], RULE)


def test_fields_of_other_columns_and_lists_of_responses() -> None:
    rows = [{"question": "?", "answers": {"text": "4"}, "gold": "4"}]
    mapping = {"prompt": "question", "response": "answers.text", "reference": "gold"}
    assert adjudge.grade(rows, RULE, mapping=mapping).rewards == [0.0]
    with refuses("--map"):
        adjudge.grade(rows, RULE, mapping={"response": "answer"})
    several = [{"prompt": "?", "responses": ["4", "5"], "reference": "4"}]
    assert adjudge.grade(several, RULE).rewards == [0.5, -0.5]


def test_recorded_replies_are_replayed(tmp_path: Path) -> None:
    spec = judged('{"reason": "", "score": 1}')
    with pytest.raises(ConfigError, match="cannot be used together"):
        adjudge.grade(ROWS, spec, record=tmp_path / "a.db", replay=tmp_path / "a.db")


def test_a_notebook_shows_escaped_tables() -> None:
    hostile = [row | {"group": "<script>alert(1)\ud800</script>"} for row in ROWS * 4]
    shown = adjudge.grade(hostile, judged("no <b>verdict</b>"))._repr_html_()
    assert not [tag for tag in ("<script", "<b>verdict", "http") if tag in shown]
    assert "&lt;script&gt;" in shown
    assert "The first 10 samples; 6 more" in shown
    assert shown.count("unparsable") >= len(ROWS)
    shown.encode()
    assert "Against the environment" in adjudge.grade(ROWS, RULE)._repr_html_()


def test_what_stops_grading_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(job: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "grade_rollouts", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        adjudge.grade(ROWS, RULE, output=tmp_path)
    assert stopped.value.__notes__ == [
        f"adjudge: to resume, call again with output={str(tmp_path)!r}"
    ]
    with pytest.raises(KeyboardInterrupt) as stopped:
        adjudge.grade(ROWS, RULE)
    assert "nothing is kept" in stopped.value.__notes__[0]


def test_a_reward_is_called_and_awaited() -> None:
    reward = adjudge.make_reward(RULE)
    batch = [[row[name] for row in ROWS] for name in ("prompt", "response", "reference")]
    prompts, completions, reference = batch
    assert reward(prompts, completions, reference=reference) == REWARDS

    async def train() -> list[Any]:
        inside = reward(prompts, completions, reference=reference)
        awaited = await reward.acall(prompts, completions, reference=reference)
        scored = await reward.ascore(prompts, completions, reference=reference)
        return [inside, awaited, scored.rewards]

    assert asyncio.run(train()) == [REWARDS] * 3
    again = pickle.loads(pickle.dumps(reward))
    assert again(prompts, completions, reference=reference) == REWARDS
    assert reward.__name__ == "adjudge"


def test_a_reward_takes_groups_conversations_and_one_value_for_all() -> None:
    reward = adjudge.make_reward(RULE)
    apart = reward(["?", "?"], ["4", "5"], reference="4", group=[1, 2])
    assert apart == [0.0, 0.0]
    chat = [{"role": "user", "content": "2 + 2?"}]
    said = [{"role": "assistant", "content": "4"}]
    assert reward([chat, chat], [said, "5"], reference="4") == [0.5, -0.5]
    assert reward(["2 + 2?"] * 2, [said, []], reference="4") == [0.0, None]
    with refuses("reference"):
        reward(["?", "?"], ["4", "5"], reference=["4"])
    with refuses("prompts"):
        reward(["?"], ["4", "5"])


def test_a_reward_for_a_trainer() -> None:
    reward = adjudge.make_reward(RULE, trainer="trl", name="mine")
    assert reward.__name__ == "mine"
    scores = asyncio.run(reward(prompts=["?", "?"], completions=["4", "5"], reference=["4", "4"]))
    assert scores == [0.5, -0.5]
    own = adjudge.make_reward(RULE, trainer="builtins:dict", name="mine")
    with refuses("trainer"):
        adjudge.make_reward(RULE, trainer="tlr")
    with refuses("make_reward.name"):
        adjudge.make_reward(RULE, name="mine")
    assert own["name"] == "mine"


WITHOUT_EXAMPLE = {
    "GraderResult": "a union of types",
    "Message": "a type of dictionaries",
    "__version__": "a text",
}


@pytest.mark.parametrize("name", sorted(set(adjudge.__all__) - set(WITHOUT_EXAMPLE)))
def test_each_name_has_an_example(name: str) -> None:
    """The examples of all docstrings are executed by ``--doctest-modules``."""
    examples = doctest.DocTestParser().get_examples(getattr(adjudge, name).__doc__ or "")
    assert any(name in one.source + one.want for one in examples), name


EXACT = {"graders": [{"name": "right", "type": "string_match", "match": "exact"}]}


class Column:
    """As an array of numbers: sized, indexable and no sequence."""

    def __init__(self, *values: float) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> "Iterator[Scalar]":
        return map(Scalar, self._values)

    def __getitem__(self, label: int) -> "Scalar":
        raise KeyError(label)  # a series that was sorted or filtered


class Scalar:
    def __init__(self, value: float) -> None:
        self._value = value

    def tolist(self) -> float:
        return self._value


def test_columns_may_be_arrays() -> None:
    spec = {
        "graders": [{"name": "length", "type": "string_match", "match": "exact", "weight": 0.0}],
        "reward": {"combine_mode": "weighted_sum", "judge_scale": 0.0},
    }
    spec["graders"].append({"name": "one", "type": "string_match", "match": "exact"})  # type: ignore[attr-defined]
    reward = adjudge.make_reward(spec)
    found = reward(["q"] * 2, ["a", "b"], reference="a", env_reward=Column(0.25, 0.75))
    assert found == [0.25, 0.75]


def test_groups_that_are_named_are_no_others() -> None:
    centred = {**EXACT, "reward": {"group": "centre"}}
    reward = adjudge.make_reward(centred)
    named = ["(prompt 0)", None, "(prompt 0)", None]
    found = reward(["p", "q"] * 2, ["a", "a", "b", "b"], reference="a", group=named)
    assert found == [0.5, 0.5, -0.5, -0.5]


def test_rows_in_memory_are_known_by_their_content(tmp_path: Path) -> None:
    adjudge.grade(ROWS, RULE, output=tmp_path / "out")
    adjudge.grade(ROWS, RULE, output=tmp_path / "out")
    with pytest.raises(RunFolderError, match="other inputs"):
        adjudge.grade(ROWS[:2], RULE, output=tmp_path / "out")


def test_rows_with_arrays_inside_are_rows(tmp_path: Path) -> None:
    class Parts(list[Any]):
        def tolist(self) -> list[Any]:
            return list(self)

    row = {"prompt": "q", "response": "a", "reference": "a", "tools": {"calls": (Scalar(1.0),)}}
    rows = [row | {"messages": Parts([{"role": "assistant", "content": "a"}])}]
    assert adjudge.grade(rows, EXACT, output=tmp_path / "out").rewards == [1.0]


def test_a_summary_warns_of_products_with_a_negative_environments_reward() -> None:
    rows = [{"response": "a", "reference": "a", "env_reward": env} for env in (-2.0, 3.0)]
    run = adjudge.grade(rows, {**EXACT, "reward": {"combine_mode": "multiply"}})
    assert run.rewards == [-2.0, 3.0]
    assert any("negative in 1 of 2 samples" in one for one in run.summary["warnings"])


def test_a_summary_says_of_a_grader_without_a_range_that_its_scores_count_as_they_are() -> None:
    mine = {"name": "mine", "type": f"{__name__}:count_letters"}
    alone = adjudge.grade(ROWS, {"graders": [mine]})
    assert alone.rewards == [1.0, 1.0, 1.0, 1.0]
    assert alone.summary["graders"]["mine"]["unscaled"]
    assert not any("score_range" in one for one in alone.summary["warnings"])
    mixed = adjudge.grade(ROWS, {"graders": [mine, *RULE["graders"]]}).summary
    assert [mixed["graders"][name]["unscaled"] for name in ("mine", "right")] == [True, False]
    assert sum("mine has no score_range" in one for one in mixed["warnings"]) == 1
    scaled = adjudge.grade(ROWS, {"graders": [mine | {"score_range": [0, 2]}]})
    assert scaled.rewards == [0.5, 0.5, 0.5, 0.5]
    assert not scaled.summary["graders"]["mine"]["unscaled"]
