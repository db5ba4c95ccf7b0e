"""What a run keeps of its judge calls: the store, the choice of samples, and what is noted."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.rows import write_jsonl
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge.errors import ErrorKind, GradingFailure, RunFolderError
from adjudge.judges.asking import JudgeCall
from adjudge.judges.base import ChatCall, ChatModel
from adjudge.rewards.spec import RewardSpec
from adjudge.runs import transcripts
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.transcripts import FILE, TranscriptStore, choose_groups
from adjudge.runs.view.run_reader import RunReader
from adjudge.types import Sample, Usage

TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xDFFF)),
    st.sampled_from(["\x00", "\ud800" * 9]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = [
    {"prompt": "2 + 2?", "response": text, "reference": "4", "group": "g"} for text in ("4", "5")
]


# --- the store ------------------------------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, extras=st.dictionaries(st.text(), JSON, max_size=3), reply=st.none() | TEXTS)
def test_what_is_kept_comes_back_as_it_was(
    text: str, extras: dict[str, Any], reply: str | None
) -> None:
    message = {"role": "user", "content": text, "tool_calls": [extras]}
    sample = Sample(original_index=3, messages=[message], response=text, extra=extras, where="f:1")
    call = JudgeCall(
        messages=[message], schema=extras, reply=reply, error=text, usage=Usage(input_tokens=2)
    )
    with TemporaryDirectory() as folder, TranscriptStore(Path(folder)) as store:
        store.add_sample(3, sample)
        store.add_calls([3, 4], "g", [call])
        assert store.read_sample(3) == sample
        assert store.read_calls(3) == store.read_calls(4) == {"g": [call]}
        assert store.read_sample(5) is None
        assert store.read_calls(5) == {}


def test_a_call_is_kept_once_also_where_it_is_about_several_samples(tmp_path: Path) -> None:
    text = "".join(str(number) for number in range(200_000))
    call = JudgeCall(messages=[{"role": "user", "content": text}], reply="x")
    with TranscriptStore(tmp_path) as store:
        store.add_sample(39, Sample(original_index=39, prompt="p", response="39"))
        store.add_calls(range(40), "g", [call] * 3)
        store.flush()
        once = store.bytes
        assert len(store.read_calls(7)["g"]) == 1
    assert once < len(text)
    with TranscriptStore(tmp_path, read_only=True) as store:
        assert store.read_sample(39) == Sample(original_index=39, prompt="p", response="39")
        assert (len(store), store.bytes) == (1, once)


def test_what_was_written_is_there_for_another_process_and_stays_as_it_is(tmp_path: Path) -> None:
    with TranscriptStore(tmp_path, run="r") as store:
        store.add_sample(0, Sample(response="a"))
        store.flush()
        with TranscriptStore(tmp_path, read_only=True) as reader:
            assert len(reader) == 1
            store.add_sample(1, Sample(response="b"))
            store.flush()
            assert len(reader) == 2
    assert [one.name for one in tmp_path.iterdir()] == [FILE]
    with TranscriptStore(tmp_path, run="r") as store:  # the run goes on
        store.add_sample(0, Sample(response="another"))
        assert (len(store), (store.read_sample(0) or Sample()).response) == (2, "a")


def test_reading_makes_no_file_and_a_file_of_another_kind_is_said(tmp_path: Path) -> None:
    with TranscriptStore(tmp_path, read_only=True) as store:
        assert store.read_sample(0) is None
    assert not list(tmp_path.iterdir())
    (tmp_path / FILE).write_text("not a database, but long enough to look like one" * 50)
    for read_only in (True, False):
        with pytest.raises(RunFolderError, match=r"transcripts\.sqlite: cannot be used"):
            TranscriptStore(tmp_path, read_only=read_only)


def test_another_runs_transcripts_are_removed(tmp_path: Path) -> None:
    for run, expected in (("a", 1), ("a", 1), ("b", 0)):
        with TranscriptStore(tmp_path, run=run) as store:
            assert len(store) == (1 if expected and store.read_sample(0) else 0)
            if run == "a":
                store.add_sample(0, Sample(response="x"))
    with TranscriptStore(tmp_path, read_only=True) as store:
        assert len(store) == 0


def test_of_more_samples_whole_groups_from_all_over_the_input() -> None:
    sizes = {str(number): 8 for number in range(1000)}
    assert choose_groups(sizes, 8000, 8000) is None
    chosen = choose_groups(sizes, 800, 720)
    assert chosen is not None
    places = sorted(map(int, chosen))
    assert len(places) == 90
    gaps = [b - a for a, b in pairwise(places)]
    assert max(gaps) < 3 * 1000 / 90
    assert choose_groups({"a": 10**6}, 100, 90) == set()


# --- what is noted of a run -----------------------------------------------------------------------


class Odd(ChatModel):
    """Fails for the first response; is unreadable first and readable when asked to repair."""

    features = frozenset({"schema"})

    async def answer(self, call: ChatCall) -> str:
        text = str(call.messages)
        if "FAIL" in text:
            raise GradingFailure(ErrorKind.REFUSED, "no")
        return '{"reason": "r", "score": 1}' if "last reply" in text else "hm"


def _grade(
    tmp_path: Path, grader: dict[str, Any], judge: dict[str, Any], rows: list[Any], **options: Any
) -> tuple[Any, TranscriptStore]:
    spec = RewardSpec.from_dict(
        {
            "graders": [{"name": "q", "judge": "j", **grader}],
            "judges": {"j": judge, "other": {"type": "scripted", "script": '{"better": "B"}'}},
            "missing": {"max_missing": 1.0},
            **({"reward": EVENTS} if "scope" in grader else {}),
        }
    )
    folder, rollouts = tmp_path / "run", write_jsonl(tmp_path / "in.jsonl", rows)
    run = grade_rollouts(GradingJob([rollouts], spec, folder, show_progress=False, **options))
    return run, TranscriptStore(folder, read_only=True)


READABLE = '{"reason": "r", "score": 1}'
EVENTS = {"event_weight": 1.0, "outcome_weight": 0.0}
LLM = {"type": "llm", "template": "Good? {response} {reply_form}", "score_range": [0, 1]}
ODD = {"type": f"{__name__}:Odd"}


def test_an_unreadable_reply_its_repair_and_a_failure(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "response": "fine"}, {"prompt": "b", "response": "FAIL"}]
    run, store = _grade(tmp_path, LLM, ODD, rows)
    first, second = store.read_calls(0)["q"]
    assert (first.reply, first.why, first.draw) == ("hm", "first", 0)
    assert "JSON" in first.unread
    assert (second.why, second.unread) == ("repair", "")
    assert "last reply" in second.messages[-1]["content"]
    assert "last reply" not in first.messages[-1]["content"]
    assert "fine" in first.messages[-1]["content"]
    failed, again = store.read_calls(1)["q"]
    assert (failed.why, again.why) == ("first", "redraw")
    assert (failed.kind, failed.error, failed.reply) == ("refused", "no", None)
    assert run.summary["transcripts"]["kept"] == 2
    store.close()


def test_both_orders_votes_and_chunks_are_told_apart(tmp_path: Path) -> None:
    judge = {"type": "scripted", "script": '{"better": "A"}'}
    pair = {"type": "pairwise", "judge": ["j", "other"], "panel": {"votes": 2}}
    _, store = _grade(tmp_path, pair, judge, ROWS)
    parts = {call.part for call in store.read_calls(1)["q"]}
    assert parts == {
        f"{name}/{vote}, {order}"
        for name in ("j", "other")
        for vote in (1, 2)
        for order in ("as_given", "swapped")
    }
    store.close()


def test_a_question_about_a_group_is_kept_for_every_member_and_one_about_a_turn(
    tmp_path: Path,
) -> None:
    judge = {
        "type": "scripted",
        "script": '{"reason": "r", "places": {"response_1": 1, "response_2": 2}}',
    }
    _, store = _grade(tmp_path, {"type": "listwise"}, judge, ROWS)
    assert store.read_calls(0) == store.read_calls(1)
    assert len(store.read_calls(0)["q"]) == 1
    store.close()


def test_turns_of_a_sample(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}]
    judge = {"type": "scripted", "script": READABLE}
    _, store = _grade(tmp_path, {**LLM, "scope": "event"}, judge, [{"messages": turn * 2}])
    store.close()
    reader = RunReader(tmp_path / "run")
    reader.refresh()
    story = reader.tell(reader.row(0) or {}, [])
    assert [len(one["graders"][0]["calls"]) for one in story["turns"]] == [1, 1]
    assert story["kept"] == {"transcript": True, "why": ""}


def test_resuming_asks_no_more_and_keeps_what_was_there(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "response": "fine"}, {"prompt": "b", "response": "FAIL"}]
    _, store = _grade(tmp_path, LLM, ODD, rows)
    before = [store.read_calls(index) for index in (0, 1)]
    store.close()
    for name in ("rewards.jsonl", "summary.json"):
        (tmp_path / "run" / name).unlink()
    _, store = _grade(tmp_path, LLM, ODD, rows)
    assert [store.read_calls(index) for index in (0, 1)] == before
    store.close()


def test_of_many_samples_some_groups_and_failures(tmp_path: Path) -> None:
    rows = [
        {"prompt": str(n // 2), "response": "FAIL" if n == 9 else str(n), "group": str(n // 2)}
        for n in range(40)
    ]
    run, store = _grade(tmp_path, LLM, ODD, rows, keep_transcripts=10)
    kept = [index for index in range(40) if store.read_sample(index) is not None]
    assert len(kept) <= 10
    assert 9 in kept
    assert store.read_calls(9)["q"][0].kind == "refused"
    assert all(bool(store.read_calls(index)) == (index in kept) for index in range(40))
    facts = run.summary["transcripts"]
    assert (facts["kept"], facts["of"]) == (len(kept), 40)
    assert "at most 10 samples" in facts["rule"]
    store.close()


def test_nothing_is_kept_on_wish(tmp_path: Path) -> None:
    run, store = _grade(tmp_path, LLM, ODD, ROWS, keep_transcripts=0)
    store.close()
    assert run.summary["transcripts"] is None
    assert not (tmp_path / "run" / FILE).exists()


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("database or disk is full"), OverflowError("BLOB is full")]
)
def test_a_disk_that_is_full_ends_the_keeping_and_not_the_grading(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(TranscriptStore, "_write", fail)
    run, store = _grade(tmp_path, LLM, {"type": "scripted", "script": READABLE}, ROWS)
    store.close()
    assert (run.rewards, run.summary["transcripts"]["kept"]) == ([1.0, 1.0], 0)
    assert caplog.text.count("is full. No more transcripts are kept") == 1


def test_a_file_that_cannot_be_used_ends_no_grading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_text("no database, but a text that is long enough " * 99)
    spec = RewardSpec.from_dict({"graders": [{"name": "right", "type": "string_match"}]})
    inputs = write_jsonl(tmp_path / "in.jsonl", ROWS)
    run = grade_rollouts(GradingJob([inputs], spec, tmp_path / "run", show_progress=False))
    assert (run.rewards, run.summary["transcripts"]) == ([1.0, 0.0], None)
    assert "no transcripts are kept" in caplog.text


def test_two_questions_with_one_reply_are_both_kept_and_what_is_huge_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcripts, "_MOST_BYTES", 10_000)
    asked = [[{"role": "user", "content": text}] for text in ("one", "two", "three" * 9999)]
    with TranscriptStore(tmp_path) as store:
        store.add_calls(0, "g", [JudgeCall(messages=messages, reply="4") for messages in asked])
        store.add_sample(0, Sample(original_index=0, response="x" * 20_000))
        assert [call.messages for call in store.read_calls(0)["g"]] == asked[:2]
        assert store.read_sample(0) is None


def test_a_real_server_with_a_cache_and_no_key_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with start_mock_here(reply=READABLE) as url:
        judge = {"type": "openai", "model": "m", "base_url": url, "temperature": 0.0,
                 "cache": str(tmp_path / "cache.sqlite")}  # fmt: skip
        for source in ("live", "cache"):
            (place := tmp_path / source).mkdir()
            _, store = _grade(place, LLM, judge, ROWS)
            [call] = store.read_calls(0)["q"]
            assert (call.source, call.reply, call.attempts is not None) == (source, READABLE, True)
            assert call.usage is not None
            store.close()
            assert b"sk-very-secret" not in (place / "run" / FILE).read_bytes()
