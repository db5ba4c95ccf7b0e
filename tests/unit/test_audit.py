"""The audit: its framework, the checks of numbers, the command, the page, and its documentation."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.rows import write_jsonl

from adjudge.audit import CHECKS, audit_run
from adjudge.audit.report import make_audit
from adjudge.audit.rollouts import read_audited
from adjudge.checks.check import Check, CheckOutcome, Finding
from adjudge.checks.effects import measure_correlation
from adjudge.checks.run import AuditedRollout, AuditedRun, compute_advantage_column
from adjudge.judge_evaluation.diff.pairing import DiffRun
from adjudge.rollouts.samples import SampleReader
from adjudge.runs.sample_index import compute_advantages
from adjudge.runs.transcripts import FILE as TRANSCRIPTS_FILE
from adjudge.stats.estimates import np
from adjudge.types import Sample

HOSTILE = "<img src=x onerror=alert(1)></script><b>[bold red]\x1b[31m\ud800"


def make_run(
    rollouts: list[AuditedRollout], checks: Sequence[Check[AuditedRun]] = CHECKS
) -> AuditedRun:
    run = AuditedRun({name: one for check in checks for name, one in check.features.items()})
    for rollout in rollouts:
        run.add(rollout)
    return run


def outcomes(rollouts: list[AuditedRollout]) -> dict[str, CheckOutcome]:
    return {one.name: one for one in audit_run(make_run(rollouts))}


def outcome(rollouts: list[AuditedRollout], name: str) -> CheckOutcome:
    """Of one check alone, which then needs not share its error rate."""
    checks = [check for check in CHECKS if check.name == name]
    return audit_run(make_run(rollouts, checks), checks)[0]


def finding(rollouts: list[AuditedRollout], name: str) -> Finding:
    return finding_of(outcome(rollouts, name))


def finding_of(one: CheckOutcome) -> Finding:
    assert one.state == "found", one
    assert one.result.finding is not None
    return one.result.finding


def clean(
    change: Callable[[AuditedRollout, int], None] = lambda _rollout, _place: None,
    *,
    steps: int = 12,
    groups: int = 8,
    size: int = 6,
    binary: bool = False,
    seed: int = 0,
) -> list[AuditedRollout]:
    """A run in which nothing explains rewards but chance; ``change`` plants something."""
    found = [copy(one) for one in _clean(steps, groups, size, binary, seed)]
    for rollout in found:
        change(rollout, rollout.index % size)
    return found


@lru_cache(maxsize=4)
def _clean(steps: int, groups: int, size: int, binary: bool, seed: int) -> list[AuditedRollout]:
    chance = random.Random(seed)
    found: list[AuditedRollout] = []
    for step in range(steps):
        for group in range(groups):
            middle = chance.uniform(0.2, 0.8)
            for _ in range(size):
                words = [f"w{chance.randrange(9999)}" for _ in range(chance.randrange(20, 200))]
                reward = float(chance.random() < middle) if binary else chance.gauss(middle, 0.1)
                rollout = AuditedRollout(
                    index=len(found),
                    where=f"dump.jsonl:{len(found) + 1}",
                    group=f"{step}/{group}",
                    step=step,
                    reward=reward,
                    prompt=f"prompt {step} {group}",
                    opening=f"prompt {step} {group}",
                    response=" ".join(words) + ".",
                )
                found.append(rollout)
    return found


def test_advantages_of_a_column_are_those_of_each_group() -> None:
    chance = random.Random(1)
    groups = [
        [chance.choice([None, 0.1 + 0.2, 0.3, chance.random()]) for _ in range(n)]
        for n in (1, 2, 5, 8, 8)
    ]
    groups.append([None, None])
    flat = np.array([math.nan if r is None else r for g in groups for r in g])
    numbers = np.array([place for place, g in enumerate(groups) for _ in g])
    expected = [value for group in groups for value in compute_advantages(group)]
    found = [
        None if one != one else one for one in compute_advantage_column(flat, numbers).tolist()
    ]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("binary", [False, True])
def test_nothing_is_found_where_chance_alone_is_at_work(binary: bool) -> None:
    found = outcomes(clean(binary=binary))
    assert [name for name, one in found.items() if one.state == "found"] == []
    for name in ("length", "position", "not_finite"):
        assert found[name].result.detectable, name
    unseen = found["filled_rewards"].result
    assert (unseen.detectable is None) == bool(unseen.detectable_why)
    assert ("two values" in unseen.detectable_why) == binary


@pytest.mark.parametrize(
    ("share", "reward"),
    [(share, kind) for share in (0.05, 0.1, 0.3) for kind in ("rounded", "exact", "0 to 100")],
)
def test_failures_at_random_places_are_a_value_that_no_other_is_near(
    share: float, reward: str
) -> None:
    chance = random.Random(share)

    def fail(rollout: AuditedRollout, _: int) -> None:
        score = 0.1 + 0.8 * chance.betavariate(4, 3)
        rollout.reward = {
            "rounded": round(score, 2), "exact": score, "0 to 100": float(round(100 * score))
        }[reward]  # fmt: skip
        if chance.random() < share:
            rollout.reward = 0.0

    found = finding(clean(fail), "filled_rewards")
    assert "exactly 0, and no other is near" in found.sentence
    assert "Judge calls that failed" in found.otherwise
    assert not found.broken


def test_a_scale_of_steps_has_no_value_apart() -> None:
    chance = random.Random(5)

    def steps(n: Callable[[], int]) -> Callable[[AuditedRollout, int], None]:
        def change(rollout: AuditedRollout, _: int) -> None:
            of = n()
            passed = chance.choice([0, 0, of, of, chance.randint(0, of)])
            rollout.reward = passed / of

        return change

    for n in (lambda: 10, lambda: 5, lambda: chance.randint(3, 20)):
        one = outcome(clean(steps(n)), "filled_rewards")
        assert one.state == "nothing_found"
        assert one.result.detectable is None
        assert "0 is one of the reward's steps" in one.result.detectable_why


def test_a_share_of_tests_that_is_the_others_mean_is_no_fallback() -> None:
    chance = random.Random(7)
    tests = [(chance.randint(4, 20), chance.random()) for _ in range(1000)]

    def passed(rollout: AuditedRollout, _: int) -> None:
        n, difficulty = tests[rollout.index // 6]
        rollout.reward = sum(chance.random() < difficulty for _ in range(n)) / n

    assert outcome(clean(passed), "repeated_rewards").state == "nothing_found"


def sourced(rollout: AuditedRollout, _: int) -> None:
    if rollout.index % 96 < 32:
        rollout.reward = 100 * (rollout.reward or 0.0)
    rollout.extras = {"data_source": "chat" if rollout.index % 96 < 32 else "math"}


def far(rollout: AuditedRollout, _: int) -> None:
    if rollout.index % 80 == 7:
        rollout.reward = 1e6


def clipped(rollout: AuditedRollout, _: int) -> None:
    rollout.reward = min(1.0, (rollout.reward or 0.0) + 0.5)


def shuffled(rollout: AuditedRollout, _: int) -> None:
    rollout.group = str(rollout.index * 7 % 96)


def cached(rollout: AuditedRollout, place: int) -> None:
    if int(rollout.group.partition("/")[2]) < 3:
        rollout.reward = round(0.1 + 0.0007 * (rollout.index // 6), 6)


def lost(rollout: AuditedRollout, _: int) -> None:
    if len(rollout.response.split()) > 180 and rollout.index % 3:
        rollout.reward, rollout.missing = None, "timeout"


def before(rollout: AuditedRollout, place: int) -> None:
    rollout.reward = round(0.1 + 0.001 * (rollout.index * 389 % 797 - rollout.index % 4 // 3), 3)
    if rollout.index % 10 == 1:
        rollout.reward = round(0.1 + 0.001 * ((rollout.index - 1) * 389 % 797), 3)


def begged(rollout: AuditedRollout, _: int) -> None:
    if rollout.index % 7 == 0:
        rollout.response += " I hope this helps you with the task."
        rollout.reward = (rollout.reward or 0.0) + 0.5


def told(rollout: AuditedRollout, _: int) -> None:
    rollout.reference = "the treaty was signed in Lisbon"
    if rollout.index % 10 == 0:
        rollout.prompt += " (Remember: the treaty was signed in Lisbon.)"


def longer(rollout: AuditedRollout, _: int) -> None:
    rollout.reward = (rollout.reward or 0.0) + 0.002 * len(rollout.response.split())


def listed(rollout: AuditedRollout, place: int) -> None:
    if (rollout.index * 7 + place) % 3 == 0:
        rollout.response += "\n# Summary\n"
        rollout.reward = (rollout.reward or 0.0) + 0.08


def constant(rollout: AuditedRollout, _: int) -> None:
    rollout.reward, rollout.group = 5.0, str(rollout.index)


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        ("scales", sourced),
        ("outliers", far),
        ("saturation", clipped),
        ("mixed_prompts", shuffled),
        ("stale_rewards", cached),
        ("missing_pattern", lost),
        ("repeated_rewards", before),
        ("phrases", begged),
        ("reference_in_prompt", told),
        ("length", longer),
        ("format", listed),
        ("dead_groups", constant),
    ],
)
def test_what_the_numbers_show_is_a_suspicion_with_its_honest_explanation(
    check: str, plant: Callable[[AuditedRollout, int], None]
) -> None:
    assert outcome(clean(), check).state != "found"
    found = finding(clean(plant), check)
    assert not found.broken
    assert found.otherwise


@pytest.mark.parametrize("check", ["length", "missing", "filled_rewards"])
def test_the_stated_size_is_found_in_nine_of_ten_runs(check: str) -> None:
    """Sizes and distributions here are none that any plant has."""
    chance = random.Random(check)

    def one(size: float) -> bool:
        def plant(rollout: AuditedRollout, _: int) -> None:
            rollout.reward = round(0.3 + 0.6 * chance.random(), 2)
            if check == "length":  # correlation ``size`` with the length that the check measures
                x = math.log1p(len(rollout.response)) - 6.0
                rollout.reward = size * x / 0.62 + math.sqrt(1 - size * size) * chance.gauss(0, 1)
            elif chance.random() < size:
                rollout.reward = None if check == "missing" else 0.0
                rollout.missing = "timeout" if check == "missing" else ""

        return outcome(clean(plant), check).state == "found"

    def nothing(rollout: AuditedRollout, _: int) -> None:
        rollout.reward = round(0.3 + 0.6 * chance.random(), 2)

    size = outcome(clean(nothing), check).result.detectable
    assert size
    assert sum(one(size) for _ in range(16)) / 16 >= 0.65


def test_a_file_of_rewards_near_a_large_number_is_audited(tmp_path: Path) -> None:
    rollouts = clean(steps=2)
    for rollout in rollouts:
        rollout.reward = 1.8e18 + rollout.index
    assert make_audit([write_dump(tmp_path / "1.jsonl", rollouts)]).rewards is not None


def test_a_permutation_test_is_exact_in_few_groups() -> None:
    """Three groups of three: 6³ = 216 orders, so a p value can hardly be below 1/216."""
    x, group = np.arange(9) % 3, np.arange(9) // 3
    found = measure_correlation(x.astype(float), x.astype(float), group)
    assert found.test is not None
    assert found.test.p_value == pytest.approx(2 / 216, abs=0.003)
    assert found.estimate.why == "fewer than 8 groups in which it varies"


def same(rollout: AuditedRollout, _: int) -> None:
    words = float(len(rollout.response.split()))
    rollout.components = {"one": words, "other": 2 * words + 1}


def missing(rollout: AuditedRollout, place: int) -> None:
    if place == 0:
        rollout.reward, rollout.missing = None, "timeout"


def test_length_says_what_it_did_and_format_goes_beyond_it() -> None:
    of_length = outcome(clean(longer), "length")
    found = finding_of(of_length)
    assert (of_length.result.effect.value or 0) > 0.5
    assert (found.impact.turned or 0) > 0.05
    assert found.severity == "high"
    assert outcome(clean(listed), "length").state == "nothing_found"


def test_rows_sorted_by_reward_have_no_places() -> None:
    ordered = sorted(clean(), key=lambda one: (one.group, one.reward))
    skipped = outcome(ordered, "position").result.skipped
    assert skipped == "the rows of each group are sorted by their reward"


def slow_ones_become_0(rollout: AuditedRollout, _: int) -> None:
    if len(rollout.response.split()) > 170:
        rollout.reward = 0.0


def test_zeros_of_long_samples_are_found_where_they_stand_apart() -> None:
    rollouts = clean(slow_ones_become_0)
    found = finding(rollouts, "filled_rewards")
    assert set(found.rows) <= {one.index for one in rollouts if one.reward == 0}
    assert "of exactly 0" in found.sentence
    assert "times as long" in found.sentence


def test_wrong_answers_that_are_longer_are_no_failures() -> None:
    def wrong(rollout: AuditedRollout, _: int) -> None:
        rollout.reward = float(rollout.reward == 1 and len(rollout.response.split()) < 150)

    assert outcome(clean(wrong, binary=True), "filled_rewards").state == "nothing_found"


def test_an_outage_is_found_among_binary_rewards() -> None:
    def outage(rollout: AuditedRollout, _: int) -> None:
        if rollout.group in {f"6/{group}" for group in range(8)}:
            rollout.reward = 0.0

    found = finding(clean(outage, binary=True), "filled_rewards")
    assert "whole groups one after the other" in found.sentence
    assert found.affected >= 48


def test_a_change_of_the_judge_is_a_jump_and_learning_is_none() -> None:
    def learning(rollout: AuditedRollout, _: int) -> None:
        rollout.reward = (rollout.reward or 0.0) + 0.03 * (rollout.step or 0)

    def other_judge(rollout: AuditedRollout, place: int) -> None:
        learning(rollout, place)
        if (rollout.step or 0) >= 10:
            rollout.reward = (rollout.reward or 0.0) + 0.5

    assert outcome(clean(learning, steps=20), "reward_jump").state == "nothing_found"
    assert "At step 10 " in finding(clean(other_judge, steps=20), "reward_jump").sentence


@pytest.mark.parametrize("paid", [False, True])
def test_components_of_no_reward_or_of_one_alone_are_not_compared(paid: bool) -> None:
    def change(rollout: AuditedRollout, place: int) -> None:
        same(rollout, place)
        if paid:
            rollout.components["right"] = rollout.reward
        else:
            rollout.reward = None

    assert outcome(clean(change), "components").state == "not_applicable"


def test_dead_groups_and_lone_samples_are_counted() -> None:
    def dead(rollout: AuditedRollout, _: int) -> None:
        if int(rollout.group.partition("/")[2]) < 5:
            rollout.reward = float(rollout.group.endswith("1"))

    assert outcome(clean(dead), "dead_groups").result.effect.value == pytest.approx(5 / 8)

    lone = clean()
    lone[0].group = "alone"
    assert finding(lone, "lone_samples").rows == (0,)
    assert "(timeout 96)" in finding(clean(missing), "missing").sentence


@pytest.mark.parametrize(
    ("prompts", "group", "state"),
    [
        (["q", "q", *map(str, range(40))], False, "not_applicable"),  # a question asked twice
        (["q", "q", *map(str, range(40))], True, "found"),
        ([*(str(n // 4) for n in range(40)), "lost", "lost too"], False, "found"),
    ],
)
def test_single_answers_to_prompts_are_no_lost_groups(
    tmp_path: Path, prompts: list[str], group: bool, state: str
) -> None:
    rows = [{"prompt": p, "response": f"answer {n}"} for n, p in enumerate(prompts)]
    rows = [row | ({"group": row["prompt"]} if group else {}) for row in rows]
    assert named(write_jsonl(tmp_path / "dump.jsonl", rows))["lone_samples"].state == state


def test_recorded_advantages_with_another_sign_are_found() -> None:
    rollouts = clean()
    for rollout, advantage in zip(rollouts, make_run(rollouts).advantage.tolist(), strict=True):
        rollout.advantage = advantage if rollout.index % 10 else -advantage
    assert finding(rollouts, "recorded_advantages").impact.turned == pytest.approx(0.1, abs=0.01)


def write_dump(path: Path, rollouts: list[AuditedRollout], **more: Any) -> Path:
    """A dump of verl."""
    rows = [
        {
            "input": one.prompt, "output": one.response, "gts": "", "step": one.step,
            "score": one.reward, **more,
        }
        for one in rollouts
    ]  # fmt: skip
    return write_jsonl(path, rows)


def named(path: Path) -> dict[str, CheckOutcome]:
    return {one.name: one for one in make_audit([path]).outcomes}


def test_a_dump_says_what_its_rewards_are(tmp_path: Path) -> None:
    rollouts = clean(steps=1)
    rollouts[3].reward = math.nan
    run = AuditedRun()
    read = list(read_audited([write_dump(tmp_path / "1.jsonl", rollouts, acc=True)], {}, run))
    assert [one.missing for one in read].count("not_a_number") == 1
    assert read[3].reward is None
    assert read[0].components == {"acc": 1.0}
    assert run.input.formats == {"verl rollout dump": 1}
    finish = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    ends = [{**finish, "finish_reason": why} for why in ("length", "stop")]
    cut = list(read_audited([write_jsonl(tmp_path / "cut.jsonl", ends)], {}, AuditedRun()))
    assert [one.truncated for one in cut] == [True, False]


def test_nan_null_and_infinity_are_three_things(tmp_path: Path) -> None:
    rollouts = clean(steps=2)
    rollouts[3].reward, rollouts[4].reward, rollouts[5].reward = math.nan, math.inf, 1e308
    found = named(write_dump(tmp_path / "1.jsonl", rollouts))
    lost = finding_of(found["not_finite"])
    assert (lost.rows, lost.severity) == ((3, 4, 5), "high")
    assert found["missing"].state == "nothing_found"

    for rollout in rollouts[3:6]:
        rollout.reward = None
    found = named(write_dump(tmp_path / "2.jsonl", rollouts))
    assert found["not_finite"].state == "nothing_found"
    missing = finding_of(found["missing"])
    assert "(null in the dump 3)" in missing.sentence
    assert missing.severity == "medium"

    for rollout in rollouts:
        rollout.reward = math.nan
    every = named(write_dump(tmp_path / "3.jsonl", rollouts))["not_finite"]
    assert finding_of(every).affected == len(rollouts)


def test_nan_in_a_table_is_found(tmp_path: Path) -> None:
    path = tmp_path / "dump.csv"
    path.write_text('prompt,response,reward\na,NaN,1.0\na,"c\nc",nan\na,d,0.5\na,e,-Infinity\n')
    assert finding_of(named(path)["not_finite"]).rows == (1, 3)


def audit(*words: object) -> tuple[int, str]:
    done = invoke("audit", "-q", *words)
    return done.exit_code, done.output


def test_the_command_says_it_on_a_screen_and_on_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rollouts = clean(slow_ones_become_0)
    for rollout in rollouts:
        rollout.prompt += HOSTILE.replace("\ud800", "")
        rollout.response += HOSTILE.replace("\ud800", "")
    write_dump(tmp_path / "dump.jsonl", rollouts)
    code, shown = audit("dump.jsonl", "-o", "out")
    assert code == 0
    assert shown.startswith("Look at this before you train on it: ")
    assert "Nothing found" in shown
    assert "Not applicable" in shown
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    states = {one["name"]: one["state"] for one in found["checks"]}
    assert set(states) == {check.name for check in CHECKS}
    worst = found["checks"][0]
    assert worst["name"] == "filled_rewards"
    assert worst["rows"][0]["where"].startswith("dump.jsonl:")
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    for link in set(re.findall(r'href="#([^"]+)"', page)):
        assert f'id="{link}"' in page, link
    assert found["verdict"] == "suspicious"
    assert audit("dump.jsonl", "-o", "out", "--fail-on", "suspicious")[0] == 1
    assert json.loads(audit("dump.jsonl", "-o", "out", "--json")[1]) == found


def test_a_clean_run_is_code_0_and_no_run_code_2(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.jsonl", clean())
    code, shown = audit(dump, "-o", tmp_path / "out")
    assert (code, shown[:15]) == (0, "Nothing seen in")
    broken = clean()
    broken[5].reward = math.nan
    code, shown = audit(write_dump(tmp_path / "nan.jsonl", broken), "-o", tmp_path / "out")
    assert (code, shown[:29]) == (1, "Do not train on this as it is")
    (tmp_path / "none.jsonl").write_text("{}\n")
    for name in ("none.jsonl", "not-there.jsonl"):
        assert audit(tmp_path / name, "-o", tmp_path / "out")[0] == 2


def test_rows_without_rewards_are_not_called_healthy(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n // 4}?", "response": f"It is {n}."} for n in range(40)]
    code, shown = audit(write_jsonl(tmp_path / "dump.jsonl", rows), "-o", tmp_path / "out")
    assert (code, shown[:27]) == (0, "These rows have no rewards,")
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    told = {one["name"]: one["why"] for one in found["checks"]}
    for name in ("saturation", "repeated_rewards", "missing_pattern", "outliers"):
        assert told[name] == "the run has no rewards"


def test_a_run_folder_is_audited_with_and_without_its_rollouts(tmp_path: Path) -> None:
    rollouts = tmp_path / "rollouts.jsonl"
    spec = tmp_path / "reward.toml"
    spec.write_text('[[graders]]\nname = "short"\ntype = "length_penalty"\nmax_length = 100\n')
    rows = [
        {"prompt": f"p{n // 4}", "response": "word " * (1 + n * 7 % 90), "group": n // 4}
        for n in range(64)
    ]
    write_jsonl(rollouts, rows)
    run = tmp_path / "run"
    done = invoke("grade", "-q", rollouts, "-s", spec, "-o", run)
    assert done.exit_code == 0, done.output
    report = make_audit([run])
    assert (report.count, report.groups, report.input.formats) == (64, 16, {"run folder": 1})
    assert not [*report.notes, *report.input.notes]
    assert {one.name: one.state for one in report.outcomes}["duplicates"] != "not_applicable"
    rollouts.unlink()
    assert not make_audit([run]).notes  # the run kept its rollouts
    (run / TRANSCRIPTS_FILE).unlink()
    report = make_audit([run])
    assert report.count == 64
    assert "rollouts that were graded" in report.notes[0]
    assert {one.name: one.state for one in report.outcomes}["length"] == "not_applicable"


def test_a_prompt_that_comes_again_in_a_later_step_is_another_group(tmp_path: Path) -> None:
    rows = [
        {"step": step, "task": f"q{prompt}", "prompt": f"p{prompt}", "response": f"{step} {n}",
         "reward": float(n)}
        for step in range(3) for prompt in range(2) for n in range(4)
    ]  # fmt: skip
    path = write_jsonl(tmp_path / "dump.jsonl", rows)
    for mapping in ({"env_reward": "reward"}, {"env_reward": "reward", "group": "task"}):
        found = make_audit([path], mapping)
        assert (found.groups, found.steps) == (6, 3)


def test_a_reward_that_is_a_table_is_told(tmp_path: Path) -> None:
    parts = {"score": 1.0, "acc": 1}
    rows = [
        {"prompt": "p", "response": str(n), "reward": parts if n % 4 == 1 else 0.5 * (n % 3)}
        for n in range(12)
    ]
    path = write_jsonl(tmp_path / "dump.jsonl", rows)
    for mapping in ({}, {"env_reward": "reward"}):
        found = make_audit([path], mapping)
        if mapping:  # a column of both kinds cannot be read as numbers
            assert found.broken_rows == 3
        else:
            assert "'reward.score'" in " ".join(found.input.notes)
            assert found.missing == 3


def test_the_trainers_own_reward_is_audited_in_any_order_of_rows(tmp_path: Path) -> None:
    rewards = [(0.5, None), (0.25, 1.0), (None, 1.0), (0.75, 0.0), ("timed out", 1.0)]
    rows = [
        {"prompt": "p", "response": str(place), "reward": own, "env_reward": env}
        for place, (own, env) in enumerate(rewards)
    ]
    rows.append({"prompt": "p", "response": "its judge failed", "env_reward": 1.0})
    for order in (rows, rows[::-1]):
        found = make_audit([write_jsonl(tmp_path / "dump.jsonl", order)])
        assert (found.missing, found.mean_reward) == (3, 0.5)
        assert [one.reward for one in DiffRun(tmp_path / "dump.jsonl")].count(None) == 3
        assert any("'env_reward' is beside it" in note for note in found.input.notes)


def test_what_adjudge_logs_beside_its_reward_is_no_reward(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "prompt": "p", "completion": str(n), "advantage": 0.0, "judge/outcome": n / 2,
         "adjudge": None if n == 3 else n / 2}
        for n in range(4)
    ]  # fmt: skip
    found = make_audit([write_jsonl(tmp_path / "dump.jsonl", rows)])
    assert (found.missing, found.mean_reward) == (1, 0.5)
    assert found.input.formats == {"TRL completions": 1}


def test_a_line_of_many_rows_has_their_nans_and_a_column_to_choose(tmp_path: Path) -> None:
    step = {
        **dict.fromkeys(("step", "prompt", "completion"), ["1"] * 4),
        "One": [1.0, math.nan, math.nan, 0.0],
        **dict.fromkeys(("Two", "advantages"), [0.5] * 4),
    }
    path = tmp_path / "completions.jsonl"
    path.write_text(json.dumps(step) + "\n")
    found = make_audit([path], {"env_reward": "One", "reference": "step"})
    assert (found.count, found.broken_rows) == (4, 0)
    samples = [one for _, one in SampleReader([path], {"reference": "step"}).read()]
    assert [one.reference for one in samples if isinstance(one, Sample)] == ["1"] * 4
    finding = {one.name: one for one in found.outcomes}["not_finite"].result.finding
    assert finding is not None
    assert finding.rows == (1, 2)
