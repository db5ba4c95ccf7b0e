"""Recorded LLMBar judges scored here, next to the benchmark's own statistics of them.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has ``llmbar`` (Zeng et
al. 2024; two subsets, five judges, three prompt styles, both orders).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.recorded import find_recorded
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark, read_llmbar_judge
from adjudge.judge_evaluation.benchmarks.scoring import BenchmarkScore, score_benchmark

pytestmark = pytest.mark.needs

SUBSETS = {"natural": 100, "neighbor": 134}
STYLES = ("vanilla", "cot", "swap")

# Right in order 1, in order 2, in both, and equal (two orders without a verdict are equal there).
PUBLISHED = {
    "natural": {
        "gpt-4": ((95, 96, 93, 95), (94, 95, 90, 91), (94, 95, 93, 97)),
        "chatgpt": ((80, 83, 67, 71), (70, 78, 56, 64), (77, 78, 72, 89)),
        "palm2": ((78, 88, 73, 80), (69, 77, 55, 64), (81, 87, 80, 92)),
        "llama2": ((79, 82, 70, 79), (72, 79, 59, 67), (78, 73, 60, 69)),
        "falcon": ((71, 77, 50, 52), (49, 65, 14, 14), (58, 73, 37, 43)),
    },
    "neighbor": {
        "gpt-4": ((104, 107, 101, 125), (101, 100, 94, 121), (104, 104, 102, 130)),
        "chatgpt": ((30, 22, 7, 96), (31, 30, 6, 84), (28, 33, 19, 111)),
        "palm2": ((82, 86, 62, 90), (73, 65, 35, 66), (79, 82, 72, 117)),
        "llama2": ((34, 32, 18, 104), (56, 43, 28, 90), (41, 53, 28, 95)),
        "falcon": ((70, 65, 29, 57), (77, 57, 11, 21), (74, 61, 26, 50)),
    },
}
# Cohen's kappa between the two orders (natural), and primacy/recency of the styles of one round.
KAPPA = {
    "gpt-4": (0.8977, 0.8160, 0.9387),
    "chatgpt": (0.4287, 0.3521, 0.7750),
    "palm2": (0.6035, 0.3562, 0.8366),
    "llama2": (0.5732, 0.3624, 0.4331),
    "falcon": (0.2134, 0.0113, 0.1379),
}
POSITION = {
    "natural": {
        "gpt-4": ((3, 2), (6, 3)),
        "chatgpt": ((25, 4), (34, 1)),
        "palm2": ((15, 5), (35, 1)),
        "llama2": ((12, 9), (26, 7)),
        "falcon": ((48, 0), (86, 0)),
    },
    "neighbor": {
        "gpt-4": ((6, 3), (12, 1)),
        "chatgpt": ((35, 3), (49, 0)),
        "palm2": ((31, 13), (64, 3)),
        "llama2": ((19, 11), (41, 2)),
        "falcon": ((75, 2), (111, 0)),
    },
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_recorded("llmbar")


def report_of(folder: Path, subset: str, judge: str, style: str) -> BenchmarkScore:
    path = folder / subset / "judges" / f"{judge}_{style}.json"
    benchmark, judged = read_llmbar_judge(path)
    assert len(benchmark.items) == SUBSETS[subset]
    return score_benchmark(benchmark, judged, resamples=200).overall


@pytest.mark.parametrize("subset", SUBSETS)
def test_scores_next_to_the_published_ones(folder: Path, subset: str) -> None:
    found, published = {}, {}
    print("\nsubset judge style: averaged accuracy, ours and published; of answered; consistent")
    for judge, cells in PUBLISHED[subset].items():
        for style, numbers in zip(STYLES, cells, strict=True):
            report = report_of(folder, subset, judge, style)
            orders = report.orders
            assert orders is not None
            assert report.at_least is not None
            own = (orders.right_as_given, orders.right_swapped, orders.both_right, orders.agreeing)
            found[judge, style], published[judge, style] = own, numbers
            averaged = sum(numbers[:2]) / (2 * orders.items)
            # A missing verdict is not right there: the published accuracy is our lower bound.
            assert orders.averaged_accuracy == averaged == pytest.approx(report.at_least)
            print(subset, judge, style, f"{orders.averaged_accuracy:.4f} {averaged:.4f}", report)
    assert found == published


def test_kappa_between_the_orders(folder: Path) -> None:
    compared = 0
    for judge, numbers in KAPPA.items():
        for style, number in zip(STYLES, numbers, strict=True):
            report = report_of(folder, "natural", judge, style)
            assert report.orders is not None
            if not report.failures:
                compared += 1
                assert report.orders.kappa == pytest.approx(number, abs=5e-5), (judge, style)
    assert compared == 11  # the others have replies without a verdict, which it counted as one


def test_primacy_and_recency(folder: Path) -> None:
    for subset, table in POSITION.items():
        for judge, cells in table.items():
            for style, numbers in zip(STYLES[:2], cells, strict=True):
                orders = report_of(folder, subset, judge, style).orders
                assert orders is not None
                assert (orders.primacy, orders.recency) == numbers, (subset, judge, style)


def test_the_datasets_are_read_whole(folder: Path) -> None:
    found = read_benchmark([folder / subset / "dataset.json" for subset in SUBSETS])
    assert (found.kind, found.problems, found.subsets) == ("llmbar", [], list(SUBSETS))
    labels = [(one.subset, getattr(one, "label", "")) for one in found.items]
    assert [labels.count((subset, "A")) for subset in SUBSETS] == [42, 75]
    assert len(labels) == sum(SUBSETS.values())


def test_recordings_are_found_again_in_the_benchmarks_own_files(
    folder: Path, tmp_path: Path
) -> None:
    data = [part for subset in SUBSETS for part in ("--data", f"{folder}/{subset}/dataset.json")]
    expected = {"*": {"unparsable": 4}, "natural": {"not_sampled": 268, "unparsable": 4}}
    for subset, failures in expected.items():
        judge = f"{folder}/{subset}/judges/palm2_vanilla.json"
        words = ["eval", "judge", judge, *data, "-o", str(tmp_path / f"x{subset}"), "--json"]
        done = CliRunner().invoke(command_line(), words)
        assert done.exit_code == 0, done.output
        overall = json.loads(done.stdout)["judges"][0]["overall"]
        assert overall["failures"] == failures
        assert overall["answered"] == (232 if subset == "*" else 98)
