"""Trained generative judges as graders: asked as in training, read as strictly, never guessed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.tests.unit.helpers.judge_cards import make_card
from tests.refusals import fails, refuses

from adjudge.datasets.rows import Rating
from adjudge.errors import Cause, ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.trained_judge import TrainedPreference, TrainedRating, TrainedTournament
from adjudge.graders.llm.trained_judge_card import JudgeCard, JudgementForm, card_prompt
from adjudge.judge_evaluation.benchmarks.items import Benchmark, BenchmarkItem
from adjudge.judge_evaluation.benchmarks.judges import BenchmarkJudge, ask_judge
from adjudge.judges import Reply, ScriptedModel
from adjudge.prompts import PROCESS_KEY
from adjudge.rewards.spec import RewardSpec
from adjudge.types import GraderRank
from adjudge_lab.judge_training.calibration import calibrate_ratings
from adjudge_lab.judge_training.dataset import LengthReport, LengthStatistics
from adjudge_lab.judge_training.judge_questions import judge_form, make_questions
from adjudge_lab.judge_training.run import reward_spec_of_card

ASKED = [{"role": "user", "content": "What is the capital of Peru?"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "What is the capital of Peru?"},
]
A3 = "<think>Right, but curt.</think>\n<score>3</score>"
POINTWISE, PAIRWISE = judge_form("pointwise", []), judge_form("pairwise", [])


def card(form: JudgementForm | None, **more: Any) -> JudgeCard:
    facts: dict[str, Any] = {"kind": "generative", "method": "grpo"}
    facts |= {"config": {"grpo": {"max_response_length": 200}}}
    if form is not None:
        facts |= {"mode": form.mode, "prompt": card_prompt(form)}
    return make_card(**(facts | more))


def folder(path: Path, form: JudgementForm | None, **more: Any) -> Path:
    (path / "judge.json").write_bytes(msgspec.json.encode(card(form, **more)))
    return path


class Listening:
    """A script that keeps what it was asked."""

    def __init__(self, *replies: Any) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self._replies = replies

    def __call__(self, messages: Any) -> Any:
        self.asked.append([dict(one) for one in messages])
        return self._replies[min(len(self.asked), len(self._replies)) - 1]


def judge(path: Path, script: Any) -> ScriptedModel:
    return ScriptedModel(script, model=str(path))


def untagged(value: Any) -> Any:
    """Without the fences' tags, which belong to a row or a process."""
    return json.loads(re.sub(r"[0-9a-f]{16}|(?<=\d-)[0-9a-f]{6}", "TAG", json.dumps(value)))


def rated(path: Path, reply: Any, **fields: Any) -> Any:
    fields = fields or {"messages": ASKED, "response": "Lima."}
    return asyncio.run(TrainedRating(judge(path, reply)).aevaluate(**fields))


@pytest.mark.parametrize("before", [ASKED, TALK])
@pytest.mark.parametrize("given", ["response", "messages", "both", "query"])
def test_a_rating_is_asked_for_as_in_training(
    tmp_path: Path, before: list[dict[str, Any]], given: str
) -> None:
    whole = [*before, {"role": "assistant", "content": "Lima."}]
    [question], _ = make_questions([Rating(messages=whole, label=4)], POINTWISE, PROCESS_KEY)
    fields: dict[str, Any] = {
        "response": {"messages": before, "response": "Lima."},
        "messages": {"messages": whole},
        "both": {"messages": whole, "response": "Lima."},
        "query": {"query": before, "response": "Lima."},
    }
    listening = Listening(A3)
    found = rated(folder(tmp_path, POINTWISE), listening, **fields[given])
    assert untagged(listening.asked) == untagged([question.messages])
    assert (found.score, found.score_range, found.reason) == (3.0, (0.0, 4.0), "Right, but curt.")
    assert found.provenance.prompt_hash == POINTWISE.template


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("I would say 3.", ErrorKind.UNPARSABLE),
        ("<think>ok</think>Score: <score>3</score>", ErrorKind.UNPARSABLE),
        ("<think>ok</think><score>3</score><score>4</score>", ErrorKind.UNPARSABLE),
        ('{"score": 3}', ErrorKind.UNPARSABLE),
        ("<think>ok</think><score>5</score>", ErrorKind.OUT_OF_RANGE),
        ("", ErrorKind.UNPARSABLE),
        (Reply(text="", reasoning="still", finish_reason="length"), ErrorKind.TRUNCATED),
        (Reply(text="<score>", reasoning="so", finish_reason="length"), ErrorKind.TRUNCATED),
    ],
)
def test_any_other_reply_is_missing_and_never_corrected(
    tmp_path: Path, reply: Any, kind: ErrorKind
) -> None:
    listening = Listening(reply)
    with fails(kind) as caught:
        rated(folder(tmp_path, POINTWISE), listening)
    redrawn = kind is not ErrorKind.OUT_OF_RANGE
    assert listening.asked == [listening.asked[0]] * (1 + redrawn)
    assert caught.value.metadata["raw"]
    assert caught.value.provenance is not None
    assert caught.value.provenance.prompt_hash == POINTWISE.template


