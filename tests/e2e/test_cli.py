"""The command line as a user runs it: real files, real exit codes.

Some of these commands are processes of their own, at least one for each kind of end; the others run
in this process, which takes a twentieth of the time.
"""

import json
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import COMMAND, run_here, run_process
from tests.rows import read_jsonl

SPEC = """
[[graders]]
name = "loop"
type = "action_loop"
weight = 0.5

[[graders]]
name = "info"
type = "information_gain"
weight = 0.5
"""


def call(name: str, arguments: str, result: str) -> list[dict[str, Any]]:
    tool_call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]


def rollout(i: int) -> dict[str, Any]:
    steps = call("f", '{"x": 1}', f"alpha beta gamma {i}") * (1 + i % 3)
    messages = [{"role": "user", "content": "go"}, *steps, {"role": "assistant", "content": "ok"}]
    return {"traj": messages, "task": f"t{i // 4}", "won": float(i % 2)}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "reward.toml").write_text(SPEC)
    rows = [json.dumps(rollout(i)) for i in range(16)]
    rows.insert(5, '{"traj": [{"role": "us')
    (tmp_path / "rollouts.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


MAPS = ("--map", "messages=traj", "--map", "group=task", "--map", "env_reward=won")
GRADE = ("grade", "rollouts.jsonl", "--spec", "reward.toml", *MAPS)


def rewards(folder: Path) -> list[dict[str, Any]]:
    return read_jsonl(folder / "rewards.jsonl")


def test_grade_writes_rewards_summary_and_report(work: Path) -> None:
    done = run_process(*GRADE, "-o", "out", folder=work)
    assert done.returncode == 2, done.stderr  # one row is broken
    assert "rollouts.jsonl:6" in done.stderr
    assert "Within group" in done.stdout
    rows = rewards(work / "out")
    assert [row["index"] for row in rows] == [*range(5), *range(6, 17)]
    assert set(rows[0]) == {
        "index", "key", "where", "step", "group", "env_reward", "reward", "missing", "reward_info",
        "details",
    }  # fmt: skip
    assert rows[0]["where"] == "rollouts.jsonl:1"
    assert rows[0]["reward"] == pytest.approx(0.5 * 1.0 + 0.5 * 1.0)
    assert rows[2]["reward"] == pytest.approx(0.5 * 0.0 + 0.5 * (1 / 3))
    assert len({tuple(row["reward_info"]) for row in rows}) == 1
    summary = json.loads((work / "out" / "summary.json").read_text())
    assert summary["samples"] == 16
    assert summary["groups"] == {
        "count": 4, "size_min": 4, "size_median": 4, "size_max": 4, "source": "column",
    }  # fmt: skip
    assert summary["broken_rows"]["count"] == 1
    assert summary["graders"]["loop"]["auc"]["value"] is not None
    page = (work / "out" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_rollouts_may_come_through_a_pipe(work: Path) -> None:
    command = [*COMMAND, "grade", "-", "--spec", "reward.toml", *MAPS, "-o", "out"]
    piped = (work / "rollouts.jsonl").read_bytes()
    done = subprocess.run(command, cwd=work, input=piped, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"stdin:6" in done.stderr
    run_here(*GRADE, "-o", "from_file", folder=work)
    from_file = rewards(work / "from_file")
    for row in from_file:
        row["where"] = row["where"].replace("rollouts.jsonl", "stdin")
    assert rewards(work / "out") == from_file
    assert json.loads((work / "out" / "summary.json").read_text())["inputs"] == ["stdin"]


def test_a_reader_that_goes_away_is_no_mistake_of_ours(work: Path) -> None:
    """As `adjudge … | head` does."""
    pipe = f"{shlex.join((*COMMAND, 'graders', '--json'))} | true"
    found = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {pipe}"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (141, "")


def test_json_goes_to_standard_output_alone(work: Path) -> None:
    done = run_here(*GRADE, "-o", "out", "--json", folder=work)
    assert json.loads(done.stdout) == json.loads((work / "out" / "summary.json").read_text())


@pytest.mark.slow
def test_strict_stops_at_the_first_broken_row(work: Path) -> None:
    done = run_here(*GRADE, "-o", "out", "--strict", folder=work)
    assert done.returncode == 2
    assert "rollouts.jsonl:6: not a JSON object" in done.stderr
    assert not (work / "out" / "rewards.jsonl").exists()


def test_without_a_group_column_equal_prompts_form_a_group(work: Path) -> None:
    command = ("grade", "rollouts.jsonl", "-s", "reward.toml", "-m", "messages=traj", "-o", "o")
    done = run_here(*command, folder=work)
    assert "equal prompts" in done.stderr
    assert {row["group"] for row in rewards(work / "o")} == {"(prompt 0)"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("grade", "none.jsonl", "-s", "reward.toml"), "none.jsonl: no such file"),
        (("grade", "rollouts.jsonl", "-s", "none.toml"), "none.toml: cannot be read"),
        (("grade", "empty.jsonl", "-s", "reward.toml"), "empty.jsonl: no usable row (0 broken"),
        (("grade", "rollouts.jsonl", "-s", "reward.toml", "-m", "messages"), "FIELD=COLUMN"),
        (
            ("grade", "rollouts.jsonl", "-s", "reward.toml", "-m", "messages=won"),
            "no usable row (17 broken",
        ),
        (("graders", "action_lop"), "did you mean 'action_loop'"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    work: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (work / "empty.jsonl").write_text("\n")
    done = run_here(*arguments, folder=work)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_judge_outage_is_exit_code_3_and_resumable(work: Path) -> None:
    verdicts: list[dict[str, Any]] = [{"id": i, "score": 0.5} for i in range(4)]
    verdicts += [{"id": i, "error": {"kind": "timeout"}} for i in range(4, 40)]
    (work / "v.jsonl").write_text("\n".join(map(json.dumps, verdicts)))
    rows = [json.dumps({"response": "r", "prompt": "p", "id": i}) for i in range(40)]
    (work / "r.jsonl").write_text("\n".join(rows))
    (work / "j.toml").write_text(
        '[[graders]]\nname = "j"\ntype = "recorded"\npath = "v.jsonl"\n'
        "[missing]\npatience_s = 0.2\n"
    )
    done = run_process("grade", "r.jsonl", "-s", "j.toml", "-o", "out", folder=work)
    assert done.returncode == 3
    assert "recorded timeout" in done.stderr
    assert "To resume, run:" in done.stderr
    assert (work / "out" / "journal.jsonl").read_bytes().count(b"\n") == 5


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="a background job ignores SIGINT"
)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_then_the_command_that_is_printed(
    work: Path, number: signal.Signals, code: int
) -> None:
    (work / "slow_graders.py").write_text(
        "import asyncio\nfrom adjudge import BaseGrader\n"
        "class Slow(BaseGrader):\n"
        "    score_range = (0.0, 1.0)\n"
        "    async def aevaluate(self, won: float):\n"
        "        await asyncio.sleep(0.2)\n        return won\n"
    )
    (work / "slow.toml").write_text(
        'max_concurrency = 2\n[[graders]]\nname = "s"\ntype = "slow_graders:Slow"\n'
    )
    arguments = ["grade", "rollouts.jsonl", "-s", "slow.toml", "-m", "messages=traj", "-m",
                 "group=task"]  # fmt: skip
    process = subprocess.Popen([*COMMAND, *arguments], cwd=work, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (
        (found := [*work.glob("runs/*/journal.jsonl")]) and found[0].read_bytes().count(b"\n") > 3
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    journal = found[0]
    process.send_signal(number)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in complaint
    known = journal.read_bytes().count(b"\n") - 1
    command = complaint.partition("To resume, run:\n")[2].splitlines()[0]
    done = subprocess.run(
        shlex.split(command), cwd=work, capture_output=True, text=True, check=False
    )
    assert f"{known} results resumed" in done.stdout
    assert len(rewards(journal.parent)) == 16


@pytest.mark.parametrize("name", ["a [/bold] b", "ü ber", "[red]x"])
def test_odd_folder_names(work: Path, name: str) -> None:
    done = run_here(*GRADE, "-o", name, folder=work)
    assert done.returncode == 2, done.stderr
    assert name in done.stdout
    assert (work / name / "report.html").exists()


@pytest.mark.slow
def test_what_answers_depend_on_is_part_of_the_run(work: Path) -> None:
    module = work / "fickle.py"
    text = (
        "from adjudge import BaseGrader\n"
        "class G(BaseGrader):\n"
        "    score_range = (0.0, 1.0)\n"
        "    async def aevaluate(self, won: float):\n"
        "        print('noise')\n"
        "        return 0.25\n"
    )
    module.write_text(text)
    (work / "own.toml").write_text('[[graders]]\nname = "g"\ntype = "fickle:G"\n')
    own = ("grade", "rollouts.jsonl", "-s", "own.toml", "-m", "messages=traj", "-o", "own")
    done = run_process(*own, "--json", folder=work)
    assert json.loads(done.stdout)["graders"]["g"]["mean"] == 0.25
    module.write_text(text.replace("0.25", "0.75"))
    assert "another spec" in run_process(*own, folder=work).stderr


@pytest.mark.slow
def test_text_of_rows_cannot_speak_to_the_terminal(work: Path) -> None:
    row = json.dumps({"\x1b[31m[bold]:100:\n": 1})
    (work / "rollouts.jsonl").write_text("\n" * 99 + row)
    done = run_process("grade", "rollouts.jsonl", "-s", "reward.toml", folder=work)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "\x1b[31m" not in done.stderr
    assert "\\x1b[31m[bold]:100:" in done.stderr


def test_metadata_that_json_cannot_hold_costs_nothing(work: Path) -> None:
    (work / "odd.py").write_text(
        "from adjudge import BaseGrader, GraderScore\n"
        "class G(BaseGrader):\n"
        "    score_range = (0.0, 1.0)\n"
        "    async def aevaluate(self, won: float):\n"
        "        own = {'thing': object(), (1, 2): float('nan')}\n"
        "        own['self'] = own\n"
        "        return GraderScore('g', won, 'half \\ud83d', own)\n"
    )
    (work / "own.toml").write_text('[[graders]]\nname = "g"\ntype = "odd:G"\n')
    done = run_here(
        "grade", "rollouts.jsonl", "-s", "own.toml", "-m", "messages=traj", "-o", "o", folder=work
    )
    assert done.returncode == 2, done.stderr  # the broken row
    assert [row["reward"] for row in rewards(work / "o")] == [float(i % 2) for i in range(16)]


def test_doctor(tmp_path: Path) -> None:
    found = json.loads(run_here("doctor", "--json", folder=tmp_path).stdout)
    features = {one["feature"]: one for one in found["features"]}
    assert any("sandbox" in feature for feature in features)
    assert all(one["remedy"] for one in features.values() if not one["ok"])


def test_version(tmp_path: Path) -> None:
    assert run_process("--version", folder=tmp_path).stdout.startswith("adjudge 0.")
