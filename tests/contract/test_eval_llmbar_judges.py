"""``adjudge eval judge`` on recorded LLMBar judges, next to the benchmark's own statistics of them.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has ``llmbar``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_llmbar_judges import PUBLISHED, STYLES, SUBSETS
from tests.recorded import find_recorded
from typer.testing import CliRunner

from adjudge.cli.main import command_line

pytestmark = pytest.mark.needs

JUDGES = (("gpt-4", "vanilla"), ("palm2", "vanilla"), ("falcon", "cot"))


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_recorded("llmbar")


def validated(out: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(command_line(), ["eval", "judge", *arguments, "-o", str(out), "-q"])
    assert done.exit_code == 0, done.output
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def test_the_published_numbers_come_out(folder: Path, tmp_path: Path) -> None:
    first, *others = [f"{folder}/*/judges/{'_'.join(one)}.json" for one in JUDGES]
    against = [part for other in others for part in ("--against", other)]
    summary = validated(tmp_path / "out", first, *against)
    assert summary["benchmark"]["subsets"] == SUBSETS
    for judge, (name, style) in zip(summary["judges"], JUDGES, strict=True):
        shares = []
        for subset, items in SUBSETS.items():
            one, counts = judge["subsets"][subset], PUBLISHED[subset][name][STYLES.index(style)]
            keys = ("right_as_given", "right_swapped", "both_right", "agreeing")
            assert tuple(one["orders"][key] for key in keys) == counts
            shares.append((counts[0] + counts[1]) / (2 * items))
            assert one["own"] == pytest.approx(shares[-1])
            assert one["at_least"] == pytest.approx(shares[-1])
        assert judge["overall"]["own"] == pytest.approx(sum(shares) / 2)
    assert len(summary["compared"]) == 3


def test_recordings_are_found_again_in_the_benchmarks_own_files(
    folder: Path, tmp_path: Path
) -> None:
    data = ["--data", f"{folder}/natural/dataset.json", "--data", f"{folder}/neighbor/dataset.json"]
    summary = validated(tmp_path / "out", f"{folder}/*/judges/palm2_vanilla.json", *data)
    overall = summary["judges"][0]["overall"]
    assert overall["failures"] == {"unparsable": 4}
    assert overall["answered"] == 232  # both verdicts of two pairs
    half = validated(tmp_path / "half", f"{folder}/natural/judges/palm2_vanilla.json", *data)
    missing = half["judges"][0]["overall"]["failures"]
    assert missing == {"not_sampled": 268, "unparsable": 4}
