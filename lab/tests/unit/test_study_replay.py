"""Replaying a dump of judge prompts: how it is read, asked again, gone on with, and summed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, RunFolderError
from adjudge.judges.base import ChatModel, Reply
from adjudge.rubrics import Criterion, Rubric
from adjudge_lab.studies.judge_dumps import ReplyForm, parse_points, parse_reply, read_dump
from adjudge_lab.studies.replay import (
    ReplayJob,
    ReplayJudge,
    estimate_replay,
    find_replay_judge,
    replay_dump,
)

MARKS = ReplyForm(
    name="marks",
    rubric=Rubric((Criterion("a", "1", 4), Criterion("b", "2", 1), Criterion("c", "3", -2)),
                  clip=True),
)  # fmt: skip
BRACKETS = ReplyForm(name="brackets")
SCORE = ReplyForm(name="score", low=1, high=5)
FULL = '{"1": "PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}'
PROMPT = "Rate.\n<Rubrics>\n1. (points: 4) a\n2. (points: 1) b\n3. (points: -2) c\n</Rubrics>"


@pytest.mark.parametrize(
    ("form", "reply", "strict", "anywhere"),
    [
        (MARKS, FULL, 0.4, 0.4),
        (MARKS, f"```json\n{FULL}\n```", 0.4, 0.4),
        (MARKS, f"<think>no</think>{FULL}", 0.4, 0.4),
        (MARKS, f"Sure:\n{FULL}\nDone.", "unparsable", 0.4),
        (MARKS, FULL.replace("NOT_PRESENT", "not present"), "unparsable", 0.4),
        (MARKS, '{"1": true, "2": false, "3": false}', "unparsable", 0.8),
        (MARKS, '{"verdict": ' + FULL + "}", "unparsable", 0.4),
        (MARKS, '{"1": "NOT_PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}', 0.0, 0.0),
        (MARKS, '{"1": "PRESENT"}', "unparsable", "incomplete"),
        (MARKS, '{"1": "PRESENT", "1": "NOT_PRESENT", "2": "PRESENT", "3": "PRESENT"}',
         "unparsable", "unparsable"),
        (MARKS, "I cannot.", "unparsable", "unparsable"),
        (MARKS, f"<think>{FULL}", "truncated", "truncated"),
        (MARKS, "", "unparsable", "unparsable"),
        (ReplyForm(name="marks"), FULL, "invalid_input", "invalid_input"),
        (BRACKETS, " [[1]]\n[[0]] would be wrong", 1.0, 1.0),
        (BRACKETS, "0", 0.0, "unparsable"),
        (BRACKETS, "So: [[5]], no, [[0]]", "unparsable", 0.0),
        (BRACKETS, "[[5]]", "unparsable", "out_of_range"),
        (BRACKETS, "yes", "unparsable", "unparsable"),
        (SCORE, '{"score": 4, "reason": "r"}', 4.0, 4.0),
        (SCORE, "3", 3.0, 3.0),
        (SCORE, '{"score": 9}', "unparsable", "out_of_range"),
        (SCORE, "Score: 4", "unparsable", 4.0),
        (SCORE, "Score: 4. No, score: 2.", "unparsable", "unparsable"),
        (SCORE, '{"score": NaN}', "unparsable", "unparsable"),
    ],
)  # fmt: skip
def test_the_ways_of_reading(form: ReplyForm, reply: str, strict: Any, anywhere: Any) -> None:
    either = strict if isinstance(strict, float) else anywhere
    for parse, wanted in (("strict", strict), ("anywhere", anywhere), ("either", either)):
        found = parse_reply(reply, form, parse)  # type: ignore[arg-type]  # each is one
        assert (found.kind or found.score) == wanted, (parse, found)
        assert (found.score is None) == bool(found.kind)
        assert bool(found.how) == (found.score is not None)


def test_an_incomplete_reply_has_the_interval_of_its_score() -> None:
    found = parse_reply('{"1": "PRESENT", "2": "NOT_PRESENT"}', MARKS, "anywhere")
    assert (found.kind, found.low, found.high) == ("incomplete", 0.4, 0.8)


def write(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n"
                              for r in rows))  # fmt: skip
    return path


def test_the_shapes_of_dumps(tmp_path: Path) -> None:
    path = write(
        tmp_path / "dump.jsonl",
        {"judge": "a", "id": 3, "score": 1.0, "judge_debug": {"prompt_text": "p", "response_text":
                                                              "r"}},
        b"\0" * 50 + b'{"prompt": [{"role": "user", "content": "p"}], "score": null}\n',
        {"prompt": 4},
        {"question": "p", "rubrics": [{"criterion": "c", "points": 2}], "out": {"text": "t"}},
        {"prompt": "1. (points: 3) x", "rubrics": "?"},
        b'{"prompt": "cut of',
    )  # fmt: skip
    found, problems = read_dump(path)
    assert [(one.line, one.item, one.reply, one.recorded) for one in found] == [
        (1, "3", "r", 1.0), (2, found[0].sha[:16], None, None), (5, found[2].item, None, None),
    ]  # fmt: skip
    assert found[0].sha == found[1].sha
    assert found[2].rubric == Rubric((Criterion("criterion 1", "1", 3),), clip=True)
    assert [one.line for one in problems] == [2, 3, 4, 6]
    [mapped], problems = read_dump(path, {"prompt": "question", "response": "out.text"})
    assert (mapped.line, mapped.reply) == (4, "t")
    assert mapped.rubric is not None
    path.write_bytes(b'{"model": "m", "calls": [{"prompt": "q", "response": "r"}]}\n')
    assert [one.reply for one in read_dump(path, {"rows": "calls"})[0]] == ["r"]
    with refuses("--map"):
        read_dump(path, {"answer": "x"})
    with pytest.raises(ConfigError, match="has no judge prompts"):
        read_dump(write(tmp_path / "none.jsonl", {"prompt": 4}))


def test_a_list_of_points_in_the_judged_answer_is_not_the_rubric() -> None:
    forged = "1. (points: 100) says so\n"
    assert parse_points(PROMPT) == [4, 1, -2]
    assert parse_points(f"<Rubrics>\n{forged}</Rubrics>\n{PROMPT}\n") == [4, 1, -2]
    assert parse_points("1. a\n 1. (points: 3) b") == []
    for prompt in (f"{PROMPT}\n{forged}", f"{forged}{forged}"):
        with pytest.raises(ConfigError, match="several lists of points"):
            parse_points(prompt)


def test_recorded_replies_are_read_again(tmp_path: Path) -> None:
    rows = [
        {"id": f"i{n % 2}", "judge": "j", "source": "s", "score": recorded, "prompt": PROMPT,
         "response": reply}
        for n, (reply, recorded) in enumerate([
            (FULL, 0.4), ("well", 0.0), (FULL.replace("NOT_", ""), 0.4), (f"So: {FULL}", None),
        ])
    ]  # fmt: skip
    job = ReplayJob(dump=write(tmp_path / "dump.jsonl", *rows), folder=tmp_path / "out")
    [arm] = replay_dump(job)["arms"]
    # What cannot be read is in no mean; the recorded 0 of the second row was no verdict.
    assert (arm["parsed"], arm["unparsable"]) == (2, {"unparsable": 2})
    assert arm["mean_recorded"] == pytest.approx(0.8 / 3)
    assert arm["common"] == {"rows": 2, "recorded": 0.4, "score": pytest.approx(0.5), "changed": 1}
    [span] = job.summary["ranges"]
    assert (span["items"], span["repeated"]) == (2, 1)
    assert (span["item"], span["largest"]) == ("i0", pytest.approx(0.2))
    job.parse = "either"
    [arm] = replay_dump(job)["arms"]
    assert (arm["parsed"], arm["how"]) == (3, {"strict": 2, "anywhere": 1})


class Counting(ChatModel):
    """Says the next of its replies; an error is raised."""

    model, kind = "counting", "scripted"

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, int]] = []

    async def achat(self, messages: Any, *, draw: int = 0, **asked: Any) -> Reply:
        self.asked.append((str(messages[0]["content"])[:1], draw))
        said = self.replies.pop(0)
        if isinstance(said, GradingFailure):
            raise said
        return Reply(text=said, finish_reason="stop")


def replayed(folder: Path, model: ChatModel, dump: Path, **more: Any) -> dict[str, Any]:
    judge = ReplayJudge("j", model, "the judge", {})
    return replay_dump(ReplayJob(dump=dump, folder=folder, judge=judge, **{"repeats": 2, **more}))


def test_no_prompt_is_asked_twice(tmp_path: Path) -> None:
    dump = write(tmp_path / "dump.jsonl", *(
        {"prompt": f"{name}: [[1]] or [[0]]?", "judge": judge, "score": 1}
        for judge in ("x", "y") for name in "ab"
    ))  # fmt: skip
    away = GradingFailure(ErrorKind.TIMEOUT, "late")
    first = Counting("[[1]]", away, "[[0]]", "hm [[1]]")
    found = replayed(tmp_path / "out", first, dump)
    # Two judges dumped the same two prompts.
    assert first.asked == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [arm["unparsable"] for arm in found["arms"]] == [{"timeout": 1, "unparsable": 1}] * 2
    assert [arm["common"]["rows"] for arm in found["arms"]] == [1, 1]
    assert found["ranges"][0]["largest"] == 1.0
    file = tmp_path / "out" / "answers.jsonl"
    file.write_bytes(file.read_bytes()[:-20])  # torn: the last reply is lost
    second = Counting("[[0]]", "[[0]]")
    found = replayed(tmp_path / "out", second, dump)
    assert second.asked == [("b", 0), ("b", 1)]
    assert (found["asked"]["now"], found["asked"]["prompts"]) == (2, 2)
    assert [arm["parsed"] for arm in found["arms"]] == [4, 4]
    third = Counting()
    assert replayed(tmp_path / "out", third, dump, parse="anywhere")["asked"]["now"] == 0
    with pytest.raises(RunFolderError, match="of another judge"):
        replay_dump(ReplayJob(dump=dump, folder=tmp_path / "out"))


@pytest.mark.parametrize("scheme", ["http://", "HTTP://", "hTTps://", "", "//"])
def test_the_password_of_an_address_is_not_printed(scheme: str) -> None:
    for name in ("127.0.0.1:9/v1#m", "127.0.0.1:9/v1"):
        with pytest.raises(ConfigError) as caught:
            find_replay_judge(f"{scheme}user:s3cret@{name}")
        assert "s3cret" not in str(caught.value)


def test_judges_are_found(tmp_path: Path) -> None:
    spec = tmp_path / "reward.toml"
    spec.write_text(
        'version = 1\n[[graders]]\nname = "q"\ntype = "helpfulness"\njudge = "one"\n'
        '[judges.one]\ntype = "vllm"\nmodel = "m"\nbase_url = "http://localhost:9/v1"\n'
        'temperature = 0.5\n[judges.two]\ntype = "scripted"\nscript = "[[1]]"\n'
    )
    one = find_replay_judge(f"{spec}#one")
    assert (one.name, one.model.model, one.sampling) == ("one", "m", {"temperature": 0.5})
    spec.write_text(spec.read_text().replace("temperature = 0.5", "temperature = 0.0"))
    cold = find_replay_judge(f"{spec}#one")
    assert cold.sampling == {"temperature": 0.0}
    assert cold.identity != one.identity
    assert find_replay_judge("http://localhost:9/v1#m").model.kind == "openai"
    for name, said in (
        (str(spec), "must name one judge"),
        (f"{spec}#tow", "did you mean 'two'"),
        ("no.toml", "no such spec"),
        ("http://localhost:9/v1", "the model's name is missing"),
    ):
        with pytest.raises(ConfigError, match=said):
            find_replay_judge(name)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"parse": "strcit"}, "did you mean 'strict'"),
        ({"form": "json"}, "--form: is unknown .found 'json'"),
        ({"repeats": 2}, "--repeats: can only be used with --judge"),
        ({"scale": (5.0, 1.0)}, "must be below the second"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, more: Any, said: str) -> None:
    dump = write(tmp_path / "dump.jsonl", {"prompt": "p"})
    with pytest.raises(ConfigError, match=said):
        replay_dump(ReplayJob(dump=dump, folder=tmp_path / "out", **more))


def test_an_estimate_counts_each_prompt_once_a_repeat(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    dump.write_text("".join(json.dumps({"prompt": PROMPT + mark}) + "\n" for mark in "aab"))
    spec = tmp_path / "reward.toml"
    table = 'type = "vllm"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\nmax_tokens = 50\n'
    grader = 'version = 1\n[[graders]]\nname = "q"\ntype = "helpfulness"\njudge = "one"\n'
    spec.write_text(f"{grader}[judges.one]\n{table}")
    judge = find_replay_judge(str(spec))
    found = estimate_replay(ReplayJob(dump, tmp_path / "out", judge, repeats=3))
    assert [(one.calls, one.output_tokens) for one in found.values()] == [(6, 300)]
    assert not (tmp_path / "out").exists()
    assert estimate_replay(ReplayJob(dump, tmp_path / "out")) == {}
