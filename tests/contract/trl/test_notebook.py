"""The example notebook, cell by cell, with the real `GRPOTrainer`: run by `make test-trl`."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="not installed here; run `make test-trl`")

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "examples" / "rollouts_to_trl.ipynb"


async def run_cells(names: dict[str, Any]) -> None:
    """Run the cells as a kernel does: inside an event loop that runs."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]), cell["id"])
            exec(compile(tree, cell["id"], "exec"), names)


def test_the_notebook_goes_from_a_dump_to_a_trained_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # for the mock's process
    names: dict[str, Any] = {"__name__": "__main__"}
    asyncio.run(run_cells(names))
    assert {check.name for check, _ in names["audit"].findings} >= {"filled_rewards"}
    assert names["missing"]
    assert (tmp_path / "report.html").stat().st_size
    log = [entry for entry in names["trainer"].state.log_history if "reward" in entry]
    assert log[-1]["reward"] > log[0]["reward"] + 0.1
    assert any(entry["judge/missing_frac"] for entry in log)
    assert (names["folder"] / "rollouts.jsonl").stat().st_size


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert len(cells) == 15
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
