"""The samples of a run as pages show them: one in full with its group, and ways through all.

A link names a sample in a page's address, and still does after a reload or on another machine:
``17`` is the sample of that index, ``3/17`` that of step 3 of a training run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import ValidationError

from adjudge.errors import RolloutError, RunFolderError
from adjudge.report.page import to_browser_json
from adjudge.rewards.formulas import (
    AggregateTerm,
    aggregate,
    combine,
    group_step,
    normalise,
)
from adjudge.rewards.spec import RewardSettings
from adjudge.rollouts.samples import sample_from_row
from adjudge.runs.sample_index import (
    MOST,
    AdvantageComparison,
    Disagreements,
    RolloutIndex,
    drawable_number,
    find_disagreements,
    present_number,
)
from adjudge.runs.story import GraderFacts, read_grader_facts, tell_story
from adjudge.runs.transcripts import TranscriptStore
from adjudge.stats import collect, mean, std
from adjudge.types import GraderScore, Role

RunKind = Literal["train", "grade"]
_MAX_MEMBERS = 256
SCORE = "_score"
"""The end of the name of a grader's column."""


def decode_json(data: bytes | None) -> Any:
    """``None`` for no JSON."""
    try:
        return None if data is None else msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


class RunSamples:
    """The samples of the run in ``folder``, whose rows are indexed in ``rollouts``.

    ``run``: what ``run.json`` has; ``reward``: the settings of the reward, where the folder has
    them. ``generation``: how often the folder was read from the start.
    """

    def __init__(
        self, folder: Path, kind: RunKind | None = None, run: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.kind, self.generation = folder, kind, 1
        self.run: Mapping[str, Any] = run or {}
        self.reward: Mapping[str, Any] = self.run.get("reward") or {}
        self.rollouts = RolloutIndex(stepped=self.is_stepped)

    @property
    def is_stepped(self) -> bool:
        """Whether the recorded rewards came from a group step."""
        return bool(self.reward.get("group", "none") != "none")

    @property
    def path(self) -> Path:
        """The file of the samples."""
        return self.folder / ("rewards.jsonl" if self.kind == "grade" else "rollouts.jsonl")

    @property
    def graders(self) -> dict[str, GraderFacts]:
        """What the folder says of the run's graders."""
        return read_grader_facts(self.run)

    def add(self, line: bytes) -> None:
        """Take in the next line of the file."""
        rollouts = self.rollouts
        rollouts.add(rollouts.offsets[-1] + rollouts.sizes[-1] if rollouts else 0, line)

    def row(self, number: int) -> dict[str, Any] | None:
        """One sample's row from the file; ``None`` where the file has changed under us."""
        rollouts = self.rollouts
        try:
            with self.path.open("rb") as file:
                file.seek(rollouts.offsets[number])
                found = decode_json(file.read(rollouts.sizes[number]))
        except OSError:
            return None
        return to_browser_json(found) if isinstance(found, dict) else None

    def tell(self, row: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The story of a sample: its row with what the folder keeps of it."""
        graders, index, sample = self.graders, row.get("index"), None
        if self.kind != "grade" or type(index) is not int:
            if "response" in row and not isinstance(row.get("messages"), list):  # of a recorder
                with contextlib.suppress(RolloutError):
                    sample = sample_from_row(row, 0)
            return tell_story(graders, row, sample=sample, members=members)
        try:
            with TranscriptStore(self.folder, read_only=True) as store:
                sample, calls = store.read_sample(index), store.read_calls(index)
                why = "" if sample else store.read_fact("rule") or ""
        except RunFolderError as error:
            calls, why = {}, str(error)
        return tell_story(graders, row, sample=sample, calls=calls, members=members, unkept=why)


def present_rewards(rollouts: RolloutIndex, one: int) -> list[float]:
    """The rewards of a group that are there, near-ties made equal."""
    snapped = group_step(rollouts.rewards_of(one), "none")
    return [reward for reward in snapped if reward is not None]


def describe_group(rollouts: RolloutIndex, one: int) -> dict[str, Any]:
    """A group in numbers."""
    found = rollouts.groups[one]
    present = present_rewards(rollouts, one)
    return {
        "id": one,
        "row": found.rows[0],
        "name": found.name,
        "step": found.step,
        "size": len(found.rows),
        "missing": rollouts.missing.get(one, 0),
        "turned": rollouts.turned(one),
        "mean": mean(present),
        "std": std(present),
    }


def describe_sample(run: RunSamples, row: int) -> dict[str, Any] | None:
    """One sample: its story, its group, and where to go from it.

    ``story`` is :func:`~adjudge.runs.story.tell_story`'s. ``steps`` has the links of the
    samples to go to, ``chain`` how the reward came together, as far as the folder says. ``None``
    where there is no such sample, or its file has changed since it was indexed.
    """
    rollouts = run.rollouts
    if not 0 <= row < len(rollouts):
        return None
    found = run.row(row)
    if found is None:
        return None
    one = rollouts.group_of[row]
    members = list(rollouts.groups[one].rows)
    place = members.index(row)
    both, known = rollouts.both_ways(one), "outcome" in rollouts.scores
    outcomes = [
        rollouts.score("outcome", row) if known and not math.isnan(rollouts.reward[row]) else None
        for row in members
    ]
    return {
        "row": row,
        "link": sample_link(run, row),
        "steps": describe_steps(run, row),
        "group": describe_group(rollouts, one),
        "previous": members[place - 1] if place else None,
        "next": members[place + 1] if place + 1 < len(members) else None,
        "left_out": both.left_out[place],
        "as_zero": both.as_zero[place],
        "turned": place in both.turned,
        "chain": explain_reward(run.reward, run.graders, found, outcomes, place),
        **{name: drawable_number(found.get(name)) for name in ("seed", "policy_version", "tokens")},
        "turn_advantages": list(map(drawable_number, found["turn_advantages"]))
        if isinstance(found.get("turn_advantages"), list)
        else [],
        "story": run.tell(found, _compared_members(run, one, both)),
    }


def _compared_members(
    run: RunSamples, group: int, both: AdvantageComparison
) -> list[dict[str, Any]]:
    """A group's rewards and advantages, without a look into the file."""
    rollouts = run.rollouts
    turned = set(both.turned)
    return [
        {
            "row": row,
            "link": sample_link(run, row),
            "index": rollouts.places[row],
            "reward": present_number(rollouts.reward[row]),
            "missing": rollouts.kinds[rollouts.kind_of[row]],
            "env_reward": present_number(rollouts.env_reward[row]),
            "advantage": present_number(rollouts.advantage[row]),
            "left_out": both.left_out[place],
            "as_zero": both.as_zero[place],
            "turned": place in turned,
        }
        for place, row in enumerate(rollouts.groups[group].rows[:_MAX_MEMBERS])
    ]


# --- ways through the samples ---------------------------------------------------------------------


def sample_link(run: RunSamples, row: int) -> str:
    """The link of a sample."""
    rollouts = run.rollouts
    index = rollouts.places[row]
    if run.kind == "train":
        return f"{rollouts.groups[rollouts.group_of[row]].step}/{index}"
    return str(index)


def find_row(run: RunSamples, index: int, step: int | None = None) -> dict[str, int] | None:
    """The row that a link names; ``None`` where there is none, or not yet."""
    rollouts = run.rollouts
    rows: Iterable[int] = range(len(rollouts))
    if step is not None:
        groups = rollouts.steps.get(step, ())
        rows = (row for group in groups for row in rollouts.groups[group].rows)
    row = next((row for row in rows if rollouts.places[row] == index), None)
    return None if row is None else {"row": row}


def describe_steps(run: RunSamples, row: int) -> dict[str, str | None]:
    """The links from one sample to others; ``failure`` and ``group`` begin again at the end."""
    rollouts = run.rollouts
    members = rollouts.groups[rollouts.group_of[row]].rows
    place = members.index(row)
    failure = rollouts.failed.find(1, row + 1)
    if failure < 0:
        failure = rollouts.failed.find(1)
    found = {
        "previous": row - 1 if row else None,
        "next": row + 1 if row + 1 < len(rollouts) else None,
        "group": members[(place + 1) % len(members)] if len(members) > 1 else None,
        "failure": None if failure in {-1, row} else failure,
    }
    return {name: None if one is None else sample_link(run, one) for name, one in found.items()}


def list_disagreements(run: RunSamples) -> dict[str, Any]:
    """The worst disagreements of the run so far, each with the link of its sample."""
    found = find_run_disagreements(run)
    rollouts = run.rollouts
    return {
        "samples": len(rollouts),
        "rule": found.rule,
        "worst": [
            {
                **one._asdict(),
                "row": one.place,
                "link": sample_link(run, one.place),
                "name": _name(run, one.place),
            }
            for one in found.worst
        ],
    }


def _name(run: RunSamples, row: int) -> str:
    rollouts = run.rollouts
    group = rollouts.groups[rollouts.group_of[row]]
    step = f", step {group.step}" if run.kind == "train" else ""
    return f"Sample {rollouts.places[row]}{step}" + (f", group {group.name}" if group.name else "")


def find_run_disagreements(run: RunSamples, *, most: int | None = MOST) -> Disagreements:
    """The worst disagreements of the run so far; ``most`` ``None`` for all."""
    rollouts = run.rollouts
    every = range(len(rollouts))
    scores = {
        key.removesuffix(SCORE): [rollouts.score(key, row) for row in every]
        for key in rollouts.scores
        if key.endswith(SCORE)
    }
    env_rewards = [present_number(value) for value in rollouts.env_reward]
    judges = [name for name, one in run.graders.items() if one.asks_judge]
    return find_disagreements(rollouts.group_of, env_rewards, scores, judges, most=most)


# --- how a reward came together -------------------------------------------------------------------


class ChainStep(NamedTuple):
    """A number on the way to a reward: what it is, and ``value = what it was made from``."""

    name: str
    text: str


def explain_reward(
    settings: Mapping[str, Any],
    graders: Mapping[str, GraderFacts],
    row: Mapping[str, Any],
    outcomes: Sequence[float | None] = (),
    place: int = 0,
) -> list[ChainStep]:
    """The chain of numbers that made a row's reward, made anew from what its folder has.

    ``outcomes``: O of each member of its group, ``None`` where the reward is missing; the row's is
    at ``place``. What does not give the recorded number is left out: something else had a hand in
    it (a fallback, a step that needs more than O), and no formula is shown that does not hold.
    """
    info, made = row.get("reward_info"), _read_settings(settings)
    if not isinstance(info, dict) or made is None:
        return []
    steps = _explain_outcome(made, graders, row, info)
    reward = drawable_number(row.get("reward"))
    outcome, events = (drawable_number(info.get(name)) for name in ("outcome", "events"))
    outcomes = outcomes or [outcome]
    stepped = group_step(outcomes, made.group, bonus=made.bonus)[place]
    weights = [(made.event_weight, events, "events"), (made.outcome_weight, stepped, "outcome")]
    parts = [(weight, value, name) for weight, value, name in weights if weight]
    if made.group == "gdpo" or reward is None or any(value is None for _, value, _ in parts):
        return steps
    judge = math.fsum(weight * (value or 0.0) for weight, value, _ in parts)
    env = drawable_number(row.get("env_reward", info.get("env_reward")))
    found = combine(judge, env, made)
    if not _is_close(found, reward):
        return steps
    present = sum(one is not None for one in outcomes)
    if made.group != "none" and outcome is not None:
        said = f"{stepped:.4g} = {made.group} of {outcome:.4g} in its group of {present}"
        steps.append(ChainStep("outcome in its group", said))
    if len(parts) > 1 or parts[0][0] != 1:  # one part of weight 1 is the judge part
        words = " + ".join(f"{weight:g} × {value:.4g} ({name})" for weight, value, name in parts)
        steps.append(ChainStep("judge part", f"{judge:.4g} = {words}"))
    if made.combine_mode != "replace" or made.judge_scale != 1:
        sign = "+" if made.combine_mode == "weighted_sum" else "×"
        before = "" if made.combine_mode == "replace" else f"{env:.4g} (environment) {sign} "
        last = f"{made.judge_scale:g} (judge scale) × {judge:.4g} (judge part)"
        steps.append(ChainStep("reward", f"{reward:.4g} = {before}{last}"))
    return steps


def _read_settings(settings: Mapping[str, Any]) -> RewardSettings | None:
    """The settings that a chain needs; a training's table has others, too."""
    known = {key: settings[key] for key in RewardSettings.model_fields if key in settings}
    try:
        return RewardSettings.model_validate(known) if known else None
    except ValidationError:
        return None


def _is_close(found: object, recorded: float | None) -> bool:
    if recorded is None or not isinstance(found, float):
        return False
    return math.isclose(found, recorded, rel_tol=1e-6, abs_tol=1e-9)


def _explain_outcome(
    made: RewardSettings,
    graders: Mapping[str, GraderFacts],
    row: Mapping[str, Any],
    info: Mapping[str, Any],
) -> list[ChainStep]:
    """O = method(w, s) · Π gates + Σ penalties; nothing where a score alone is O."""
    details = row.get("details")
    details = details if isinstance(details, dict) else {}
    scores: dict[str, GraderScore] = {}
    idle = set()
    for name, one in graders.items():
        value, said = drawable_number(info.get(f"{name}_score")), details.get(name)
        if one.scope == "outcome" and one.weight and value is not None and one.role in set(Role):
            scores[name] = GraderScore(name, value, score_range=one.range, role=Role(one.role))
            metadata = said.get("metadata") if isinstance(said, dict) else None
            if isinstance(metadata, dict) and metadata.get("evaluable") is False:
                idle.add(name)
    outcome = drawable_number(info.get("outcome"))
    for left_out in (set[str](), idle):  # who had nothing to judge in the whole group is left out
        named = (name for name in scores if name not in left_out)
        terms = [AggregateTerm(name, graders[name].weight) for name in named]
        found = aggregate(scores, terms, made)
        if outcome is not None and _is_close(found, outcome):
            return _describe_outcome(made, terms, scores, outcome)
    return []


def _describe_outcome(
    made: RewardSettings,
    terms: Sequence[AggregateTerm],
    scores: Mapping[str, GraderScore],
    outcome: float,
) -> list[ChainStep]:
    """The scores of which a share of the range counts, and how O is made of all."""
    steps: list[ChainStep] = []
    values = {term.name: normalise(scores[term.name], made.normalise) for term in terms}
    for name, value in values.items():
        if value != scores[name].score:
            low, high = scores[name].score_range or (None, None)
            said = f"{value:.4g} = {scores[name].score:.4g} on the range {low:g} to {high:g}"
            steps.append(ChainStep(name, said))
    by_role = collect((scores[term.name].role, term) for term in terms)
    weighed = {one.name: f"{one.weight:g} × {values[one.name]:.4g} ({one.name})" for one in terms}
    scored = by_role.get(Role.SCORE, [])
    words = " + ".join(weighed[one.name] for one in scored)
    if made.aggregate == "min" and scored:
        words = f"least of {', '.join(f'{values[one.name]:.4g} ({one.name})' for one in scored)}"
    elif (possible := math.fsum(one.weight for one in scored if one.weight > 0)) != 1 and scored:
        words = f"({words}) ÷ {possible:g}"
    gates = [f"{values[one.name]:.4g} ({one.name})" for one in by_role.get(Role.GATE, [])]
    words = " × ".join(filter(None, [words, *gates]))
    penalties = [weighed[one.name] for one in by_role.get(Role.PENALTY, [])]
    words = " + ".join(filter(None, [words, *penalties]))
    if len(terms) > 1 or penalties:  # of one score alone the outcome is that score
        steps.append(ChainStep("outcome", f"{outcome:.4g} = {words}"))
    return steps