@pytest.mark.parametrize(
    "reply",
    [
        A3,
        "<think></think><score>3</score>",
        "the template opened it</think>\n<score>3</score>\n",
        Reply(text="\n<score>3</score>", reasoning="a server parts them"),
        Reply(text="<think>one that parts nothing</think><score>3</score>"),
    ],
)
def test_thinking_is_put_back_where_a_server_took_it(tmp_path: Path, reply: Any) -> None:
    assert rated(folder(tmp_path, POINTWISE), reply).score == 3.0


def test_what_cannot_be_rated(tmp_path: Path) -> None:
    listening = Listening(A3)
    path = folder(tmp_path, POINTWISE)
    for response, why in (
        ("", "empty"),
        ("<think>hm</think> ", "empty"),
        ("<think>", "unclosed_think"),
    ):
        found = rated(path, listening, prompt="Q?", response=response, finish_reason="length")
        assert (found.score, found.cause) == (0.0, Cause.CANDIDATE)
        assert found.metadata[why]
    with pytest.raises(GradingFailure, match="'query'"):
        rated(path, listening, response="Lima.")
    with pytest.raises(GradingFailure, match="'response' is absent"):
        rated(path, listening, prompt="Q?")
    with pytest.raises(GradingFailure, match="'response' is a int"):
        rated(path, listening, prompt="Q?", response=3)
    assert listening.asked == []


def test_ratings_become_labels_where_the_card_says_how(tmp_path: Path) -> None:
    ratings = calibrate_ratings([3, 3, 1, 1] * 5, [4, 3, 0, 1] * 5, [str(n) for n in range(20)])
    path = folder(tmp_path, POINTWISE, rating_calibration=ratings)
    found = rated(path, A3)
    assert (found.score, found.metadata["expected_label"]) == (3.0, 3.5)


def lima(messages: Any) -> str:
    """Prefers Lima, and what stands first where neither or both say it."""
    text = messages[-1]["content"]
    first, second = text.split("Response B:")
    better = "B" if "Lima" in second and "Lima" not in first else "A"
    return f"<think>Seen.</think><better>{better}</better>"


def test_a_group_is_ranked_and_position_earns_nothing(tmp_path: Path) -> None:
    grader = TrainedTournament(judge(folder(tmp_path, PAIRWISE), lima))
    answers = ["Quito.", "Lima.", "Bogota.", "It is Lima."]
    found = asyncio.run(grader.aevaluate(response=answers, prompt=["Q?"] * 4))
    assert isinstance(found, GraderRank)
    assert found.rank == [3.0, 1.0, 3.0, 1.0]


def test_a_verdict_that_follows_the_position_is_inconsistent(tmp_path: Path) -> None:
    grader = TrainedPreference(judge(folder(tmp_path, PAIRWISE), lima))
    for other, outcome, score in (("Quito.", "win", 1.0), ("Lima!", "inconsistent", 0.5)):
        found = asyncio.run(grader.aevaluate(prompt="Q?", response="Lima.", reference=other))
        assert (found.metadata["outcome"], found.score) == (outcome, score)
    failing = TrainedPreference(judge(tmp_path, "A is better"))
    with fails(ErrorKind.UNPARSABLE):
        asyncio.run(failing.aevaluate(prompt="Q?", response="Lima.", reference="Quito."))
    with pytest.raises(GradingFailure, match="'query'"):
        asyncio.run(failing.aevaluate(response="Lima.", reference="Quito."))


