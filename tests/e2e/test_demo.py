"""``adjudge demo``: its table and its sentence, against the rewards that it prints."""

import re
from pathlib import Path

import pytest
from tests.e2e.helpers.command import run_here

from adjudge.stats import z_scores

_WEIGHTS = (0.8, 0.1, 0.1)
_SENTENCE = re.compile(
    r"reward = 0\.8 judge \+ 0\.1 loop \+ 0\.1 info\. With the failed score as 0, (?P<failed>.*) "
    r"of (?P<size>\d+)\. Of the other (?P<others>\d+) advantages, (?P<turned>\d+) turn their sign, "
    r"(?P<shrink>\d+) shrink and (?P<grow>\d+) grow\. Left out, the other samples keep exactly the "
    r"advantages of a group of (?P<left>\d+)\."
)


def check_printed(printed: str) -> None:
    """Compute the advantages and the sentence from the scores of the table."""
    assert max(map(len, printed.splitlines())) <= 80
    _, _, *lines = printed.splitlines()
    table = [line.replace("left out", "left-out").split() for line in lines if line[:1].isdigit()]
    found = _SENTENCE.search(" ".join(printed.split()))
    assert found is not None, printed
    scores = [[0.0 if one == "timeout" else float(one) for one in row[2:5]] for row in table]
    filled = [
        sum(weight * one for weight, one in zip(_WEIGHTS, row, strict=True)) for row in scores
    ]
    there = [row[5] != "timeout" for row in table]
    as_zero = z_scores(filled)
    alone = iter(z_scores([one for one, is_there in zip(filled, there, strict=True) if is_there]))
    failed, pairs = [], []
    for row, reward, zero, is_there in zip(table, filled, as_zero, there, strict=True):
        assert float(row[6]) == pytest.approx(zero, abs=0.02)
        if is_there:
            assert float(row[5]) == pytest.approx(reward, abs=0.001)
            pairs.append((zero, next(alone)))
            assert float(row[7]) == pytest.approx(pairs[-1][1], abs=0.02)
            assert (row[8:] == ["turned"]) == (zero * pairs[-1][1] < 0)
        else:
            assert row[7:] == ["left-out"]
            rank = 1 + sum(other > reward for other in filled)
            failed.append(f"sample {row[0]} (env {row[1]}) gets {reward:.3f}, rank {rank}")
    kept = [abs(zero) - abs(left_out) for zero, left_out in pairs if zero * left_out >= 0]
    assert found.groupdict() == {
        "failed": "; ".join(failed),
        "size": str(len(table)),
        "others": str(len(pairs)),
        "turned": str(len(pairs) - len(kept)),
        "shrink": str(sum(one < 0 for one in kept)),
        "grow": str(sum(one > 0 for one in kept)),
        "left": str(len(pairs)),
    }


def test_the_demo_prints_what_its_advantages_are_made_from(tmp_path: Path) -> None:
    done = run_here("demo", "-o", "demo", folder=tmp_path, COLUMNS="80")
    first, _, _ = done.stdout.partition("\n\n")
    check_printed(first)
    assert first.count("turned") == 2
    assert "sample 2 (env 1) gets 0.152, rank 8 of 8" in " ".join(first.split())
