"""The reply cache: its two modes, and what a miss of a replay says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.cassettes import (
    MESSAGES,
    SCHEMA,
    SECRET,
    a_call,
    a_reply,
    failure_of,
    opened,
    record,
)

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import call_round
from adjudge.judges.cassette import ReplyCache
from adjudge.types import Provenance


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judge.sqlite"


# -- modes ---------------------------------------------------------------------------------------


def test_record_answers_what_it_stored_pending_and_from_the_file(path: Path) -> None:
    call, reply = a_call(), a_reply()
    with opened(path) as cache:
        key = cache.key(call, "openai")
        assert cache.get(key) is None
        cache.keep(key, reply, call)
        pending = cache.get(key)
    with opened(path) as cache:
        assert cache.get(key) == pending
        assert cache.report().hits == 1
    assert pending is not None
    assert (pending.text, pending.usage) == (reply.text, reply.usage)
    assert pending.provenance == Provenance(source="cache", model="gpt-4o-mini-1", attempts=0)


def test_an_unknown_mode_is_refused(path: Path) -> None:
    with refuses("mode"):
        ReplyCache(path, "repaly")  # type: ignore[arg-type]  # what a spec may say
    assert not path.exists()


# -- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 1, "seed": 3}])
def test_sampled_replies_are_stored_only_when_asked_for(
    path: Path, sampling: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    call = a_call(sampling=sampling)
    with opened(path) as cache:
        key = cache.key(call, "openai")
        cache.keep(key, a_reply(), call)
        assert cache.get(key) is None
        assert (cache.report().stored, cache.report().not_stored) == (0, 1)
    assert "none of 1 replies was stored" in caplog.text
    record(path, call)
    with opened(path) as cache:
        assert cache.get(key) is None
    with opened(path, sampled=True) as cache:
        assert cache.get(key) is not None
    with opened(path, "replay") as cache:
        assert cache.get(key) is not None


# -- misses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "gpt-5"}, ["model"]),
        ({"draw": 1}, ["draw"]),
        ({"logprobs": True}, ["logprobs"]),
        ({"sampling": {"temperature": 0.0}}, ["sampling.temperature"]),
        ({"sampling": {"temperature": 0, "seed": 1}}, ["sampling.seed"]),
        ({"messages": MESSAGES[:1]}, ["messages", "messages[1].role", "messages[1].content"]),
        ({"choices": ["A", "B"]}, ["choices"]),
        ({"schema": SCHEMA}, ["schema"]),
        (
            {"messages": [MESSAGES[0], {"role": "user", "content": SECRET + " END"}]},
            ["messages[1].content"],
        ),
        ({"messages": [MESSAGES[0], MESSAGES[1] | {"name": "x"}]}, ["messages[1].name"]),
    ],
)
def test_a_replay_miss_names_what_changed(
    path: Path, changes: dict[str, Any], named: list[str]
) -> None:
    other = [{"role": "user", "content": "another thing altogether"}]
    keys = record(path, a_call(messages=other, draw=5), a_call(), a_call(messages=other, draw=6))
    with opened(path, "replay") as cache:
        failure = failure_of(cache, a_call(**changes))
    assert failure.kind is ErrorKind.UNSUPPORTED
    assert failure.metadata["nearest"] == keys[1]
    assert sorted(failure.metadata["changed"]) == sorted(named)
    assert all(name in str(failure) for name in named)
    assert SECRET not in str(failure) + json.dumps(failure.metadata)


def test_a_replay_miss_by_another_provider_shows_no_address(path: Path) -> None:
    record(path, a_call())
    with opened(path, "replay") as cache:
        failure = failure_of(cache, a_call(), "https://user:key@host/v1")
    assert list(failure.metadata["changed"]) == ["provider"]
    assert "key@host" not in str(failure) + json.dumps(failure.metadata)


def test_a_replay_counts_recorded_calls_that_were_never_asked(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = record(path, *(a_call(draw=draw) for draw in range(30)))
    cache = ReplyCache(path, "replay")
    assert cache.get(keys[3]) is not None
    report = cache.close()
    assert report.never_asked == 29
    assert "29 recorded calls were not used" in caplog.text
    assert cache.close() == report


# -- failures ------------------------------------------------------------------------------------


def refused(message: str = "the model refused") -> GradingFailure:
    return GradingFailure(ErrorKind.REFUSED, message, {"status": 200, "headers": {}, "attempts": 1})


def note(cache: ReplyCache, failure: GradingFailure, **changes: Any) -> str:
    call = a_call(**changes)
    key = cache.key(call, "openai")
    assert cache.get(key) is None
    cache.keep(key, failure, call)
    return key


def test_a_failure_is_replayed_as_it_was(path: Path) -> None:
    with opened(path) as cache:
        note(cache, refused())
        note(cache, GradingFailure(ErrorKind.TIMEOUT, "no reply", {"an": object()}), draw=1)
        assert (cache.report().failures, cache.report().stored) == (2, 0)
    with opened(path, "replay") as cache:
        first, again = failure_of(cache, a_call()), failure_of(cache, a_call())
        assert (first.kind, str(first)) == (ErrorKind.REFUSED, "the model refused")
        assert first.metadata == {"status": 200, "headers": {}, "attempts": 1}
        first.metadata["raw"] = ["what a caller adds"]
        assert "raw" not in again.metadata
        assert failure_of(cache, a_call(draw=1)).metadata == {"an": "object"}
        report = cache.report()
        assert (report.hits, report.misses) == (3, 0)
        assert report.never_asked == 0


def test_equal_calls_of_one_round_fail_alike(path: Path) -> None:
    with opened(path) as cache:
        first = call_round.set(object())
        key = note(cache, refused())
        assert failure_of(cache, a_call()).kind is ErrorKind.REFUSED
        call_round.set(object())
        assert cache.get(key) is None  # asked again
        cache.keep(key, a_reply(), a_call())
        assert cache.get(key) is not None
        note(cache, refused(), draw=1)
        call_round.reset(first)
        cache.keep_failures()
        assert failure_of(cache, a_call(draw=1)).kind is ErrorKind.REFUSED


def test_what_is_no_outcome_of_a_call_is_not_kept(path: Path) -> None:
    with opened(path) as cache:
        note(cache, GradingFailure(ErrorKind.CANCELLED, "the endpoint was closed"))
        note(cache, refused(), sampling={"temperature": 1})  # nor are its replies
        stream_only = GradingFailure(ErrorKind.UNSUPPORTED, "only streams", {"stream_only": True})
        call_round.set(object())
        note(cache, stream_only, draw=1)
        note(cache, stream_only, draw=1)  # the same call again, as a stream
        call_round.set(None)
    with opened(path, "replay") as cache:
        assert cache.report().never_asked == 1
