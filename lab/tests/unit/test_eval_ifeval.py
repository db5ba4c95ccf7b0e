"""``adjudge eval ifeval`` over stored responses, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.tests.unit.helpers.ifeval_files import (
    COMMA,
    GOOD,
    QUOTED,
    WORDS,
    prompt,
    response,
    write_prompts,
)
from tests.rows import read_jsonl, write_jsonl
from typer.testing import CliRunner, Result

from adjudge.cli.main import command_line

pytestmark = pytest.mark.slow  # whole commands, one after the other


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(Path("data.jsonl"), 12)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(), ["eval", "ifeval", *arguments])


def summary(*responses: str, out: str = "out") -> dict[str, Any]:
    given = [part for one in responses for part in ("--responses", one)]
    done = command("--data", "data.jsonl", *given, "-o", out, "-q")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(Path(out, "summary.json").read_text())
    return found


def refused(*arguments: str) -> str:
    done = command(*arguments)
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


def values(model: dict[str, Any]) -> list[float]:
    return [model[r][level]["value"] for r in ("strict", "loose") for level in
            ("prompt", "instruction")]  # fmt: skip


def test_shares_by_hand() -> None:
    # A comma in four answers (two to prompts of one instruction); one unquoted once its
    # asterisks are gone.
    texts = {0: "a, b", 1: '"word, word"', 3: "a, b", 4: '"word, word"', 5: '*"word"*'}
    write_jsonl(Path("r.jsonl"), [response(key, texts.get(key, GOOD)) for key in range(12)])
    [model] = summary("r.jsonl")["models"]
    # Four prompts have one instruction, eight have three: 28.
    assert values(model) == pytest.approx([7 / 12, 23 / 28, 8 / 12, 24 / 28])
    strict = model["strict"]
    assert strict["by_type"][COMMA]["value"] == pytest.approx(8 / 12)
    assert strict["by_type"][QUOTED]["value"] == pytest.approx(7 / 8)
    assert strict["by_type"][WORDS] == {
        "value": 1.0, "low": None, "high": None, "why": "all units score the same", "n": 8,
        "prompts": 8, "least": 1.0, "most": 1.0,
    }  # fmt: skip
    assert set(strict["by_category"]) == {"punctuation", "keywords", "startend"}
    assert strict["prompt"]["low"] < 7 / 12 < strict["prompt"]["high"]
    rows = read_jsonl(Path("out/eval_results_strict.jsonl"))
    assert list(rows[0]) == ["follow_all_instructions", "follow_instruction_list",
                             "instruction_id_list", "prompt", "response"]  # fmt: skip
    assert [row["follow_all_instructions"] for row in rows].count(True) == 7
    loose = read_jsonl(Path("out/eval_results_loose.jsonl"))
    assert [row["follow_all_instructions"] for row in loose].count(True) == 8


def test_the_table_says_what_the_summary_says() -> None:
    write_jsonl(Path("r.jsonl"), [response(key, "a, b" if key == 0 else GOOD) for key in range(12)])
    done = command("--data", "data.jsonl", "--responses", "r.jsonl", "-o", "out", "-q")
    assert "Pr(S)" in done.stdout
    assert "0.9167" in done.stdout
    assert "0.9643" in done.stdout
    assert "no_comma" in done.stdout
    as_json = command("--data", "data.jsonl", "--responses", "r.jsonl", "-o", "out", "--json", "-q")
    assert json.loads(as_json.stdout)["models"][0]["strict"]["prompt"]["value"] == 11 / 12


def test_what_is_missing_is_in_no_share_and_is_named() -> None:
    rows = [response(key) for key in range(10)]
    rows[3]["response"] = None
    rows.append({"prompt": "of another benchmark", "response": "x"})
    write_jsonl(Path("r.jsonl"), rows)
    done = command("--data", "data.jsonl", "--responses", "r.jsonl", "-o", "out", "-q")
    said = " ".join(done.output.split())
    assert "2 prompts without a response (key 10, 11)" in said
    assert "1 response could not be made or judged: invalid_input 1" in said
    assert "1 response to no prompt of the benchmark (line 11)" in said
    [model] = json.loads(Path("out/summary.json").read_text())["models"]
    assert model["prompts"] == 9
    assert values(model) == [1.0, 1.0, 1.0, 1.0]


def test_missing_responses_widen_the_bounds_alone() -> None:
    """Prompt 3 (one instruction) failed, 10 and 11 (three each) have none; 0 (one) has a comma."""
    rows = [response(key, "a, b" if key == 0 else GOOD) for key in range(10)]
    rows[3]["response"] = None
    write_jsonl(Path("r.jsonl"), rows)
    done = command("--data", "data.jsonl", "--responses", "r.jsonl", "-o", "out", "-q")
    for page in (done.stdout, Path("out/report.html").read_text()):
        assert "0.667 to 0.917" in page
    [model] = json.loads(Path("out/summary.json").read_text())["models"]
    strict = model["strict"]
    for cell, least, missing, of in (
        (strict["prompt"], 8, 3, 12),
        (strict["instruction"], 20, 7, 28),
        (strict["by_type"][COMMA], 8, 3, 12),
        (strict["by_type"][WORDS], 6, 2, 8),
    ):
        assert (cell["least"], cell["most"]) == (least / of, (least + missing) / of)
        assert cell["least"] <= cell["value"] <= cell["most"]


def test_a_missing_sample_widens_the_bounds_by_its_share() -> None:
    """Every prompt is due two samples; the second of prompt 0 is missing."""
    rows = [response(key, sample=sample) for sample in (0, 1) for key in range(12)]
    del rows[12]
    write_jsonl(Path("r.jsonl"), rows)
    [model] = summary("r.jsonl")["models"]
    cell = model["strict"]["prompt"]
    assert (cell["value"], cell["least"], cell["most"]) == (1.0, 23 / 24, 1.0)


def test_a_torn_file_is_read_as_far_as_it_is_good() -> None:
    lines = [json.dumps(response(key)).encode() for key in range(6)]
    lines[1] = b"\0\0\0" + lines[1]
    lines[2] = b"\0" * 50
    lines[3] = lines[3][:20] + b"\0\0" + lines[3][22:]
    Path("r.jsonl").write_bytes(b"\n".join([*lines, b'{"response": 1}', b'["x"]', lines[5][:30]]))
    [model] = summary("r.jsonl")["models"]
    assert model["prompts"] == 4  # keys 0, 1, 4, 5
    said = {one["line"]: one["reason"] for one in model["problems"]}
    assert said[2] == "read without its 3 NUL bytes"
    assert said[3] == "50 NUL bytes and nothing else"
    assert "not a JSON object" in said[4]
    assert said[4].endswith("2 NUL bytes")
    assert said[7] == "has no 'prompt' to join by"
    assert "not one JSON object per line" in said[8]
    assert said[9].startswith("cut off (no line end)")
    done = command("--data", "data.jsonl", "--responses", "r.jsonl", "-o", "out", "-q")
    assert "r.jsonl:3: 50 NUL bytes and nothing else" in done.output


def test_several_are_compared_on_the_prompts_of_both() -> None:
    write_jsonl(Path("a.jsonl"), [response(key) for key in range(10)])
    broken = {0, 3, 6, 9, 11}
    write_jsonl(
        Path("b.jsonl"), [response(key, "a, b" if key in broken else GOOD) for key in range(2, 12)]
    )
    found = summary("a.jsonl", "b.jsonl")
    assert [one["name"] for one in found["models"]] == ["a", "b"]
    by = {(one["reading"], one["level"]): one for one in found["compared"]}
    prompts = by["strict", "prompt"]
    # Both have keys 2 to 9; of these 3, 6, 9 are broken, with one instruction each of 16.
    assert (prompts["prompts"], prompts["only_a"], prompts["only_b"]) == (8, 3, 0)
    assert prompts["difference"] == pytest.approx(3 / 8)
    assert prompts["mcnemar_p"] == pytest.approx(0.25)
    assert prompts["low"] < 3 / 8 < prompts["high"]
    instructions = by["loose", "instruction"]
    assert instructions["difference"] == pytest.approx(3 / 18)
    assert instructions["mcnemar_p"] is None
    assert Path("out/1-a/eval_results_strict.jsonl").is_file()
    assert len(read_jsonl(Path("out/2-b/eval_results_loose.jsonl"))) == 10


def test_of_many_models_the_terminal_has_the_shares_alone() -> None:
    for model in range(5):
        write_jsonl(Path(f"m{model}.jsonl"), [response(key) for key in range(12)])
    given = [part for one in range(5) for part in ("--responses", f"m{one}.jsonl")]
    done = command("--data", "data.jsonl", *given, "-o", "out", "-q")
    assert all(f"m{model}: 12 prompts" in done.stdout for model in range(5))
    assert "all 10 pairs of models" in " ".join(done.stdout.split())
    assert "no_comma" not in done.stdout


def test_nothing_shared_is_no_difference() -> None:
    write_jsonl(Path("a.jsonl"), [response(key) for key in range(5)])
    write_jsonl(Path("b.jsonl"), [response(key) for key in range(5, 12)])
    one = summary("a.jsonl", "b.jsonl")["compared"][0]
    assert (one["difference"], one["why"]) == (None, "no prompt is shared")


def test_several_samples_count_with_their_mean() -> None:
    """Of prompt 0 one of two follows; numbered by themselves where the rows are not."""
    bad = "a, b"
    rows = [response(key) for key in range(12)]
    rows += [response(key, bad if key == 0 else GOOD) for key in range(12)]
    write_jsonl(Path("order.jsonl"), rows)
    numbered = [row | {"sample": at // 12} for at, row in enumerate(rows)]
    numbered.insert(0, response(5, bad, sample=1))  # replaced by the later row
    write_jsonl(Path("numbered.jsonl"), numbered)
    for name in ("order", "numbered"):
        [model] = summary(f"{name}.jsonl", out=name)["models"]
        assert values(model) == pytest.approx([11.5 / 12, 27.5 / 28, 11.5 / 12, 27.5 / 28])
        assert model["samples"] == [2, 2]
    assert read_jsonl(Path("order/eval_results_strict.jsonl"))[1]["sample"] == 1


def test_joined_by_key() -> None:
    write_jsonl(Path("r.jsonl"), [{"key": key, "response": GOOD} for key in range(12)])
    assert "has no responses" in refused("--data", "data.jsonl", "--responses", "r.jsonl")
    arguments = ("--data", "data.jsonl", "--responses", "r.jsonl", "--by", "key", "-o", "out", "-q")
    assert command(*arguments).exit_code == 0
    [model] = json.loads(Path("out/summary.json").read_text())["models"]
    assert model["prompts"] == 12


def test_the_page_is_whole_and_lets_nothing_in() -> None:
    hostile = "<script>alert(1)</script>"
    rows = [response(key) for key in range(12)]
    write_jsonl(Path("r.jsonl"), rows)
    data = [prompt(key) for key in range(13)]
    data[12] |= {"key": hostile, "prompt": hostile}
    write_jsonl(Path("data.jsonl"), data)
    summary("r.jsonl")
    html = Path("out/report.html").read_text()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "default-src 'none'; style-src 'sha256-" in html
    assert "Ins(L)" in html


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--responses", "r.jsonl"), "Missing option '--data'"),
        (("--data", "data.jsonl"), "TARGET or --responses: is required"),
        (("--data", "data.jsonl", "--responses", "none.jsonl"), "none.jsonl: no such file"),
        (("--data", "data.jsonl", "r.jsonl", "--responses", "r.jsonl"), "is given twice"),
        (("--data", "data.jsonl", "r.jsonl", "--by", "text"), "'text' is not one of"),
        (("--data", "data.jsonl", "r.jsonl", "--seeds", "1"), "No such option: --seeds"),
        (("--data", "data.jsonl", "r.jsonl", "--max-tokens", "9"), "has no effect without a model"),
        (("--data", "data.jsonl", "run.toml"), "run.toml: is not a model"),
        (("--data", "r.jsonl", "r.jsonl"), "r.jsonl:1: a prompt of IFEval must have"),
        (("--data", "data.jsonl", "other.jsonl"), "no response belongs to a prompt"),
    ],
)
def test_what_cannot_be_meant_is_named(arguments: tuple[str, ...], said: str) -> None:
    write_jsonl(Path("r.jsonl"), [response(0)])
    write_jsonl(Path("other.jsonl"), [{"prompt": "x", "response": "y"}])
    assert said in refused(*arguments)


def test_two_prompts_that_are_one_are_refused() -> None:
    write_jsonl(Path("data.jsonl"), [prompt(1), prompt(2), prompt(1)])
    write_jsonl(Path("r.jsonl"), [response(1)])
    assert "data.jsonl:3: has the same prompt as data.jsonl:1" in refused(
        "--data", "data.jsonl", "--responses", "r.jsonl"
    )


def test_a_folder_of_another_evaluation_is_refused() -> None:
    write_jsonl(Path("a.jsonl"), [response(1)])
    write_jsonl(Path("b.jsonl"), [response(1)])
    summary("a.jsonl")
    assert "other models or responses" in refused(
        "--data", "data.jsonl", "--responses", "b.jsonl", "-o", "out"
    )
    summary("a.jsonl")
