"""Judges that were trained on what they are validated on are called CONTAMINATED."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.helpers.benchmark_judges import Knower
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.datasets.synthetic import SyntheticSettings, synthetic_preferences
from adjudge.graders.llm.trained_judge_card import CARD_FILE, SPEC_FILE, JudgeCard, read_card
from adjudge.judge_evaluation.benchmarks.benchmark_data import (
    BenchmarkData,
    hash_file,
    sample_rows,
    write_sample,
)
from adjudge.judge_evaluation.benchmarks.contamination import check_contamination
from adjudge.judge_evaluation.benchmarks.items import benchmark_as_pairs
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark

pytestmark = pytest.mark.slow  # whole commands, one after the other

KNOWER = f"{Knower.__module__}:{Knower.__qualname__}"
SIDES = ("chosen", "rejected")
REWARD = f'[[graders]]\nname = "g"\ntype = "{KNOWER}"\n[reward]\nnormalise = false\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def judge(name: str, *, train: list[Path] | None = None, **more: Any) -> str:
    """The folder of a judge that was trained on some files."""
    folder = Path(name)
    folder.mkdir()
    (folder / SPEC_FILE).write_text(REWARD)
    facts = [hash_file(path) for path in train or []]
    data = {"train": facts, "val": [], **more.pop("data", {})}
    card = JudgeCard(
        **{
            "adjudge": "0",
            "kind": "generative",
            "method": "sft",
            "mode": None,
            "label": name,
            "created": "",
            "base": {"path": "tiny"},
            "config": {},
            "validation": {},
            "max_length": 9,
            **more,
            "data": data,
        }
    )
    (folder / CARD_FILE).write_bytes(msgspec.json.encode(card))
    return name


def seen(name: str, data: Path) -> tuple[dict[str, Any], str, str]:
    """What is said of contamination: in the summary, on the terminal, in the report."""
    found = CliRunner().invoke(command_line(), ["eval", "judge", name, "--data", str(data)])
    assert found.exit_code == 0, found.output
    [folder] = Path("runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    report = (folder / "report.html").read_text()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    contamination: dict[str, Any] = summary["judges"][0]["contamination"]
    return contamination, found.stdout, report


def write(name: str, rows: list[dict[str, Any]]) -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_that_were_trained_on_are_found_in_another_shape() -> None:
    rows = sample_rows("llmbar", 6)
    asked = write("llmbar.jsonl", rows)
    learned = [
        {
            "prompt": [{"role": "user", "content": row["input"]}],
            "a": row["output_2"],
            "b": row["output_1"],
            "label": "B" if row["label"] == 1 else "A",
        }
        for row in rows
        if row["subset"] == "GPTOut"
    ]
    found, shown, report = seen(judge("j", train=[write("train.jsonl", learned)]), asked)
    assert found["compared"] == "rows"
    assert found["items"]["GPTOut"] == 6
    assert shown.startswith("CONTAMINATED: j was trained on")
    assert "<b>CONTAMINATED</b>" in report


def test_training_files_of_published_shapes_are_read_as_training_reads_them() -> None:
    rows = sample_rows("preference", 8)
    asked = write("p.jsonl", rows)
    texts = [[one["content"] for one in row[side]] for row in rows for side in SIDES]
    told = [f"\n\nHuman: {prompt}\n\nAssistant: {answer}" for prompt, answer in texts]
    pairs = zip(told[::2], told[1::2], strict=True)
    talks = write("hh.jsonl", [dict(zip(SIDES, pair, strict=True)) for pair in pairs])
    rated = [{"prompt": text[0], "response": text[1], "helpfulness": 4} for text in texts]
    for number, path in enumerate((talks, write("helpsteer.jsonl", rated))):
        folder = Path(judge(f"j{number}", mode="pairwise", train=[path]))
        found = check_contamination(
            BenchmarkData(read_benchmark([asked]), []), folder, read_card(folder)
        )
        assert (found.compared, found.items) == ("rows", {"p": 8})


def test_a_judge_trained_elsewhere_is_clean() -> None:
    asked = write_sample(Path("rb2.jsonl"), "rewardbench2")
    made = synthetic_preferences(SyntheticSettings(n=50)).rows
    learned = write("t.jsonl", [{"chosen": one.chosen, "rejected": one.rejected} for one in made])
    found, shown, report = seen(judge("j", train=[learned]), asked)
    assert (found["compared"], found["seen"]) == ("rows", 0)
    assert "CONTAMINATED" not in shown + report
    assert "compared with 50 rows" in report


def test_the_benchmark_itself_as_training_data() -> None:
    asked = write_sample(Path("rb2.jsonl"), "rewardbench2")
    found, _, _ = seen(judge("j", train=[asked]), asked)
    assert found["seen"] == 84
    assert sum(found["how"].values()) == 84


def test_ids_are_known_where_the_items_are_asked_as_pairs() -> None:
    rows = [row for row in sample_rows("rewardbench2") if row["subset"] != "Ties"]
    asked = read_benchmark([write("rb2.jsonl", rows)])
    folder = Path(judge("j", trained_ids=("rewardbench2:Math-3", "Precise IF-11")))
    card = read_card(folder)
    found = check_contamination(BenchmarkData(benchmark_as_pairs(asked), []), folder, card)
    assert found.items == {"Precise IF": 3, "Math": 3}


def test_a_base_that_is_gone_is_said() -> None:
    asked = write_sample(Path("p.jsonl"), "preference")
    made = {"synthetic": {"n": 4}}
    cases = (("/gone/sft", "ab", 1), ("Qwen/Qwen3-8B", "", 0), ("sft", "ab", 1))
    for number, (path, digest, noted) in enumerate(cases):
        base = {"path": path, "digest": digest}
        folder = Path(judge(f"j{number}", base=base, data=made))
        found = check_contamination(
            BenchmarkData(read_benchmark([asked]), []), folder, read_card(folder)
        )
        assert found.compared == ("rows in part" if noted else "rows")
        assert sum("is not found" in note for note in found.notes) == noted


def test_files_that_are_gone_or_were_changed_leave_ids() -> None:
    asked = write_sample(Path("rb2.jsonl"), "rewardbench2")
    gone = write("gone.jsonl", [{"chosen": [], "rejected": []}])
    changed = write("changed.jsonl", [{"a": 1}])
    name = judge("j", train=[gone, changed], trained_ids=("rewardbench2:Math-3", "7"))
    gone.unlink()
    changed.write_text("{}\n")
    found, shown, report = seen(name, asked)
    assert found["compared"] == "ids"
    assert (found["items"], found["how"]) == ({"Math": 1}, {"id": 1})
    assert "only ids were compared" in shown
    assert "gone.jsonl is not there any more" in report
    assert "changed.jsonl is not there any more" in report


def test_short_ids_prove_nothing() -> None:
    rows = sample_rows("preference", 8)
    asked = write("p.jsonl", [{**row, "id": number} for number, row in enumerate(rows)])
    found, _, _ = seen(judge("j", trained_ids=tuple("01234567")), asked)
    assert found["seen"] == 0


def test_what_an_earlier_stage_has_seen_counts() -> None:
    asked = write_sample(Path("p.jsonl"), "preference")
    judge("first", train=[asked])
    clean = write("t.jsonl", [{"messages": [{"role": "user", "content": "Who?"},
                                            {"role": "assistant", "content": "I."}]}])  # fmt: skip
    found, _, _ = seen(judge("second", train=[clean], base={"path": "first"}), asked)
    assert found["items"] == {"p": 12}


def test_rows_made_by_dials_are_made_again() -> None:
    settings = SyntheticSettings(n=40, seed=3)
    made = synthetic_preferences(settings).rows
    asked = write("s.jsonl", [{"chosen": one.chosen, "rejected": one.rejected} for one in made])
    dials = {"synthetic": {"n": 40, "seed": 3, "families": []}}
    found, _, _ = seen(judge("j", method="bradley_terry", data=dials), asked)
    assert found["seen"] == found["how"]["exact"] == 40


def test_a_spec_that_asks_a_judge_without_a_card_is_not_checked() -> None:
    Path("reward.toml").write_text(REWARD)
    asked = write_sample(Path("p.jsonl"), "preference")
    found, shown, _ = seen("reward.toml", asked)
    assert found["compared"] == "nothing"
    assert "not checked for contamination" in shown


def test_a_card_without_data_says_nothing() -> None:
    asked = write_sample(Path("p.jsonl"), "preference")
    found, shown, _ = seen(judge("j"), asked)
    assert (found["compared"], found["notes"]) == (
        "nothing",
        ["its card does not say what it has seen"],
    )
    assert "not checked for contamination" in shown


def test_one_that_was_not_trained_to_judge_is_refused() -> None:
    name = judge("j")
    (Path(name) / SPEC_FILE).unlink()
    found = CliRunner().invoke(command_line(), ["eval", "judge", name, "--data", "x.jsonl"])
    assert found.exit_code == 2
    assert "was not trained to judge" in found.stderr
