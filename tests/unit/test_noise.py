"""How much of a run is the judge's own noise: the numbers, and how draws are asked and kept."""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.e2e.helpers.command import invoke
from tests.refusals import refuses
from tests.rows import read_jsonl, write_jsonl

import adjudge
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader
from adjudge.judges.asking import current_ask
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.samples import sample_from_row
from adjudge.stats.noise import noise_share
from adjudge.types import GraderMode, GraderRank, Sample

Draws = list[list[float | None]]


def tables(draws: int, groups: int, size: int, seed: int, *, noise: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(groups, size, 1))
    return rng.normal(size=(groups, 1, 1)) + signal + noise * rng.normal(size=(groups, size, draws))


def columns(table: np.ndarray) -> tuple[Draws, list[int]]:
    groups, size, draws = table.shape
    flat = table.reshape(groups * size, draws)
    return [list(map(float, column)) for column in flat.T], [
        group for group in range(groups) for _ in range(size)
    ]


def anova_share(table: np.ndarray) -> float:
    """Of a whole table: the two-way interaction over the mean variance of a draw."""
    _, size, draws = table.shape
    by_sample = table.mean(axis=2, keepdims=True)
    by_draw = table.mean(axis=1, keepdims=True)
    rest = table - by_sample - by_draw + table.mean(axis=(1, 2), keepdims=True)
    noise = (rest**2).sum() / ((size - 1) * (draws - 1))
    return float(noise / table.var(axis=1, ddof=1).mean(axis=1).sum())


@given(st.integers(2, 4), st.integers(2, 6), st.integers(2, 6), st.integers(0, 10**6))
def test_it_is_the_two_way_analysis_of_variance(
    draws: int, groups: int, size: int, seed: int
) -> None:
    table = tables(draws, groups, size, seed)
    found = noise_share(*columns(table))
    assert found.value == pytest.approx(min(1.0, anova_share(table)))
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    # What a draw adds to a whole group is in no advantage, and neither are scale and order.
    shifted = 3 * table + np.random.default_rng(seed).normal(size=(groups, 1, draws))
    again = noise_share(*columns(shifted[:, ::-1]))
    assert again.value == pytest.approx(found.value)
    assert again.high == pytest.approx(found.high)


@given(st.integers(0, 10**6))
def test_a_missing_draw_of_two_leaves_its_sample_out(seed: int) -> None:
    draws, groups = columns(tables(2, 5, 4, seed))
    gone = random.Random(seed).sample(range(20), 3)
    for place in gone:
        draws[place % 2][place] = None
    left = [place for place in range(20) if place not in gone]
    without = noise_share(
        [[column[at] for at in left] for column in draws], [groups[at] for at in left]
    )
    found = noise_share(draws, groups)
    assert (found.value, found.low, found.high) == (without.value, without.low, without.high)
    assert (found.samples, found.missing) == (17, 3)


def test_nothing_is_made_of_no_difference() -> None:
    quiet = noise_share([[1, 2, 3, 4, 6, 9]] * 3, list("aabbcc"))
    assert (quiet.value, quiet.low, quiet.noise_std, quiet.pairs_right) == (0.0, 0.0, 0.0, 1.0)
    assert quiet.high == pytest.approx(1 - 0.05 ** (1 / 3))
    for draws in ([[1.0] * 4] * 2, [[1, 2, None, None], [None, None, 1, 2]], [[1, 2, 3, 4]]):
        level = noise_share(draws, list("aabb"))
        assert (level.value, level.low, level.high, level.pairs_right) == (None,) * 4
    assert noise_share([[], []], []).groups == 0


def test_nothing_but_noise_is_all_of_it() -> None:
    against = noise_share([[0, 1, 0, 1], [1, 0, 1, 0]], list("aabb"))
    assert against.value == 1.0
    assert against.pairs_right == 0.5
    assert (against.low, against.high) == (None, None)
    alone = noise_share([[0, 1, 0, 1], [0, 1, 1, 1]], list("aaaa"))
    assert alone.value is not None
    assert alone.low is None
    one_group = noise_share([[0, 1, 2, 3, 4, 5], [1, 0, 2, 3, 4, 5]], list("aabbcc"))
    assert one_group.high is not None  # noise was seen in one group only
    with pytest.raises(ValueError, match="2 scores for 3"):
        noise_share([[1, 2], [1, 2]], list("aab"))


