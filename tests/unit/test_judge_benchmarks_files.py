"""Benchmark files: whose columns they are, every row that is no item, and recorded judgements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.rows import write_jsonl
from tests.unit.helpers.benchmark_samples import write_sample

from adjudge.errors import ConfigError, ErrorKind
from adjudge.files import JsonlLog
from adjudge.judge_evaluation.benchmarks.items import (
    BENCHMARK_KINDS,
    BenchmarkKind,
    Judgement,
    MissingJudgement,
    read_judgements,
)
from adjudge.judge_evaluation.benchmarks.readers import (
    REWARDBENCH2_SUBSETS,
    detect_benchmark_kind,
    read_benchmark,
    read_judgebench_judge,
    read_llmbar_judge,
    read_recorded_judge,
)
from adjudge.judge_evaluation.benchmarks.scoring import score_benchmark

BON = {"id": "a", "prompt": "q", "chosen": ["r"], "rejected": ["x", "y", "z"], "subset": "Math"}
TIED = {"id": "tied:3", "prompt": "q", "chosen": ["r", "s"], "rejected": ["x"], "subset": "Ties"}
LLMBAR = {"input": "q", "output_1": "r", "output_2": "s", "label": 2}
JUDGEBENCH = {
    "pair_id": "p",
    "source": "mmlu-pro-law",
    "question": "q",
    "response_A": "r",
    "response_B": "s",
    "label": "B>A",
}
ASKED = {"role": "user", "content": "q"}
SAID = {"role": "assistant", "content": "r"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
PREFERENCE = {
    "chosen": [ASKED, {"role": "assistant", "content": "r"}],
    "rejected": [ASKED, {"role": "assistant", "content": "s"}],
}


def written(path: Path, *rows: Any) -> Path:
    return write_jsonl(path, rows)


@pytest.mark.parametrize("kind", BENCHMARK_KINDS)
def test_a_file_of_each_kind_is_read_as_what_it_is(tmp_path: Path, kind: BenchmarkKind) -> None:
    found = read_benchmark([write_sample(tmp_path / "x.jsonl", kind)])
    assert found.kind == kind
    assert not found.problems
    counts = {name: sum(one.subset == name for one in found.items) for name in found.subsets}
    assert min(counts.values()) >= 12
    if kind == "rewardbench2":
        assert list(counts) == list(REWARDBENCH2_SUBSETS)
        assert counts["Ties"] == 24  # 12 prompts, each in two forms


def test_llmbar_json_arrays_name_their_elements(tmp_path: Path) -> None:
    path = tmp_path / "neighbor" / "dataset.json"
    path.parent.mkdir()
    path.write_text(json.dumps([LLMBAR, 3, {**LLMBAR, "label": 3}, LLMBAR]), encoding="utf-8")
    found = read_benchmark([path])
    assert found.subsets == ["neighbor"]
    assert [one.where for one in found.items] == [f"{path}:1", f"{path}:4"]
    assert [one.where for one in found.problems] == [f"{path}:2", f"{path}:3"]
    assert found.problems[1].reason == "label: found 3; allowed: 1, 2"


@pytest.mark.parametrize(
    ("good", "changed", "key"),
    [
        (BON, {"id": "b", "rejected": ["x", "y"]}, "chosen, rejected"),
        (BON, {"id": "c", "subset": "Maths"}, "subset"),
        (BON, {"id": 1.5}, "id"),
        (BON, {"id": "g", "rejected": ["x", "y", 3]}, "rejected[2]"),
        (BON, {}, "id: found 'a' again"),
        (TIED, {"id": "tied:x"}, "id"),
        (TIED, {"id": "tied:" + "9" * 5000}, "id"),
        (TIED, {"id": "other:3"}, "id"),
        (TIED, {"id": "ref:3"}, "chosen: found 2 right answers"),
        (TIED, {"id": "tied:4", "chosen": ["r"]}, "chosen: found 1 right answers"),
        (LLMBAR, {"label": True}, "label"),
        (LLMBAR, {"label": "the first of the two outputs"}, "label: found text of 28 characters"),
        (LLMBAR, {"subset": 2}, "subset"),
        (JUDGEBENCH, {"label": "A=B"}, "label"),
        (PREFERENCE, {"rejected": PREFERENCE["chosen"]}, "rejected: found the same as chosen"),
        (PREFERENCE, {"rejected": [*PREFERENCE["chosen"], ASKED, SAID]}, "chosen: found the beg"),
        (PREFERENCE, {"rejected": "[" * 100_000}, "rejected: found text of 100000 characters"),
        (PREFERENCE, {"rejected": "\n\nHuman: x\n\nAssistant: s"}, "rejected: found another beg"),
        (PREFERENCE, {"margin": -1}, "margin: found -1"),
        (PREFERENCE, {"rejected": [ASKED, {**SAID, "tool_calls": [CALL]}]}, "rejected: found tool"),
        (PREFERENCE, {side: [{**ASKED, "role": "system"}, turns[1]]
                      for side, turns in PREFERENCE.items()}, "chosen: found no user's"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named(tmp_path: Path, good: Any, changed: Any, key: str) -> None:
    path = written(tmp_path / "x.jsonl", good, {**good, **changed})
    found = read_benchmark([path])
    assert len(found.items) == 1
    [problem] = found.problems
    assert problem.where == f"{path}:2"
    assert problem.reason.startswith(key)


def test_refusals(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", {"a": 1})
    with pytest.raises(ConfigError, match="columns fit no benchmark .found a;"):
        read_benchmark([path])
    with pytest.raises(ConfigError, match=r"no row is an item .*input: found nothing"):
        read_benchmark([written(path, {**LLMBAR, "input": None})], "llmbar")
    with refuses("--benchmark"):
        read_benchmark([path], "mtbench")
    with pytest.raises(ConfigError, match="no such file"):
        read_benchmark([tmp_path / "none.jsonl"])
    assert detect_benchmark_kind({**PREFERENCE, "subset": "s"}, "x:1") == "preference"
    assert detect_benchmark_kind({**BON, "subset": "s"}, "x:1") == "rewardbench2"


def test_judgements_survive_the_file(tmp_path: Path) -> None:
    judged = [
        Judgement(subset="s", id="1", scores=[1.0, MissingJudgement(ErrorKind.TIMEOUT, "late")]),
        Judgement(subset="s", id="2", verdicts=["A", MissingJudgement(ErrorKind.UNPARSABLE)]),
        Judgement(subset="s", id="3", verdicts=["tie", "B"]),
    ]
    path = tmp_path / "judged.jsonl"
    JsonlLog(path).rewrite(judged)
    assert read_judgements(path) == judged
    with path.open("a") as file:
        file.write('{"subset": "s", "id": "4", "verdicts": ["C", "A"]}\n')
    with pytest.raises(ConfigError, match=r"judged.jsonl:4: verdicts.0.: Invalid enum"):
        read_judgements(path)
    with pytest.raises(ConfigError, match="no such file"):
        read_judgements(tmp_path / "none.jsonl")


def llmbar_file(path: Path, *winners: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {**LLMBAR, "results": [dict(zip(("swap = False", "swap = True"), rounds, strict=True))]}
        for rounds in (
            [{"completion": ["…", "stop"], "winner": one} for one in pair] for pair in winners
        )
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_recorded_llmbar_judges(tmp_path: Path) -> None:
    path = llmbar_file(tmp_path / "natural" / "judges" / "x.json", ("1", "2"), (None, "1"))
    benchmark, judged = read_llmbar_judge(path)
    assert benchmark.subsets == ["natural"]
    assert judged[0].verdicts == ["A", "B"]
    assert isinstance(judged[1].verdicts[0], MissingJudgement)
    assert judged[1].verdicts[0].kind is ErrorKind.UNPARSABLE
    assert judged[1].verdicts[1] == "A"
    llmbar_file(path, ("1", "3"))
    with pytest.raises(ConfigError, match="not a file of LLMBar's judges"):
        read_llmbar_judge(path)
    unread = {"completion": ["Output (b) is better.", "stop"]}  # no winner was read from it
    for results in ({}, {"results": [{"swap = False": unread, "swap = True": unread}]}):
        path.write_text(json.dumps([{**LLMBAR, **results}]), encoding="utf-8")
        with pytest.raises(ConfigError, match="not a file of LLMBar's judges"):
            read_llmbar_judge(path)


LAYOUTS = (
    "{subset}/evaluators/GPT-4/Vanilla/result.json",
    "{subset}/judges/GPT-4_Vanilla.json",
    "judges/llmbar/{subset}/Judges/GPT-4_Vanilla.json",
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_path_names_subset_and_judge(tmp_path: Path, layout: str) -> None:
    right, wrong = ("2", "2"), ("1", "1")
    paths = [
        llmbar_file(tmp_path / layout.format(subset="GPTInst"), right, right, right, wrong),
        llmbar_file(tmp_path / layout.format(subset="Manual"), wrong, wrong),
    ]
    name, benchmark, judged = read_recorded_judge(paths)
    assert name == "GPT-4_Vanilla"
    assert benchmark.subsets == ["GPTInst", "Manual"]
    report = score_benchmark(benchmark, judged, resamples=2).overall
    assert report.at_least == pytest.approx(0.375)  # of subsets; of all items it would be 0.5


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("a/natural/judges/j.json", "b/natural/judges/j.json"), "natural/j, natural/j"),
        (("natural/judges/j.json", "natural/judges/k.json"), "natural/j, natural/k"),
        (("natural/Vanilla/result.json",), "natural/Vanilla/result"),
        (("natural/j.json",), "natural/j"),
    ],
)
def test_unclear_paths_are_refused(tmp_path: Path, names: Any, complaint: str) -> None:
    paths = [llmbar_file(tmp_path / name, ("1", "2")) for name in names]
    with pytest.raises(ConfigError, match=f"found .*{complaint}"):
        read_recorded_judge(paths)


def judgebench_file(path: Path, *judgments: Any) -> Path:
    rows = [
        {**JUDGEBENCH, "pair_id": f"p{n}", "judge_name": "j", "judgments": one}
        for n, one in enumerate(judgments)
    ]
    return written(path, *rows)


def test_recorded_judgebench_judges(tmp_path: Path) -> None:
    decided = {
        said: {"judgment": {"response": "…"}, "decision": said}
        for said in ("A>B", "B>A", "A=B", "A<B", None)
    }
    pairs = (("B>A", "A>B"), ("B>A", "A=B"), ("A>B", "A>B"), (None, "A>B"), ("A<B", "B>A"))
    path = judgebench_file(
        tmp_path / "dataset=judgebench,judge_name=arena_hard,judge_model=m-1.jsonl",
        *([decided[one] for one in pair] for pair in pairs),
        [None, decided["A>B"]],
    )
    name, benchmark, judged = read_recorded_judge([path])
    assert (name, benchmark.kind, benchmark.subsets) == (
        "arena_hard_m-1",
        "judgebench",
        ["mmlu-pro"],
    )
    said = [[getattr(v, "kind", v) for v in one.verdicts] for one in judged]
    unread = ErrorKind.UNPARSABLE
    assert said == [
        ["B", "B"],
        ["B", "tie"],
        ["A", "B"],
        [unread, "B"],
        [unread, "A"],
        [ErrorKind.NOT_SAMPLED, "B"],
    ]
    with pytest.raises(ConfigError, match="does not say whose verdicts"):
        read_recorded_judge([path, path])


def test_one_order_of_judgebench(tmp_path: Path) -> None:
    scored = {"judgment": {"scores": [1.5, 2.5]}, "decision": "B>A"}
    path = judgebench_file(tmp_path / "x.jsonl", [scored], [{"decision": "B>A"}], [scored, scored])
    _, judged = read_judgebench_judge(path)
    assert judged[0].scores == [1.5, 2.5]
    assert judged[1].verdicts == ["B", MissingJudgement(ErrorKind.NOT_SAMPLED, NO_REPLY)]
    assert judged[2].verdicts == ["B", "A"]
    for broken in ([], [1], [{"judgment": None}], "B>A", [scored] * 3):
        judgebench_file(path, broken)
        with pytest.raises(ConfigError, match="not a file of JudgeBench's judges"):
            read_judgebench_judge(path)


NO_REPLY = "the benchmark recorded no reply"
