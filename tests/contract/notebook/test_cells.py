"""Grading in the cells of a real notebook kernel; run by `make test-notebook`."""

import doctest
import json
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("ipykernel", reason="not installed here; run `make test-notebook`")

from jupyter_client.manager import start_new_kernel

EXAMPLE = Path(__file__).parents[3] / "examples" / "rollouts_to_trl.ipynb"
SLOW = """
import asyncio
from adjudge import BaseGrader, GraderScore

class Slow(BaseGrader):
    score_range = (0.0, 1.0)

    async def aevaluate(self, response: str) -> GraderScore:
        await asyncio.sleep(0.2)
        return GraderScore(self.name, 1.0, "in time")
"""
SETUP = """
import adjudge
rows = [{"prompt": f"p{i // 4}", "response": str(i), "reference": "4"} for i in range(200)]
slow = {"max_concurrency": 4, "graders": [{"name": "slow", "type": "slow:Slow"}]}
quick = {"graders": [{"name": "right", "type": "string_match"}]}
"""


class Cell(NamedTuple):
    """What a cell showed: each output as it stands in the end, by MIME type; and its error."""

    outputs: list[dict[str, str]]
    printed: str
    error: str
    updates: int

    def html(self) -> str:
        return "\n".join(one.get("text/html", "") for one in self.outputs)


class Notebook:
    """A kernel with a loop that runs, as every notebook's."""

    def __init__(self, folder: Path) -> None:
        self.manager, self.client = start_new_kernel(cwd=str(folder))

    def run(self, code: str, interrupt_after_s: float | None = None) -> Cell:
        """Run a cell to its end; outputs that are written anew are found in their last form."""
        started = time.monotonic()
        request = self.client.execute(code)
        by_id: dict[str, dict[str, str]] = {}
        outputs: list[dict[str, str]] = []
        printed = error = ""
        updates = 0
        while True:
            if interrupt_after_s is not None and time.monotonic() - started > interrupt_after_s:
                self.manager.interrupt_kernel()
                interrupt_after_s = None
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                assert time.monotonic() - started < 60, "the cell does not end"
                continue
            assert message["parent_header"].get("msg_id") == request, message["msg_type"]
            content: dict[str, Any] = message["content"]
            match message["msg_type"]:
                case "display_data":
                    outputs.append(content["data"])
                    by_id[content["transient"].get("display_id", "")] = outputs[-1]
                case "update_display_data":
                    by_id[content["transient"]["display_id"]].update(content["data"])
                    updates += 1
                case "execute_result":
                    outputs.append(content["data"])
                case "stream":
                    printed += content["text"]
                case "error":
                    error = "\n".join(content["traceback"])
                case "status" if content["execution_state"] == "idle":
                    return Cell(outputs, printed, error, updates)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "slow.py").write_text(SLOW)
    one = Notebook(folder)
    try:
        assert one.run(SETUP).error == ""
        yield one
    finally:
        one.client.stop_channels()
        one.manager.shutdown_kernel(now=True)


def test_long_work_has_a_bar_and_its_result_tables(notebook: Notebook) -> None:
    cell = notebook.run("adjudge.grade(rows[:40], slow)")
    assert cell.error == ""
    bar, result = cell.outputs
    assert "<progress" in bar["text/html"]
    assert 'value="40" max="40"' in bar["text/html"]
    assert bar["text/plain"].startswith("grading 40/40 (100%)")
    assert cell.updates > 2
    assert result["text/plain"] == "GradedRun(40 samples in 10 groups, mean reward 1.000)"
    assert "<table" in result["text/html"]
    assert cell.printed == ""


def test_short_work_shows_its_result_alone(notebook: Notebook) -> None:
    [result] = notebook.run("run = adjudge.grade(rows, quick); run").outputs
    assert "The first 10 samples; 190 more" in result["text/html"]


def test_the_examples_of_the_docs_are_cells(notebook: Notebook) -> None:
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
    grading, _, _ = page.partition("## Extension points")
    for example in doctest.DocTestParser().get_examples(grading):
        cell = notebook.run(example.source)
        assert cell.error == ""
        if example.source.strip() == "run":
            assert "<table" in cell.html()
        elif example.want:
            assert cell.outputs[0]["text/plain"] == example.want.strip()


def test_cells_that_await_grade_too(notebook: Notebook) -> None:
    cell = notebook.run(
        "import asyncio, sys\n"
        "async def many():\n"
        "    await asyncio.sleep(0)\n"
        "    return adjudge.grade(rows[:40], slow)\n"
        "run = await many()\n"
        "reward = adjudge.make_reward(quick)\n"
        "got = await reward.acall(['?'], ['4'], reference='4')\n"
        "len(run), got, 'nest_asyncio' in sys.modules"
    )
    assert cell.error == ""
    bar, result = cell.outputs
    assert bar["text/plain"].startswith("grading 40/40 (100%)")
    assert result["text/plain"] == "(40, [1.0], False)"


@pytest.mark.parametrize("call", ["{}", "await asyncio.sleep(0); {}"])
def test_an_interrupted_cell_says_how_to_resume(notebook: Notebook, call: str) -> None:
    notebook.run("import asyncio, shutil; shutil.rmtree('out', ignore_errors=True)")
    grade = "adjudge.grade(rows[:80], slow, output='out')"
    stopped = notebook.run(call.format(grade), interrupt_after_s=1.5)
    assert "KeyboardInterrupt" in stopped.error
    assert "to resume, call again with output='out'" in stopped.error
    assert "/80" in stopped.outputs[0]["text/plain"]
    resumed = notebook.run(f"run = {grade}; run.summary['resumed_results'] > 4, len(run)")
    assert resumed.error == ""
    assert resumed.outputs[-1]["text/plain"] == "(True, 80)"


def test_the_example_grades_a_dump(notebook: Notebook) -> None:
    """All cells but those of the audit and of TRL, which `make test-trl` runs."""
    cells = json.loads(EXAMPLE.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    tables = ""
    for source in code:
        if "make_audit" not in source and "trl" not in source:
            cell = notebook.run(source)
            assert cell.error == ""
            tables += cell.html()
    assert "refused" in tables
    assert "helpful" in tables
    assert notebook.run("mock.close()").error == ""
