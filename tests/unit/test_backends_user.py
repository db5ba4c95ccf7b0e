"""A class of the user's own as a backend: signatures, answers, threads, failures."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.asked_backends import answers
from tests.unit.helpers.users_judges import JUDGES

from adjudge.errors import ConfigError, ErrorKind
from adjudge.service.backend import Damping
from adjudge.service.user_backend import UserBackend, load_backend
from adjudge.wire import JudgeRequest, JudgeResponse


@pytest.fixture(autouse=True)
def _beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_judges.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_judges", raising=False)


def ask(completion: str, **rest: Any) -> JudgeRequest:
    return JudgeRequest(prompt="What is 2+2?", completion=completion, **rest)


def answered(name: str, *requests: JudgeRequest, **arguments: str) -> list[JudgeResponse]:
    return answers(UserBackend(f"own_judges:{name}", arguments), *requests)


def error(response: JudgeResponse) -> tuple[ErrorKind, str]:
    assert response.score is None
    assert response.error is not None
    return response.error.kind, response.error.message


def test_a_constructor_gets_arguments_as_it_annotates_them() -> None:
    assert answered("Typed", ask("x"), size="3", share="0.5", loud="true", to="x")[0].score == 1.5
    for arguments, complaint in (
        ({}, "'size'"),
        ({"size": "many"}, r"size: must be int \(found 'many'\)"),
        ({"size": "1", "loud": "perhaps"}, "loud: must be bool"),
        ({"size": "1", "shar": "2"}, "'shar'.*share: float"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            UserBackend("own_judges:Typed", arguments)
    with refuses("own_judges:ByType.arguments"):
        UserBackend("own_judges:ByType", {"x": "1"})


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("nan", "out_of_range", "finite number"),
        ("inf", "out_of_range", "finite number"),
        ("huge", "out_of_range", "finite number"),
        ("aspect", "out_of_range", "detailed_scores.a"),
        ("unsure", "out_of_range", "confidence"),
        ("text", "bug", "score"),
        ("none", "bug", "raise adjudge.GradingFailure"),
        ("list", "bug", "score"),
        ("no score", "bug", "score"),
        ("empty", "bug", "score"),
        ("typo", "bug", "did you mean 'explanation'"),
        ("wordless", "bug", "explanation"),
        ("object", "bug", "metadata"),
        ("digits", "bug", "metadata"),
        ("halves", "bug", "detailed_scores"),
    ],
)
def test_an_answer_that_is_none_is_an_error(said: str, kind: str, words: str) -> None:
    found = error(answered("Says", ask(said))[0])
    assert found[0] == kind
    assert words in found[1]


def test_what_is_raised_fails_its_request_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        found = answered(
            "Breaks",
            *map(ask, ("x", "exit", "stop", "refuse", "late", "offline", "interrupt", "x")),
        )
    errors = [error(one) for one in found]
    assert [kind for kind, _ in errors] == [
        "bug", "bug", "bug", "refused", "timeout", "connection", "bug", "bug",
    ]  # fmt: skip
    assert [message.partition(" at own_judges.py:")[0] for _, message in errors] == [
        "ValueError", "SystemExit", "StopIteration", "will not", "TimeoutError", "ConnectionError",
        "KeyboardInterrupt", "ValueError",
    ]  # fmt: skip
    assert not any("2+2" in message for _, message in errors)
    assert "2+2" not in caplog.text
    assert caplog.text.count("ValueError") == 1


def test_async_scores_run_side_by_side_and_the_object_opens_and_closes() -> None:
    found = answered("Waits", ask("1"), ask("2"))
    assert [one.score for one in found] == [1.0, 2.0]
    assert sys.modules["own_judges"].closed == ["waits"]
    assert error(answered("Waits", ask("cancel"))[0])[0] is ErrorKind.BUG


def test_batches_are_answered_in_order() -> None:
    assert not UserBackend("own_judges:Many").one_by_one
    found = answered("Many", ask("a"), ask("no"), ask("ab"))
    assert [one.score for one in found] == [1.0, None, 2.0]
    assert error(found[1])[0] == "refused"
    assert [one.score for one in answered("ManyWaits", ask("1"), ask("2"))] == [1.0, 2.0]
    assert answered("Returns", ask("thread"))[0].score == 1.0  # a generator's, too


@pytest.mark.parametrize(
    ("what", "words"),
    [("places", "must be a list"), ("set", "must be a list"), ("without end", "too many answers")],
)
def test_answers_to_a_batch_without_an_order_or_end_are_no_scores(what: str, words: str) -> None:
    found = [error(one) for one in answered("Returns", ask(what), ask(what))]
    assert [kind for kind, _ in found] == ["bug", "bug"]
    assert words in found[0][1]


def test_a_batch_that_breaks_is_asked_in_parts_until_one_is_left() -> None:
    fine, broken = answered("Many", ask("a"), ask("poison"))
    assert fine.score == 1.0
    kind, message = error(broken)
    assert kind is ErrorKind.BUG
    assert message.startswith("RuntimeError at own_judges.py")
    assert "2+2" not in message
    fine, down = answered("Many", ask("a"), ask("down"))
    assert (fine.score, error(down)) == (1.0, (ErrorKind.SERVER_ERROR, "the model is gone"))
    empty = answered("Many", ask("empty"))
    assert error(empty[0]) == (ErrorKind.BUG, "score_batch returned 0 answers to 1 requests")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Unfillable", "score: .*'completon'"),
        ("PositionOnly", "score: .*'prompt'"),
        ("NoScore", r"the class has no method score\("),
        ("function", r"must be a class \(found function\)"),
        ("Nobody", "cannot be imported"),
        ("CannotBeMade", "cannot be started: OSError: no weights here"),
        ("CannotStart", "cannot be started: KeyboardInterrupt: no weights here"),
    ],
)
def test_a_class_that_cannot_serve_is_refused_at_once(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^.*own_judges.*{complaint}"):
        answered(name)


def test_a_call_that_hangs_is_cancelled_and_does_not_keep_the_process() -> None:
    async def used() -> None:
        backend = UserBackend("own_judges:Hangs")
        await backend.start()
        first = asyncio.create_task(backend.score([ask("x")]))
        waiting = asyncio.create_task(backend.score([ask("y")]))
        await asyncio.sleep(0.01)
        for task in (waiting, first):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await backend.aclose()

    asyncio.run(used())
    hung = [thread for thread in threading.enumerate() if thread.name == "adjudge-judge"]
    assert hung
    assert all(thread.daemon for thread in hung)


def test_damping_does_not_reach_into_groups(tmp_path: Path) -> None:
    spec = tmp_path / "reward.toml"
    spec.write_text(
        "graders = [{name = 'answer', type = 'answer'}]\nreward = {group = 'z_score'}\n"
    )
    assert load_backend(str(spec)).compares_groups is not None
    with refuses("damping"):
        load_backend(str(spec), damping=Damping(0.5, 0.8))


def test_damping_is_asked_for_by_name_and_shown() -> None:
    target = "own_judges:ByType"
    plain = load_backend(target)
    damped = load_backend(target, damping=Damping(0.5, 0.8))
    assert plain.version != damped.version
    assert damped.one_by_one == plain.one_by_one
    [before], [after] = (answers(one, ask("x", answer_type="NUMBER")) for one in (plain, damped))
    assert before.score == 1.0
    assert after.score == 0.8
    assert after.confidence == 0.25
    assert after.metadata is not None
    assert (after.metadata["shard"], after.metadata["damped"]) == (3, 1.0)
    for wrong in ("0.5", "0.5:x", "0.5:2", "nan:1"):
        with pytest.raises(ConfigError, match="damping"):
            Damping.parse(wrong)
