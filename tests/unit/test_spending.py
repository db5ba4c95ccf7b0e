"""What a run folder cost over its invocations, and a budget that bounds all of them."""

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.refusals import refuses
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge import RewardSpec
from adjudge.errors import RunFolderError
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.judges.endpoint.settings import SpendCeiling
from adjudge.judges.wire.transport import AiohttpTransport
from adjudge.mock.server import start_mock
from adjudge.runs import spending
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.report.tables import calls_tables, describe_spending
from adjudge.runs.spending import SPENDING_FILE, FolderSpending

SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "Rate this from 0 to 1. {{prompt}} {{response}}"
score_range = [0.0, 1.0]

[missing]
max_missing = 1.0
patience_s = 0.0

[judges.main]
type = "vllm"
model = "mock"
base_url = "{url}"
max_tokens = 100
price = {{ input = 1.0, output = 2.0 }}
endpoint = {{ hedge = false }}
"""


@pytest.fixture
def provider() -> Iterator[str]:
    with start_mock_here(latency=("fixed:0.001",)) as url:
        yield url


def grade(folder: Path, url: str, budget_usd: float | None = None) -> dict[str, Any]:
    rollouts, spec = folder / "rollouts.jsonl", folder / "spec.toml"
    rows = [{"prompt": f"p{i // 4}", "response": f"r{i}"} for i in range(40)]
    rollouts.write_text("\n".join(map(json.dumps, rows)))
    spec.write_text(SPEC.format(url=url))
    job = GradingJob(
        [rollouts], RewardSpec.load(spec), folder / "out", show_progress=False,
        budget_usd=budget_usd,
    )  # fmt: skip
    return dict(grade_rollouts(job).summary)


def served(url: str) -> dict[str, Any]:
    with urlopen(f"{url}/stats") as reply:
        stats: dict[str, Any] = json.loads(reply.read())
    return stats


def test_a_budget_bounds_the_folder_and_its_cost_is_that_of_all_invocations(
    tmp_path: Path, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "whole").mkdir()
    cost = grade(tmp_path / "whole", provider)["spending"]["cost_usd"]
    first = grade(tmp_path, provider, cost / 2)["spending"]
    assert 0 < first["cost_usd"] <= cost / 2
    assert first["earlier_usd"] == 0
    assert first["left_usd"] == pytest.approx(cost / 2 - first["cost_usd"])
    assert "earlier invocations" not in caplog.text
    again = grade(tmp_path, provider, cost / 2)["spending"]
    assert again["cost_usd"] <= cost / 2
    assert again["earlier_usd"] == pytest.approx(first["cost_usd"])
    assert f"earlier invocations spent {first['cost_usd']:.4f} USD" in caplog.text
    summary = grade(tmp_path, provider, cost * 2)
    found = summary["spending"]
    assert found["invocations"] == 3
    assert found["cost_usd"] == pytest.approx(cost)
    assert found["cost_usd"] == pytest.approx(found["earlier_usd"] + found["this_invocation_usd"])
    assert found["calls"] == found["endpoints"][0]["calls"] > summary["endpoints"][0]["calls"]
    (table,) = calls_tables(summary)
    assert [one.heading for one in table.columns[1:]] == ["this invocation", "all 3"]
    rows = {label: texts for label, *texts in table.rows}
    assert rows["answered"] == [str(summary["endpoints"][0]["answered"]), "40"]
    assert "all 3 invocations: " in describe_spending(summary)
    assert "USD of the budget of" in describe_spending(summary)


def test_what_failed_cost_too(tmp_path: Path) -> None:
    with start_mock_here(fail=("max-tokens:0.5",), seed=3) as url:
        first = grade(tmp_path, url)
        second = grade(tmp_path, url)
        sends = served(url)["requests"]
    assert first["missing"]["by_kind"]["truncated"] > 0
    found = second["spending"]
    assert found["endpoints"][0]["sends"] == sends
    spent = found["input_tokens"] + 2 * found["output_tokens"]
    # A send whose end was not heard has no tokens, but what it is assumed to have cost.
    assumed = sum(one["assumed_usd"] for one in found["endpoints"])
    assert found["cost_usd"] == pytest.approx(spent / 1e6 + assumed)
    assert found["cost_usd"] > second["graders"]["quality"]["judge"]["cost_usd"]


def test_a_run_in_one_go_says_nothing_of_invocations(tmp_path: Path, provider: str) -> None:
    summary = grade(tmp_path, provider)
    assert describe_spending(summary) == ""
    (table,) = calls_tables(summary)
    assert [one.heading for one in table.columns[1:]] == [""]
    assert "latency p50 / p95 / p99" in [row[0] for row in table.rows]


def test_of_a_killed_invocation_the_calls_that_were_out_count(tmp_path: Path) -> None:
    killed = {"started": "then", "cost_usd": 0.25, "reserved_usd": 0.125}
    over = {"started": "then", "cost_usd": 0.5, "reserved_usd": 0.125, "ended": True}
    (tmp_path / SPENDING_FILE).write_text(json.dumps({"invocations": [killed, over]}))
    budget = SpendCeiling(1.0)
    with FolderSpending(tmp_path, budget) as counted:
        assert budget.spent == 0.875
        found = counted.summarise([])
    assert (found["cost_usd"], found["left_usd"], found["killed"]) == (0.875, 0.125, 1)
    assert "1 earlier killed" in describe_spending({"spending": found})


def test_rules_cost_nothing_and_leave_no_file(tmp_path: Path) -> None:
    rollouts = tmp_path / "r.jsonl"
    rollouts.write_text('{"response": "yes", "reference": "yes"}\n')
    spec = RewardSpec.from_dict({"graders": [{"name": "same", "type": "string_match"}]})
    summary = grade_rollouts(
        GradingJob([rollouts], spec, tmp_path / "out", show_progress=False)
    ).summary
    assert summary["spending"]["cost_usd"] == 0
    assert not (tmp_path / "out" / SPENDING_FILE).exists()


def test_whenever_a_run_is_killed_its_file_books_what_was_paid(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each send and after each reply the file is kept as a kill would leave it."""
    post, file, budget_usd = AiohttpTransport.post, tmp_path / "out" / SPENDING_FILE, 0.003
    looks: list[tuple[float, int, bytes]] = []
    paid, sends = 0.0, 0

    async def watched(self: AiohttpTransport, url: str, request: HttpRequest) -> HttpResponse:
        nonlocal paid, sends
        sends += 1
        looks.append((paid, sends, file.read_bytes()))
        response = await post(self, url, request)
        usage = json.loads(response.body)["usage"]
        paid += (usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1e6
        looks.append((paid, sends, file.read_bytes()))
        return response

    monkeypatch.setattr(AiohttpTransport, "post", watched)
    summary = grade(tmp_path, provider, budget_usd)
    assert summary["spending"]["cost_usd"] == pytest.approx(paid)
    assert 10 < len(looks) / 2 < 40
    for spent, sent, data in looks:
        file.write_bytes(data)
        (tmp_path / "out" / "journal.jsonl").unlink(missing_ok=True)
        with FolderSpending(tmp_path / "out", resumed := SpendCeiling(budget_usd)) as found:
            after = found.summarise([])
        assert spent <= resumed.spent <= budget_usd
        assert (after["invocations"], after["killed"]) == (2, 1)
        assert sent <= after["calls"] <= 40


def test_without_the_file_the_results_that_are_kept_are_booked(
    tmp_path: Path, provider: str
) -> None:
    cost = grade(tmp_path, provider)["spending"]["cost_usd"]
    (tmp_path / "out" / SPENDING_FILE).unlink()
    assert grade(tmp_path, provider, 1.0)["spending"]["cost_usd"] == pytest.approx(cost)


def test_a_reservation_that_cannot_be_kept_stops_the_send(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(spending, "write_json", full)
    with pytest.raises(OSError, match=SPENDING_FILE):
        grade(tmp_path, provider, 1.0)
    assert served(provider)["requests"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_signal_the_cost_is_known(tmp_path: Path, number: signal.Signals) -> None:
    with start_mock(latency=("fixed:0.2",), port=0) as url:
        spec = SPEC.format(url=url).replace("hedge", "max_concurrency = 2, hedge")
        (tmp_path / "spec.toml").write_text(spec)
        rows = [{"prompt": f"p{i // 4}", "response": f"r{i}"} for i in range(60)]
        (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
        words = ["-m", "adjudge", "grade", "r.jsonl", "-s", "spec.toml", "-o", "out"]
        with subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as process:
            while served(url)["requests"] < 25:
                time.sleep(0.05)
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
        before = served(url)["requests"]
        assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
        assert ("To resume, run:" in said) == (number == signal.SIGTERM)
        journaled = (tmp_path / "out" / "journal.jsonl").read_bytes().count(b"\n") - 1
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        asked_again = served(url)["requests"] - before
    assert asked_again == 60 - journaled
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["spending"]
    sends = sum(one["sends"] for one in found["endpoints"])
    assert sends <= before + asked_again <= found["calls"]
    assert number == signal.SIGKILL or sends == before + asked_again
    assert found["killed"] == (number == signal.SIGKILL)
    assert (tmp_path / "out" / SPENDING_FILE).stat().st_size < 10_000


def written(**changes: Any) -> bytes:
    one = {"started": "x", "ended": True, "cost_usd": 1.0}
    return json.dumps({"invocations": [one | changes]}).encode()


COUNTED = {"base_urls": ["u"], "models": ["m"], "calls": 3}


@pytest.mark.parametrize(
    "content",
    [
        written(cost_usd=-5),
        b"{}",
        written(ended=False, reserved_usd=-5),
        written(endpoints=[{}]),
        written(endpoints=[COUNTED | {"base_urls": [{}]}]),
        written(endpoints=[COUNTED | {"calls": {"a": 1}}]),
        written(endpoints=[COUNTED | {"failures": 1}]),
        b'{"invocations": [{"started": "\xff"}]}',
        b'{"invocations": [{"started": "x", "endpoints": [{"a": ' + b"[" * 5_000,
        b'{"invoc',
        b"",
    ],
)
def test_spending_that_is_damaged_is_refused_before_a_judge_is_asked(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / SPENDING_FILE).write_bytes(content)
    budget = SpendCeiling(2.0)
    with pytest.raises(RunFolderError, match="what this run has cost is not known"):
        FolderSpending(tmp_path, budget).__enter__()
    assert budget.spent == 0


@pytest.mark.parametrize("ceiling", [float("nan"), -1.0])
def test_a_budget_that_is_no_amount_is_refused(ceiling: float) -> None:
    with refuses("budget_usd"):
        SpendCeiling(ceiling)
