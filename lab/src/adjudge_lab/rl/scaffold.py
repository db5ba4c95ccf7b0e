"""RuscaRL: training rollouts are shown a part of their row's rubrics, less and less of it.

The schedule says how much a rollout is shown, and which of them: ratio = group share (by the
rollout's place in its group) · step share (by the training's progress), as RuscaRL has it (arXiv
2508.16949, and the code that came with it). A system message shows them. The off-policy correction
is for rollouts drawn with a scaffold and trained without it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.prompts import clean_text
from adjudge.rubrics import Criterion
from adjudge_lab.environments import DatasetTask, Policy
from adjudge_lab.environments.tasks import read_row_rubrics
from adjudge_lab.rl.episodes import Lane, OpenLanes
from adjudge_lab.rl.runfile import RunFile, ScaffoldTable

_BASE_PROMPT = "You are a helpful assistant."
_OPENING = f"{_BASE_PROMPT} These criteria say what a good answer is."
_GOOD_TITLE = "It should do this:"
_BAD_TITLE = "It should not do this:"
_WARNING = (
    "Do not mention the criteria, nor let it show that you know them: answer as if there were only "
    "the question."
)


def build_scaffold_message(shown: Sequence[Criterion], scaffold: ScaffoldTable) -> str | None:
    """The text that shows the policy ``shown``, with what each is worth; ``None``: say nothing.

    Nothing is said where nothing is shown, unless ``add_base_when_zero``. A criterion is data: one
    line each, without the control tokens of chat templates.

    >>> print(build_scaffold_message([Criterion("Names a dose", points=5)], ScaffoldTable(
    ...     include_evaluation_warning=False)))
    You are a helpful assistant. These criteria say what a good answer is.
    <BLANKLINE>
    It should do this:
    1. Names a dose (worth 5 points)
    """
    if not shown:
        return _BASE_PROMPT if scaffold.add_base_when_zero else None
    good = [
        f"{_criterion_line(one)} (worth {one.worth:g} points)" for one in shown if one.worth > 0
    ]
    bad = [
        f"{_criterion_line(one)} (penalty {-one.worth:g} points)" for one in shown if one.worth < 0
    ]
    parts = [_OPENING, _numbered_list(_GOOD_TITLE, good), _numbered_list(_BAD_TITLE, bad)]
    if scaffold.include_evaluation_warning:
        parts.append(_WARNING)
    return "\n\n".join(part for part in parts if part)


def add_scaffold_message(
    messages: Sequence[Mapping[str, Any]], text: str | None
) -> list[dict[str, Any]]:
    """``messages`` with ``text`` as their system message, or at the end of the one they have.

    >>> add_scaffold_message([{"role": "user", "content": "Hello"}], "Be polite.")[0]
    {'role': 'system', 'content': 'Be polite.'}
    """
    turns = [dict(turn) for turn in messages]
    if text is None:
        return turns
    said = turns[0].get("content") if turns and turns[0].get("role") == "system" else None
    if isinstance(said, str):
        turns[0]["content"] = f"{said}\n\n{text}"
        return turns
    if isinstance(said, list):  # content in parts: a second system message is refused by templates
        turns[0]["content"] = [*said, {"type": "text", "text": text}]
        return turns
    return [{"role": "system", "content": text}, *turns]


def _criterion_line(criterion: Criterion) -> str:
    """A criterion's text on one line, so that no part of it can pass for another."""
    return " ".join(clean_text(criterion.text).split())


