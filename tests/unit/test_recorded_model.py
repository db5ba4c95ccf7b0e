"""RecordedModel: a judge that answers from a cassette."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.cassettes import refuses_file

from adjudge.judges.base import ChatCall, Reply, TokenLogprobs
from adjudge.judges.cassette import ReplyCache
from adjudge.judges.models.offline import RecordedModel
from adjudge.types import Usage

ASK = [{"role": "user", "content": "Which is better?"}]
REPLY = Reply(
    text="A",
    reasoning="because",
    finish_reason="stop",
    logprobs=[TokenLogprobs("A", -0.1, {"A": -0.1, "B": float("-inf")})],
    usage=Usage(input_tokens=5, output_tokens=1, cost_usd=0.25),
    model="judge-2026",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judge.sqlite"


def record(
    path: Path, *, provider: str = "openai", model: str = "judge", text: str = "A", **changes: Any
) -> None:
    call = ChatCall(**{"model": model, "messages": ASK, "sampling": {"temperature": 0}, **changes})
    cache = ReplyCache(path, sampled=True)
    reply = Reply(text=text, model=model)
    cache.keep(cache.key(call, provider), REPLY if text == "A" else reply, call)
    cache.close()


def ask(model: RecordedModel, **options: Any) -> Reply:
    return asyncio.run(model.achat(options.pop("messages", ASK), **options))


@pytest.mark.parametrize(
    ("provider", "holds"),
    [("http://10.0.0.1:8000/v1", False), ("openai", False), ("embedded 0af3 4096", True)],
)
def test_who_is_known_by_an_address_only_is_not_said_to_hold_replies_to_choices(
    path: Path, provider: str, holds: bool
) -> None:
    """Expected scores ask less of one that does: a failure must not become a score in a replay."""
    record(path, provider=provider)
    assert ("choices" in RecordedModel(path).features) is holds
    assert "choices" in RecordedModel(path, features=["choices"]).features


def test_sampling_is_what_all_recorded_calls_have_in_common(path: Path) -> None:
    common = {"temperature": 0, "max_tokens": 9}
    record(path, sampling=common)
    record(path, sampling=common | {"seed": 1}, text="B")
    record(path, sampling=common | {"temperature": 0.0}, text="C")
    model = RecordedModel(path)
    assert model.sampling == {"max_tokens": 9}
    assert ask(model, temperature=0).text == "A"
    assert ask(model, temperature=0, seed=1).text == "B"
    assert ask(model, temperature=0.0).text == "C"
    given = RecordedModel(path, sampling=common)
    assert ask(given).text == "A"
    assert ask(given, temperature=0.0).text == "C"


def test_one_of_several_judges_must_be_named(path: Path) -> None:
    record(path, model="one", text="1")
    record(path, model="two", text="2")
    record(path, model="two", provider="vllm", text="3")
    with refuses("model"):
        RecordedModel(path)
    with refuses("provider"):
        RecordedModel(path, "two")
    with refuses("model"):
        RecordedModel(path, "tow")
    with refuses("model"):
        RecordedModel(path, "one", provider="vllm")
    assert ask(RecordedModel(path, "one")).text == "1"
    assert ask(RecordedModel(path, "two", provider="vllm")).text == "3"
    assert ask(RecordedModel(path, provider="vllm")).text == "3"


def test_a_cassette_that_cannot_serve_is_refused(path: Path) -> None:
    with refuses_file(path):
        RecordedModel(path)
    ReplyCache(path).close()
    with refuses("path"):
        RecordedModel(path)
    record(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE calls SET judge = '[1]'")
    with refuses_file(path):
        RecordedModel(path)


def test_models_share_a_cassette_while_one_lives_and_report_together(path: Path) -> None:
    record(path)
    record(path, draw=1, text="B")
    one, two = RecordedModel(path), RecordedModel(path)
    ask(one)
    ask(two)
    report = one.report()
    assert (report.hits, report.never_asked) == (2, 1)
    assert report == two.report()
    assert one.fence_key == two.fence_key
    del one, two
    record(path, draw=2, text="C")
    assert ask(RecordedModel(path), draw=2).text == "C"


def test_pickling_carries_the_arguments(path: Path) -> None:
    record(path, sampling={"seed": 1})
    model = RecordedModel(path, "judge", sampling={"seed": 1})
    data = pickle.dumps(model)
    copy = pickle.loads(data)
    assert (copy.path, copy.model, copy.sampling) == (path, "judge", {"seed": 1})
    assert ask(copy) == ask(model)
    assert len(data) < 500