@pytest.mark.parametrize("cls", [TrainedPreference, TrainedTournament])
def test_benchmarks_ask_it_in_the_order_given(tmp_path: Path, cls: type[Any]) -> None:
    asked = BenchmarkJudge("it", cls(judge(folder(tmp_path, PAIRWISE), lima)))
    turns = [[{"role": "assistant", "content": one}] for one in ("Lima.", "Quito.", "Bogota.")]
    items = [
        BenchmarkItem(
            id=str(at), subset="s", prompt=ASKED, answers=pair, right=[True, False], where=f"x:{at}"
        )
        for at, pair in enumerate([turns[:2], turns[1::-1], turns[1:]])
    ]
    judged = asyncio.run(ask_judge(asked, Benchmark(kind="preference", items=items)))
    assert [one.verdicts for one in judged] == [["A", "A"], ["B", "B"], ["A", "B"]]


@pytest.mark.parametrize(
    ("form", "more", "cls", "why"),
    [
        (None, {"method": "sft"}, TrainedRating, "trained to answer, not to judge"),
        (POINTWISE, {"kind": "scalar"}, TrainedRating, "the judge is scalar"),
        (PAIRWISE, {}, TrainedRating, "is pairwise, not pointwise. Ask it with TrainedTournament"),
        (POINTWISE, {}, TrainedPreference, "is pointwise, not pairwise. Ask it with TrainedRating"),
        (POINTWISE, {"prompt": {"mode": "listwise"}}, TrainedRating, "is invalid in the judge"),
        (
            POINTWISE, {"prompt": {**card_prompt(POINTWISE), "template": "0123456789abcdef"}},
            TrainedRating, "Restore them",
        ),
    ],
)  # fmt: skip
def test_cards_that_do_not_fit_are_refused(
    form: JudgementForm | None, more: dict[str, Any], cls: type[Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why):
        cls(judge(folder(tmp_path, form, **more), A3))


def test_a_served_judge_needs_its_card(tmp_path: Path) -> None:
    with refuses("judge"):
        TrainedRating(ScriptedModel(A3, model="my-judge"))
    grader = TrainedRating(ScriptedModel(A3, model="my-judge"), card=folder(tmp_path, POINTWISE))
    assert asyncio.run(grader.aevaluate(prompt="Q?", response="Lima.")).score == 3.0


@pytest.mark.parametrize("form", [POINTWISE, PAIRWISE])
def test_the_folder_has_a_spec_that_asks_it(form: JudgementForm, tmp_path: Path) -> None:
    path = folder(tmp_path, form)
    text = reward_spec_of_card(card(form))
    assert text is not None
    (path / "reward.toml").write_text(text)
    spec = RewardSpec.load(path / "reward.toml")
    judge: Any = spec.judges["main"]
    assert (judge.task, judge.max_tokens) == (None, 200)
    grader = spec.build_graders()["mine"]
    assert type(grader) is (TrainedRating if form is POINTWISE else TrainedTournament)
    assert Path(grader.model.model) == path


LENGTHS = LengthReport(
    unit="tokens", conversations=None, answers=LengthStatistics(9, 20, 8, 20, 25, 30, 32)
)


@pytest.mark.parametrize(
    ("more", "longest"),
    [
        ({"prompt": {**card_prompt(POINTWISE), "max_tokens": 77}}, 77),
        ({}, 200),
        ({"method": "sft", "data": {"lengths": LENGTHS}}, 40),
        ({"method": "sft", "data": {"lengths": msgspec.to_builtins(LENGTHS)}}, 40),
        ({"method": "sft"}, None),
    ],
)
def test_a_reply_may_be_as_long_as_in_training(
    more: dict[str, Any], longest: int | None, tmp_path: Path
) -> None:
    """More would be taken from what is left for the question."""
    text = reward_spec_of_card(card(POINTWISE, **more))
    assert text is not None
    (tmp_path / "reward.toml").write_text(text)
    judge: Any = RewardSpec.load(tmp_path / "reward.toml").judges["main"]
    assert judge.max_tokens == longest