def _numbered_list(title: str, lines: Sequence[str]) -> str:
    numbered = [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
    return "\n".join([title, *numbered]) if numbered else ""


_MAX_EXPONENT = 700.0  # e to more than that is no float


def group_share(scaffold: ScaffoldTable, index: int, size: int) -> float:
    """The share of the rollout at ``index`` (from 0) in a group of ``size``, in [0, 1].

    ``linear``: from 1 for the first to 0 for the last, 1 in a group of one; ``binary``: 1 for the
    first ``full_reveal_count``, 0 for the others.
    """
    kind = scaffold.rule if scaffold.rule in ("linear", "binary") else scaffold.group_decay_type
    if kind == "binary":
        return float(index < scaffold.full_reveal_count)
    return 1.0 if size == 1 else (size - 1 - index) / (size - 1)


def step_share(scaffold: ScaffoldTable, step: int, steps: int) -> float:
    """The share of ``step`` (from 1) of ``steps``, in [0, 1]; it never grows with ``step``.

    1 under a rule without ``step_``, and in a training of one step. With x from 0 at the first step
    to 1 at the last: 1 − x, its power ``step_power_n``, or 1 / (1 + e^((x − start) · steepness)).

    >>> share = ScaffoldTable(step_sigmoid_start_point=0.2, step_sigmoid_steepness=125.0)
    >>> [round(step_share(share, step, 350), 2) for step in (1, 60, 70, 71, 85)]
    [1.0, 0.98, 0.57, 0.48, 0.01]
    """
    if steps <= 1 or not scaffold.rule.startswith("step_"):
        return 1.0
    done = min(1.0, max(0.0, (step - 1) / (steps - 1)))
    if scaffold.rule == "step_linear":
        return 1.0 - done
    if scaffold.rule == "step_power":
        return float((1.0 - done) ** scaffold.step_power_n)
    late = (done - scaffold.step_sigmoid_start_point) * scaffold.step_sigmoid_steepness
    return 0.0 if late > _MAX_EXPONENT else 1.0 / (1.0 + math.exp(late))


def reveal_ratio(scaffold: ScaffoldTable, *, step: int, steps: int, index: int, size: int) -> float:
    """The share of its rubrics that a rollout is shown, in [0, 1].

    >>> table = ScaffoldTable(rule="linear")
    >>> [reveal_ratio(table, step=1, steps=9, index=i, size=3) for i in range(3)]
    [1.0, 0.5, 0.0]
    """
    return group_share(scaffold, index, size) * step_share(scaffold, step, steps)


def draw_shown_rubrics(
    scaffold: ScaffoldTable,
    rubrics: Sequence[Criterion],
    *,
    step: int,
    steps: int,
    index: int,
    size: int,
    seed: int,
    group: str | int,
) -> tuple[float, list[Criterion]]:
    """The :func:`reveal_ratio` of a rollout, and which of ``rubrics`` it is shown, in their order.

    So many: their number times the ratio, rounded, halves to the even number. Criteria of 0 points
    are never among them and do not count. Those drawn are the same ones for the same ``seed`` (the
    run's), ``step``, ``group`` and ``index``.
    """
    worth = [one for one in rubrics if one.worth]
    ratio = reveal_ratio(scaffold, step=step, steps=steps, index=index, size=size)
    rng = random.Random(f"scaffold {seed} {step} {group} {index}")  # noqa: S311  (no secret)
    places = rng.sample(range(len(worth)), round(len(worth) * ratio))
    return ratio, [worth[place] for place in sorted(places)]


class RevealedRubrics(msgspec.Struct):
    """What a rollout was shown: a share of its rubrics, so many of them, and which by their ids."""

    ratio: float
    shown: int
    ids: list[str]


class StepScaffold:
    """The scaffolds of step ``step``; its rollouts begin with the rows ``seeds``.

    The same for the same run file, step and place; a resumed run shows what it would have shown.
    Raises ``GradingFailure`` for a row with unreadable rubrics.
    """

    def __init__(
        self,
        run: RunFile,
        scaffold: ScaffoldTable,
        task: DatasetTask,
        *,
        step: int,
        seeds: Sequence[int],
        groups: Sequence[str],
    ) -> None:
        self._texts: list[str | None] = []
        self.revealed: list[RevealedRubrics] = []
        size = run.training.group_size
        for place, (seed, group) in enumerate(zip(seeds, groups, strict=True)):
            ratio, shown = draw_shown_rubrics(
                scaffold, read_row_rubrics(task.begin(seed).columns),
                step=step, steps=run.training.steps, index=place % size, size=size,
                seed=run.training.seed, group=group,
            )  # fmt: skip
            self.revealed.append(RevealedRubrics(ratio, len(shown), [one.id for one in shown]))
            self._texts.append(build_scaffold_message(shown, scaffold))

    def is_scaffolded(self, place: int) -> bool:
        """Whether the policy reads anything at ``place`` that its prompt does not have."""
        return self._texts[place] is not None

    def lanes(self, lanes: OpenLanes) -> OpenLanes:
        """``lanes`` in which the policy reads the scaffold of its place before the prompt.

        The episode itself never has it: graders see the prompt as the dataset has it.
        """
        return lambda count: [_ScaffoldedLane(lane, self._texts) for lane in lanes(count)]


class _ScaffoldedLane:
    def __init__(self, lane: Lane, texts: Sequence[str | None]) -> None:
        self._lane, self._texts = lane, texts

    def policy(self, place: int) -> Policy:
        """Who speaks in the episode at ``place``, with its scaffold before its eyes."""
        speak, text = self._lane.policy(place), self._texts[place]

        def speak_with_scaffold(messages: Sequence[Any]) -> Any:
            return speak(add_scaffold_message(messages, text))

        return speak_with_scaffold

    def close(self) -> None:
        """No more episodes."""
        self._lane.close()


def scaffold_metrics(revealed: Sequence[RevealedRubrics | None]) -> dict[str, float]:
    """What a step's rollouts were shown on average; nothing where no scaffold is on.

    >>> scaffold_metrics([RevealedRubrics(1.0, 4, []), RevealedRubrics(0.5, 2, [])])
    {'scaffold/ratio_mean': 0.75, 'scaffold/shown_mean': 3.0}
    """
    known = [one for one in revealed if one is not None]
    if not known:
        return {}
    return {
        "scaffold/ratio_mean": sum(one.ratio for one in known) / len(known),
        "scaffold/shown_mean": sum(one.shown for one in known) / len(known),
    }


def correct_off_policy(
    output: dict[str, Any],
    shown: Sequence[bool],
    scaffold: ScaffoldTable,
    *,
    lags: bool,
    logps: Callable[[], Any],
) -> dict[str, float]:
    """Change the trainer's batch in place for the rollouts that were ``shown`` a scaffold.

    ``truncated_is``: the advantage of each of their tokens is multiplied with
    min(π_old(token | prompt) / π_old(token | scaffold, prompt), ``correction_cap``), which is what
    multiplying the clipped objective with that weight is, as no weight is negative. ``lags``: the
    batch has its own old log-probabilities, those of drawing; theirs become ``logps()``, so that
    the trainer's own ratio is one of policies and not of prompts.

    ``logps()``: log-probabilities of all completions after the prompts without scaffolds, by the
    policy before this update. Returns metrics over the tokens drawn with a scaffold:
    ``weight_mean``, ``weight_clipped_frac`` (the share at the cap) and ``ess``, the effective
    sample size (Σw)² / Σw² as a share of their number; nothing where no such token is weighed.
    """
    import torch  # noqa: PLC0415

    weighs = scaffold.correction == "truncated_is"
    if not any(shown) or not (lags or weighs):
        return {}
    drawn = output["sampling_per_token_logps"]
    rows = torch.tensor(list(shown), device=drawn.device).unsqueeze(1)
    unshown = logps().to(drawn.device)
    if lags:
        output["old_per_token_logps"] = torch.where(rows, unshown, output["old_per_token_logps"])
    if not weighs:
        return {}
    theirs = rows & (output["completion_mask"] > 0)
    if not bool(theirs.any()):
        return {}
    cap = math.log(scaffold.correction_cap)
    log_ratio = torch.where(theirs, unshown - drawn, 0.0)
    weights = torch.where(theirs, log_ratio.clamp(max=cap).exp(), 1.0)
    advantages = output["advantages"]
    spread = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
    output["advantages"] = spread * weights
    found, clipped = weights[theirs].double(), log_ratio[theirs] > cap
    squares = float((found**2).sum())
    return {
        "scaffold/weight_mean": float(found.mean()),
        "scaffold/weight_clipped_frac": float(clipped.double().mean()),
        "scaffold/ess": float(found.sum()) ** 2 / (found.numel() * squares) if squares else 0.0,
    }


def compute_unscaffolded_logps(trainer: Any, output: dict[str, Any]) -> Any:
    """Log-probabilities of the batch's completions after the prompts that are trained on.

    By the trainer's own forward pass, at its temperature. Shape: rollouts × completion tokens.
    """
    import torch  # noqa: PLC0415

    parts = [(output[f"{part}_ids"], output[f"{part}_mask"]) for part in ("prompt", "completion")]
    ids, mask = (torch.cat(both, dim=1) for both in zip(*parts, strict=True))
    with torch.no_grad():
        logps, *_ = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001  (has no other door)
            trainer.model,
            ids,
            mask,
            output["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size,
        )
    return logps
