"""Cache keys and stored replies on arbitrary values: what counts, what does not, nothing lost."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, Reply, TokenLogprobs
from adjudge.judges.cassette import ReplyCache, canonical_call
from adjudge.types import Provenance, Usage

unhurried = settings(deadline=None)  # the machine may be busy
texts = st.text(st.characters(exclude_categories=()), max_size=8)  # surrogates and NUL too
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, "1", "", None])
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(texts, values, max_size=4)
calls = st.builds(
    ChatCall,
    model=texts,
    messages=st.lists(mappings, max_size=3),
    schema=st.none() | mappings,
    choices=st.none() | st.lists(texts, max_size=3),
    logprobs=st.booleans(),
    draw=st.integers(0, 9),
    attempt=st.integers(0, 2),
    sampling=mappings,
)
numbers = st.floats()
replies = st.builds(
    Reply,
    text=texts,
    reasoning=texts,
    finish_reason=st.none() | texts,
    logprobs=st.none()
    | st.lists(
        st.builds(
            TokenLogprobs,
            token=texts,
            logprob=numbers,
            top=st.dictionaries(texts, numbers, max_size=3),
        ),
        max_size=3,
    ),
    usage=st.none()
    | st.builds(Usage, input_tokens=st.integers(0), cost_usd=st.none() | st.floats(0)),
    model=st.none() | texts,
    ignored=st.lists(texts, max_size=2).map(tuple),
    provenance=st.builds(Provenance, source=st.just("live"), attempts=st.integers(1, 5)),
)


def exact(value: Any) -> str:
    """A text in which equal means equal in type and sign too; the order of keys does not count."""
    if isinstance(value, Mapping):
        return f"{{{sorted((exact(k), exact(v)) for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{[exact(item) for item in value]}]"
    return f"{type(value).__name__} {value!r}"


def turned(value: Any) -> Any:
    """The same value with the keys of every mapping in the opposite order."""
    if isinstance(value, Mapping):
        return {key: turned(value[key]) for key in reversed(list(value))}
    return [turned(item) for item in value] if isinstance(value, list) else value


def key(call: ChatCall, provider: str = "openai") -> bytes:
    return canonical_call(call, provider)


def reply_parts(reply: Reply) -> str:
    return repr(msgspec.structs.replace(reply, provenance=Provenance()))


@unhurried
@given(calls, texts)
def test_the_order_of_keys_and_the_kind_of_sequence_do_not_count(
    call: ChatCall, provider: str
) -> None:
    other = msgspec.structs.replace(
        call,
        messages=tuple(MappingProxyType(turned(message)) for message in call.messages),
        choices=None if call.choices is None else tuple(call.choices),
        sampling=turned(call.sampling),
    )
    assert key(call, provider) == key(other, provider)


@unhurried
@given(mappings, texts, values, values)
@example({}, "temperature", 1, 1.0)
@example({}, "temperature", 1, True)
@example({}, "temperature", 0.0, -0.0)
@example({}, "stop", None, "null")
@example({}, "a", "\ud83d\ude00\ud800", "😀\ud800")  # a pair of surrogates is not the character
@example({}, "a", "\ud800", "\\ud800")
def test_values_of_two_types_or_spellings_are_two(
    rest: dict[str, Any], name: str, one: Any, two: Any
) -> None:
    assume(exact(one) != exact(two))
    for place in ("sampling", "messages", "schema"):
        first, second = {**rest, name: one}, {**rest, name: two}
        contents = ([first], [second]) if place == "messages" else (first, second)
        a, b = (_with(place, content) for content in contents)
        assert key(a) != key(b)


def _with(part: str, value: Any) -> ChatCall:
    return msgspec.structs.replace(ChatCall(model="m", messages=[]), **{part: value})


def test_keys_stay_what_they_are(tmp_path: Path) -> None:
    """A recorded cassette is found again only while this holds; else raise the schema version."""
    cache = ReplyCache(tmp_path / "c.sqlite")
    call = ChatCall(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": "Größe\x00 0.1"}],
        schema={"type": "object", "properties": {"b": {}, "a": {}}},
        choices=["A", "B"],
        logprobs=True,
        draw=2,
        attempt=1,
        sampling={"top_p": 0.1, "temperature": 0},
    )
    written = (
        '["openai","gpt-4o-mini",[{"content":"Größe\\u0000 0.1","role":"user"}],'
        '{"type":"object","properties":{"b":{},"a":{}}},["A","B"],true,'
        '{"temperature":0,"top_p":0.1},2,1]'
    )
    assert canonical_call(call, "openai") == written.encode()
    expected = "6e5269e489666e97be012dbf720aa8adad848faafae5f5902dd9ab49759141cc"
    assert cache.key(call, "openai") == expected
    odd = msgspec.structs.replace(call, messages=[{"role": "user", "content": "\ud800ö"}])
    assert canonical_call(odd, "openai") == written.replace("Größe\\u0000 0.1", "\ud800ö").encode(
        "utf-8", "surrogatepass"
    )
    cache.close()


@pytest.mark.parametrize("value", [object(), {1: "a"}, 1j, {"a": {2: 3}}])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(GradingFailure) as failure:
        key(_with("sampling", {"x": value}))
    assert failure.value.kind is ErrorKind.INVALID_INPUT


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
failures = st.builds(
    GradingFailure,
    st.sampled_from([kind for kind in ErrorKind if kind not in ("cancelled", "bug")]),
    st.text(alphabet=st.characters(codec="utf-8")),
    st.dictionaries(st.text(), plain_values, max_size=3),
)


def failure_parts(failure: GradingFailure) -> tuple[ErrorKind, str, dict[str, Any]]:
    return failure.kind, str(failure), failure.metadata


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), replies | failures), min_size=1, max_size=12))
def test_a_replay_has_the_last_outcome_of_each_call(asks: list[tuple[int, Any]]) -> None:
    """What was asked again after a failure has one outcome: the reply, else the last failure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.sqlite"
        cache = ReplyCache(path)
        last: dict[str, Any] = {}
        for draw, outcome in asks:
            call = ChatCall(model="m", messages=[], draw=draw, sampling={"temperature": 0})
            at = cache.key(call, "p")
            if cache.get(at) is None:
                cache.keep(at, outcome, call)
                last[at] = outcome
        cache.close()
        replay = ReplyCache(path, "replay")
        for at, outcome in last.items():
            if isinstance(outcome, Reply):
                again = replay.get(at)
                assert again is not None
                assert reply_parts(again) == reply_parts(outcome)
            else:
                with pytest.raises(GradingFailure) as caught:
                    replay.get(at)
                assert failure_parts(caught.value) == failure_parts(outcome)
        report = replay.close()
        assert (report.misses, report.never_asked) == (0, 0)
