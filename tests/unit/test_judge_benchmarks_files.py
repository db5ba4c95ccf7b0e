"""Benchmark files: whose columns they are, every row that is no item, and recorded judgements."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.benchmark_samples import write_sample

from adjudge.datasets.published import parse_preference
from adjudge.errors import ConfigError, ErrorKind
from adjudge.judge_evaluation.benchmarks.items import (
    BENCHMARK_KINDS,
    BenchmarkKind,
    BestOfItem,
    Judgement,
    MissingJudgement,
    PairItem,
    read_judgements,
    write_judgements,
)
from adjudge.judge_evaluation.benchmarks.readers import (
    REWARDBENCH2_SUBSETS,
    detect_benchmark_kind,
    pair_item,
    read_benchmark,
    read_judgebench_judge,
    read_llmbar_judge,
    read_recorded_judge,
    recorded_place,
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
PREFERENCE = {
    "chosen": [ASKED, {"role": "assistant", "content": "r"}],
    "rejected": [ASKED, {"role": "assistant", "content": "s"}],
}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def problems_of(path: Path, good: Any, *rows: Any) -> list[str]:
    """Why ``rows`` are no items, beside a row that is one."""
    found = read_benchmark([written(path, good, *rows)])
    assert len(found.items) == 1
    assert [one.where for one in found.problems] == [f"{path}:{n + 2}" for n in range(len(rows))]
    return [one.reason for one in found.problems]


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


def test_a_row_of_each_shape(tmp_path: Path) -> None:
    [bon] = read_benchmark([written(tmp_path / "x.jsonl", BON)]).items
    assert isinstance(bon, BestOfItem)
    assert (bon.id, bon.subset, bon.correct, bon.answers) == ("a", "Math", 1, ["r", "x", "y", "z"])
    assert bon.conversation(1) == [ASKED, {"role": "assistant", "content": "x"}]
    [llmbar] = read_benchmark([written(tmp_path / "natural.jsonl", LLMBAR)]).items
    assert isinstance(llmbar, PairItem)
    assert (llmbar.subset, llmbar.label, llmbar.texts) == ("natural", "B", ("r", "s"))
    assert llmbar.id == f"{tmp_path / 'natural.jsonl'}:1"
    [bench] = read_benchmark([written(tmp_path / "x.jsonl", JUDGEBENCH)]).items
    assert isinstance(bench, PairItem)
    assert (bench.id, bench.subset, bench.label) == ("p", "mmlu-pro", "B")
    [chosen] = read_benchmark([written(tmp_path / "x.jsonl", PREFERENCE)]).items
    assert isinstance(chosen, PairItem)
    assert (chosen.prompt, chosen.label, chosen.texts) == ([ASKED], "A", ("r", "s"))


def test_llmbar_json_arrays_name_their_elements(tmp_path: Path) -> None:
    path = tmp_path / "neighbor" / "dataset.json"
    path.parent.mkdir()
    path.write_text(json.dumps([LLMBAR, 3, {**LLMBAR, "label": 3}, LLMBAR]), encoding="utf-8")
    found = read_benchmark([path])
    assert found.subsets == ["neighbor"]
    assert [one.where for one in found.items] == [f"{path}:1", f"{path}:4"]
    assert [one.where for one in found.problems] == [f"{path}:2", f"{path}:3"]
    assert found.problems[1].reason == "label: found 3; allowed: 1, 2"


def test_broken_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[{]", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_benchmark([path])
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_benchmark([path])
    path = tmp_path / "x.jsonl"
    path.write_text('{"input": \n' + json.dumps(LLMBAR) + "\n", encoding="utf-8")
    assert len(read_benchmark([path]).problems) == 1


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = [
        {**PREFERENCE, "id": "1", "margin": 2.0},
        {**PREFERENCE, "id": "2", "margin": None},
        {**PREFERENCE, "id": "2", "margin": None},
    ]
    as_text = [{**row, "chosen": json.dumps(row["chosen"])} for row in rows]
    for number, table in enumerate((rows, as_text)):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(table), path)
        found = read_benchmark([path])
        assert [one.margin for one in found.items if isinstance(one, PairItem)] == [2.0, None]
        assert [str(one) for one in found.problems] == [
            f"{path}:3: id: found '2' again; allowed: another than at {path}:2"
        ]


def test_broken_rewardbench2_rows(tmp_path: Path) -> None:
    assert problems_of(
        tmp_path / "x.jsonl",
        BON,
        {**BON, "id": "b", "rejected": ["x", "y"]},
        {**BON, "id": "c", "subset": "Maths"},
        {**BON, "id": "d", "num_correct": 2},
        {**BON, "id": "e", "chosen": []},
        {**BON, "id": 1.5},
        {**BON, "id": "f", "prompt": ["q"]},
        {**BON, "id": "g", "rejected": ["x", "y", 3]},
        BON,
    ) == [
        "chosen, rejected: found 1 and 2 answers; allowed: 1 and 3",
        "subset: found text 'Maths'; allowed: Factuality, Precise IF, Math, Safety, Focus, Ties",
        "num_correct: found 2; allowed: 1, as chosen has",
        "chosen: found a list of 0; allowed: a list of one or more answers",
        "id: found 1.5; allowed: text or a whole number",
        "prompt: found a list of 1; allowed: text",
        "rejected[2]: found 3; allowed: text",
        f"id: found 'a' again; allowed: another than at {tmp_path / 'x.jsonl'}:1",
    ]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"id": "tied:x"}, "allowed: in Ties 'ref:N' or 'tied:N'"),
        ({"id": "tied:03"}, "allowed: in Ties"),
        ({"id": "tied:" + "9" * 5000}, "allowed: in Ties"),
        ({"id": "tied:٣"}, "allowed: in Ties"),
        ({"id": "other:3"}, "allowed: in Ties"),
        ({"id": "ref:3"}, "chosen: found 2 right answers; allowed: 1 of a 'ref' prompt"),
        (
            {"id": "tied:4", "chosen": ["r"]},
            "found 1 right answers; allowed: 2 or more of",
        ),
        ({"id": "tied:4", "rejected": []}, "rejected: found a list of 0"),
    ],
)
def test_broken_ties_rows(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    [reason] = problems_of(tmp_path / "x.jsonl", TIED, {**TIED, **changed})
    assert why in reason


def test_broken_pairs(tmp_path: Path) -> None:
    assert problems_of(
        tmp_path / "x.jsonl",
        LLMBAR,
        {**LLMBAR, "label": True},
        {**LLMBAR, "label": "the first of the two outputs"},
        {**LLMBAR, "output_2": None},
    ) == [
        "label: found True; allowed: 1, 2",
        "label: found text of 28 characters; allowed: 1, 2",
        "output_2: found nothing; allowed: text",
    ]
    [reason] = problems_of(tmp_path / "x.jsonl", LLMBAR, {**LLMBAR, "subset": 2})
    assert reason == "subset: found 2; allowed: text"
    [reason] = problems_of(tmp_path / "x.jsonl", JUDGEBENCH, {**JUDGEBENCH, "label": "A=B"})
    assert reason == "label: found text 'A=B'; allowed: 'A>B', 'B>A'"


SAID = {"role": "assistant", "content": "r"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rejected": PREFERENCE["chosen"]}, "rejected: found the same as chosen"),
        ({"rejected": [ASKED]}, "rejected[-1].role: found text 'user'; allowed: assistant"),
        ({"rejected": [*PREFERENCE["chosen"], ASKED, SAID]}, "chosen: found the beginning of the"),
        ({"rejected": [{"role": "user", "content": "p"}, SAID]}, "found another beginning"),
        ({"rejected": []}, "rejected: found 0 messages"),
        ({"rejected": [ASKED, {"role": "assistant", "content": 3}]}, "content: found 3; allowed"),
        ({"rejected": "[1"}, "rejected: found text of 2 characters"),
        ({"rejected": "[" * 100_000}, "rejected: found text of 100000 characters"),
        ({"rejected": "\n\nHuman: x\n\nAssistant: s"}, "rejected: found another beginning"),
        ({"margin": "2"}, "margin: found text of 1 characters; allowed: a number"),
        ({"margin": True}, "margin: found True"),
        ({"margin": -1}, "margin: found -1; allowed: a finite number, 0 or more"),
        ({"subset": 3}, "subset: found 3; allowed: text"),
        (
            {"rejected": [ASKED, {**SAID, "tool_calls": [CALL]}]},
            "found tool calls",
        ),
        ({"rejected": [{"role": "robot", "content": "q"}, SAID]}, "role: found text 'robot'"),
        (
            {"prompt": "q", "rejected": [{**ASKED, "content": "q "}, SAID]},
            "rejected: found another beginning",
        ),
        (
            {
                side: [{"role": "system", "content": "q"}, turns[1]]
                for side, turns in PREFERENCE.items()
            },
            "found no user's message",
        ),
    ],
)
def test_broken_preferences(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    [reason] = problems_of(tmp_path / "x.jsonl", PREFERENCE, {**PREFERENCE, **changed})
    assert why in reason


@pytest.mark.parametrize(
    "sides",
    [
        {"prompt": "q", "chosen": "r", "rejected": "s"},
        {"prompt": [ASKED], "chosen": "r", "rejected": "s"},
        {"prompt": "q", "chosen": [SAID], "rejected": [{"role": "assistant", "content": "s"}]},
        {"prompt": "another", **PREFERENCE},
        {side: json.dumps(turns) for side, turns in PREFERENCE.items()},
        {"prompt": json.dumps([ASKED]), "chosen": json.dumps([SAID]), "rejected": "s"},
        {"chosen": "\n\nHuman: q\n\nAssistant: r", "rejected": "\n\nHuman: q\n\nAssistant: s"},
        {
            side: [ASKED, {**turns[1], "content": [{"type": "text", "text": turns[1]["content"]}]}]
            for side, turns in PREFERENCE.items()
        },
    ],
)
def test_ways_to_write_a_preference(tmp_path: Path, sides: dict[str, Any]) -> None:
    [item] = read_benchmark([written(tmp_path / "x.jsonl", sides)]).items
    assert isinstance(item, PairItem)
    assert (item.prompt, item.texts) == ([ASKED], ("r", "s"))


def test_what_parquet_and_pandas_fill_in_is_nothing() -> None:
    filled: dict[str, Any] = {**SAID, "tool_calls": [], "name": None}
    row = {**PREFERENCE, "chosen": [ASKED, filled], "subset": None, "margin": math.nan}
    item = pair_item(parse_preference(row, "x:1"), None, "mine")
    assert (item.texts, item.subset, item.margin) == (("r", "s"), "mine", None)


def test_tool_calls_before_the_answer_are_kept(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    found = {"role": "tool", "content": "42"}
    sides = {side: [ASKED, called, found, turns[1]] for side, turns in PREFERENCE.items()}
    [item] = read_benchmark([written(tmp_path / "x.jsonl", sides)]).items
    assert item.prompt == [ASKED, called, found]


def test_a_text_may_begin_like_a_list(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": "[Verse 1] la", "rejected": "no"}
    [item] = read_benchmark([written(tmp_path / "x.jsonl", row)]).items
    assert isinstance(item, PairItem)
    assert item.texts == ("[Verse 1] la", "no")


def test_conversations_that_part_early_have_no_texts(tmp_path: Path) -> None:
    longer = [ASKED, {"role": "assistant", "content": "s"}, ASKED, SAID]
    row = {"chosen": [ASKED, SAID], "rejected": longer}
    [item] = read_benchmark([written(tmp_path / "x.jsonl", row)]).items
    assert isinstance(item, PairItem)
    assert item.texts is None
    assert item.conversation("B") == longer


def test_refusals(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", {"a": 1})
    with pytest.raises(ConfigError, match="columns fit no benchmark .found a;"):
        read_benchmark([path])
    with pytest.raises(ConfigError, match=r"no row is an item .*input: found nothing"):
        read_benchmark([written(path, {**LLMBAR, "input": None})], "llmbar")
    with refuses("benchmark"):
        read_benchmark([path], "mtbench")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ConfigError, match="no such file"):
        read_benchmark([tmp_path / "none.jsonl"])
    assert detect_benchmark_kind({**PREFERENCE, "subset": "s"}, "x:1") == "preference"
    assert detect_benchmark_kind({**BON, "subset": "s"}, "x:1") == "rewardbench2"


def test_a_file_given_twice_has_its_items_once(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "p.jsonl", "preference", 3)
    found = read_benchmark([path, path])
    assert (len(found.items), len(found.problems)) == (3, 3)
    assert "allowed: another than at" in found.problems[0].reason


def test_judgements_survive_the_file(tmp_path: Path) -> None:
    judged = [
        Judgement(subset="s", id="1", scores=[1.0, MissingJudgement(ErrorKind.TIMEOUT, "late")]),
        Judgement(subset="s", id="2", verdicts=["A", MissingJudgement(ErrorKind.UNPARSABLE)]),
        Judgement(subset="s", id="3", verdicts=["tie", "B"]),
    ]
    path = tmp_path / "judged.jsonl"
    write_judgements(path, judged)
    assert read_judgements(path, Judgement) == judged
    with path.open("a") as file:
        file.write('{"subset": "s", "id": "4", "verdicts": ["C", "A"]}\n')
    with pytest.raises(ConfigError, match=r"judged.jsonl:4: is not a judgement: Invalid enum"):
        read_judgements(path, Judgement)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_judgements(tmp_path / "none.jsonl", Judgement)


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
    replies = ("(a) is short. Therefore, Output (b) is better.", "Output (b)")
    rounds = [
        {"completion": [text, "stop"]} for text in (*replies, "Neither.", "Output (a).\nIt is.")
    ]
    results = [
        dict(zip(("swap = False", "swap = True"), rounds[at : at + 2], strict=True))
        for at in (0, 2)
    ]
    path.write_text(json.dumps([{**LLMBAR, "results": [one]} for one in results]), encoding="utf-8")
    unscored = read_llmbar_judge(path)[1]  # no winner was read: the benchmark's pattern reads one
    assert unscored[0].verdicts == ["B", "A"]
    assert isinstance(unscored[1].verdicts[0], MissingJudgement)
    assert unscored[1].verdicts[1] == "B"
    llmbar_file(path, ("1", "3"))
    with pytest.raises(ConfigError, match="not a file of LLMBar's judges"):
        read_llmbar_judge(path)
    path.write_text(json.dumps([LLMBAR]), encoding="utf-8")
    with pytest.raises(ConfigError, match="not a file of LLMBar's judges"):
        read_llmbar_judge(path)


LAYOUTS = (
    "{subset}/evaluators/GPT-4/Vanilla/result.json",
    "{subset}/judges/gpt-4_vanilla.json",
    "{subset}/GPT-4.Vanilla.json",
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_of_recorded_judges_gives_one_number(tmp_path: Path, layout: str) -> None:
    right, wrong = ("2", "2"), ("1", "1")
    paths = [
        llmbar_file(tmp_path / layout.format(subset="GPTInst"), right, right, right, wrong),
        llmbar_file(tmp_path / layout.format(subset="Manual"), wrong, wrong),
    ]
    name, benchmark, judged = read_recorded_judge(paths)
    assert name.lower().replace(".", "_") == "gpt-4_vanilla"
    assert benchmark.subsets == ["GPTInst", "Manual"]
    report = score_benchmark(benchmark, judged, judge=name, resamples=2).overall
    assert report.share.low == pytest.approx(0.375)  # of subsets; of all items it would be 0.5


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("llmbar/gpt-4_vanilla/natural.json", ("natural", "gpt-4_vanilla")),
        ("judges/llmbar/natural/gpt-4.json", ("natural", "gpt-4")),
        ("Natural/Evaluators/GPT-4/result.json", ("Natural", "GPT-4")),
        ("mine/part.json", ("mine", "part")),
    ],
)
def test_a_path_names_subset_and_judge(path: str, place: tuple[str, str]) -> None:
    assert recorded_place(Path(path)) == place


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("a/natural/j.json", "b/natural/j.json"), "the same subset .natural. and judge .j. as"),
        (("natural/j.json", "natural/k.json"), "are of several judges .found j, k."),
        (("natural/Vanilla/result.json",), "does not say whose verdicts on which subset"),
    ],
)
def test_unclear_paths_are_refused(tmp_path: Path, names: Any, complaint: str) -> None:
    paths = [llmbar_file(tmp_path / name, ("1", "2")) for name in names]
    with pytest.raises(ConfigError, match=complaint):
        read_recorded_judge(paths)


def test_the_verdict_follows_what_a_judge_wrote_for_itself(tmp_path: Path) -> None:
    path = llmbar_file(tmp_path / "natural" / "judges" / "x.json", ("1", "2"))
    [row] = json.loads(path.read_text())
    debated = {order: {"winner": "2"} for order in ("swap = False", "swap = True")}
    row["results"] = [["1. Is it short?", "stop"], *row["results"], debated]
    path.write_text(json.dumps([row]), encoding="utf-8")
    assert read_llmbar_judge(path)[1][0].verdicts == ["B", "B"]
    assert read_llmbar_judge(path, entry="first")[1][0].verdicts == ["A", "B"]


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
    with pytest.raises(ConfigError, match="each file of JudgeBench's judges is scored by itself"):
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