# --- asking --------------------------------------------------------------------------------------


class Noisy(BaseGrader):
    """The quality and noise, another with every draw; some draws fail, at first or for good."""

    score_range = (-19.0, 19.0)

    def __init__(
        self, name: str, failing: int | None = None, about: str = "r", *, for_good: bool = False
    ) -> None:
        super().__init__(name)
        self.failing, self.about, self.for_good = failing, about, for_good
        self.asked: Counter[int] = Counter()

    async def aevaluate(self, response: str, quality: float, draw: int = 0) -> float:
        self.asked[draw] += 1
        fails = self.for_good or not current_ask.get().attempt
        if fails and draw == self.failing and response.startswith(self.about):
            raise GradingFailure(ErrorKind.UNPARSABLE, "no verdict")
        return quality + random.Random(f"{draw} {response}").gauss(0, 3)


ROWS = [
    {
        "prompt": f"q{place // 4}",
        "response": f"r{place}",
        "group": str(place // 4),
        "quality": math.sin(place),
        "reference": f"r{place // 2 * 2}",
    }
    for place in range(24)
]


def compute(draws: int, grader: Any) -> tuple[Any, list[Any]]:
    """The samples graded in so many draws, and what each draw came to."""
    graders = [{"name": grader.name, "type": "own:Noisy"}]
    function = SpecRewardFunction(
        RewardSpec.from_dict({"graders": graders, "reward": {"normalise": False}}),
        graders={grader.name: grader},
        draws=draws,
    )
    samples = [sample_from_row(row, at) for at, row in enumerate(ROWS)]
    graded = adjudge.engine.loop.run_blocking(
        function.grade(samples, [str(row["group"]) for row in ROWS])
    )
    return function.reward(graded), function.draw_values(graded)


def test_what_cannot_be_read_is_drawn_again_beside_its_draw_and_a_failure_is_missing() -> None:
    read, unread = Noisy("judge", failing=1), Noisy("judge", failing=1, for_good=True)
    _, drawn = compute(3, read)
    assert read.asked == {0: 24, 1: 48, 2: 24}
    assert None not in [draw["reward"] for values in drawn for draw in values]
    rewards, drawn = compute(3, unread)
    assert [one.missing for one in rewards] == [None] * 24
    assert all([draw["reward"] is None for draw in one] == [False, True, False] for one in drawn)
    assert rewards[0].details["judge"]["draws"][1] is None
    lost, drawn = compute(2, Noisy("judge", failing=0, about="r7", for_good=True))
    assert [one.score is None for one in lost] == [at == 7 for at in range(24)]
    assert [draw["reward"] is None for draw in drawn[7]] == [True, False]


def test_events_and_groups_are_drawn_again_too() -> None:
    class Ranking(BaseGrader):
        async def aevaluate(self, response: list[str], draw: int = 0) -> GraderRank:
            order = random.Random(f"{draw}").sample(range(1, len(response) + 1), len(response))
            return GraderRank("judge", [float(place) for place in order])

    rewards, drawn = compute(2, Ranking("judge", GraderMode.LISTWISE))
    for one, values in zip(rewards, drawn, strict=True):
        assert one.details["judge"]["draws"] == [values[0]["reward"], values[1]["reward"]]
    assert any(values[0] != values[1] for values in drawn)

    class Turn(BaseGrader):
        score_range = (0.0, 9.0)

        async def aevaluate(self, event: dict[str, Any], draw: int = 0) -> float:
            return float(event["at"] + draw)

    events = [{"at": 1}, {"at": 3}]
    spec = RewardSpec.from_dict(
        {
            "graders": [{"name": "turn", "type": "own:Turn", "scope": "event"}],
            "reward": {"outcome_weight": 0.0, "event_weight": 1.0, "normalise": False},
        }
    )
    function = SpecRewardFunction(spec, graders={"turn": Turn("turn")}, draws=2)
    samples = [Sample(extra={"events": events}), Sample(1, extra={"events": []})]
    graded = adjudge.engine.loop.run_blocking(function.grade(samples, ["a", "a"]))
    [result, _] = function.reward(graded)
    assert result.details is not None
    assert [one["turn"]["draws"] for one in result.details["events"]] == [[1.0, 2.0], [3.0, 4.0]]
    assert [one["turn_score"] for one in function.draw_values(graded)[0]] == [2.0, 3.0]


# --- runs ----------------------------------------------------------------------------------------

OWN = """
import random
from pathlib import Path
from adjudge.graders.base import BaseGrader

class Noisy(BaseGrader):
    score_range = (-19.0, 19.0)

    async def aevaluate(self, response: str, quality: float, draw: int = 0) -> float:
        with Path("asked").open("a") as log:
            log.write(f"{draw}\\n")
        return quality + random.Random(f"{draw} {response}").gauss(0, 3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    write_jsonl(tmp_path / "rollouts.jsonl", ROWS)
    (tmp_path / "reward.toml").write_text(
        '[[graders]]\nname = "judge"\ntype = "own:Noisy"\n'
        '[[graders]]\nname = "right"\ntype = "string_match"\nweight = 0.5\n'
        "[reward]\nnormalise = false\n"
    )
    return tmp_path


def grade(*words: str) -> str:
    found = invoke("grade", "rollouts.jsonl", "-s", "reward.toml", "-q", *words)
    assert found.exit_code == 0, found.output
    return found.stdout


def rows(run: str) -> list[dict[str, Any]]:
    return read_jsonl(Path(run, "rewards.jsonl"))


def asked() -> Counter[str]:
    log = Path("asked")
    found = Counter(log.read_text().split())
    log.unlink()
    return found


@pytest.mark.usefixtures("folder")
def test_a_run_says_how_much_of_it_is_noise() -> None:
    grade("-o", "once")
    screen = grade("--draws", "3", "-o", "run")
    assert asked() == {"0": 48, "1": 24, "2": 24}
    drawn, once = rows("run"), rows("once")
    assert [row["reward"] for row in drawn] == [row["reward"] for row in once]
    assert all("reward_draws" not in row for row in once)
    for row in drawn:
        assert len(row["details"]["judge"]["draws"]) == 3
        assert "draws" not in row["details"]["right"]
    summary = json.loads(Path("run", "summary.json").read_text())
    noise = summary["noise"]
    assert "noise" not in json.loads(Path("once", "summary.json").read_text())
    column = [[row["details"]["judge"]["draws"][k] for row in drawn] for k in range(3)]
    groups = [row["group"] for row in drawn]
    assert noise["graders"]["judge"]["value"] == noise_share(column, groups).value
    assert noise["graders"]["right"] is None
    assert noise["reward"]["value"] < noise["graders"]["judge"]["value"]  # the rule has none
    assert "has more noise than signal" in " ".join(screen.split())
    assert any("judge has more noise than signal" in one for one in summary["warnings"])
    assert "Noise share:" in screen
    assert "Signal and noise" in Path("run", "report.html").read_text()


@pytest.mark.usefixtures("folder")
def test_a_killed_run_asks_only_for_the_draws_that_it_lacks() -> None:
    grade("--draws", "2", "-o", "run")
    whole, journal = rows("run"), Path("run", "journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:40]) + lines[40][:9])
    asked()
    grade("--draws", "2", "-o", "run")
    of_draws = Counter(str(json.loads(line)["d"]) for line in lines[40:] if b'"judge"' in line)
    assert asked() == of_draws
    assert rows("run") == whole
    grade("--draws", "3", "-o", "run")  # one draw more, of the same run
    assert asked() == {"2": 24}
    assert [row["reward"] for row in rows("run")] == [row["reward"] for row in whole]


def test_an_estimate_counts_all_draws(folder: Path) -> None:
    judge = '[judges.main]\ntype = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    (folder / "reward.toml").write_text(
        f'[[graders]]\nname = "good"\ntype = "helpfulness"\n{judge}'
        "price = {input = 1.0, output = 10.0}\nmax_tokens = 100\n"
    )
    once, thrice = (
        json.loads(grade("--dry-run", "--json", "--draws", draws))["in_all"] for draws in ("1", "3")
    )
    for key in ("calls", "input_tokens", "cost_usd"):
        assert thrice[key] == pytest.approx(3 * once[key])


def test_the_number_of_draws_is_checked(folder: Path) -> None:
    spec = tomllib.loads((folder / "reward.toml").read_text())
    with refuses("draws"):
        adjudge.grade(ROWS, spec, draws=0)
