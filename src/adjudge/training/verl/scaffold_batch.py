"""A batch of verl's rollouts drawn from scaffolded prompts, and put back on the original ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ConfigError, GradingFailure
from adjudge.rubrics import Criterion
from adjudge.training.runfile.tables import Scaffold
from adjudge.training.scaffold.message import scaffolded, system_message
from adjudge.training.scaffold.rows import has_rubrics, rubrics_of
from adjudge.training.scaffold.schedule import reveal_ratio, shown_rubrics

__all__ = ["COUNT", "RATIO", "Drawn", "RolloutScaffold", "generated"]

COUNT, RATIO = "scaffold_shown", "scaffold_ratio"
"""Columns of a scaffolded batch: how many criteria a rollout was shown, and its reveal ratio."""


@dataclass(frozen=True)
class Drawn:
    """What one rollout is shown."""

    messages: list[dict[str, Any]]
    shown: int
    ratio: float


@dataclass(frozen=True)
class RolloutScaffold:
    """What rollouts are shown in a run of ``steps`` steps with groups of ``size``."""

    scaffold: Scaffold
    seed: int
    steps: int
    size: int

    def drawn(
        self, rows: Sequence[Mapping[str, Any]], prompts: Sequence[Any], step: int
    ) -> list[Drawn]:
        """One for each rollout of a step: groups one after another, each of ``size``.

        ``rows`` have the rubrics, ``prompts`` the chat messages. A group is its place in the step.
        Raises :class:`~adjudge.errors.ConfigError` for a row that has no rubrics.
        """
        return [
            self._one(row, prompt, step, *divmod(place, self.size))
            for place, (row, prompt) in enumerate(zip(rows, prompts, strict=True))
        ]

    def _one(self, row: Mapping[str, Any], prompt: Any, step: int, group: int, index: int) -> Drawn:
        at = {"step": step, "steps": self.steps, "index": index, "size": self.size}
        rubrics = _rubrics(row, f"step {step}, prompt {group}")
        shown = shown_rubrics(self.scaffold, rubrics, **at, seed=self.seed, group=group)
        text = system_message(shown, self.scaffold)
        return Drawn(scaffolded(prompt, text), len(shown), reveal_ratio(self.scaffold, **at))


def _rubrics(row: Mapping[str, Any], where: str) -> tuple[Criterion, ...]:
    # Under extra_info stand a data set's own columns, with a run file all of them.
    extra = row.get("extra_info")
    places = [row, extra] if isinstance(extra, Mapping) else [row]
    found = next((place for place in places if has_rubrics(place)), row)
    try:
        return rubrics_of(found)
    except GradingFailure as failure:
        raise ConfigError(
            f"scaffold is on, but {where} {failure}: nothing would be shown, and this would be "
            "plain RL"
        ) from None


def generated(
    batch: Any,
    drawn: Sequence[Drawn],
    tokens: Sequence[Sequence[int]],
    *,
    pad: int,
    trained: bool,
    generate: Callable[[Any], Any],
) -> Any:
    """What ``generate`` makes of ``batch`` with the prompts ``tokens``, on the original prompts.

    ``batch``: verl's ``DataProto`` of prompts, (rollouts, prompt length), padded on the left; it is
    changed. The result has ``prompts``, ``input_ids``, ``attention_mask`` and ``position_ids`` of
    the original prompts and the replies (``trained``: of the prompts that were shown), and the
    replies' own tensors as they come: ``rollout_log_probs`` are those of the prompts shown.
    """
    given = {name: batch.batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    width = given["input_ids"].shape[1] if trained else max(map(len, tokens))
    shown = _padded(tokens, width, pad, given["input_ids"])
    for name, tensor in shown.items():
        batch.batch[name] = tensor
    columns = batch.non_tensor_batch
    before = columns.get("raw_prompt_ids")
    if before is not None:
        columns["raw_prompt_ids"] = _like(before, list(map(list, tokens)))
    out = generate(batch)
    if not trained:
        _restore(out.batch, given)
        if before is not None and "raw_prompt_ids" in out.non_tensor_batch:
            out.non_tensor_batch["raw_prompt_ids"] = before
    blank = columns["raw_prompt"]
    out.non_tensor_batch[COUNT] = _like(blank, [one.shown for one in drawn])
    out.non_tensor_batch[RATIO] = _like(blank, [one.ratio for one in drawn])
    return out


def _padded(tokens: Sequence[Sequence[int]], width: int, pad: int, like: Any) -> dict[str, Any]:
    ids = like.new_full((len(tokens), width), pad)
    mask = like.new_zeros((len(tokens), width))
    for row, one in enumerate(tokens):
        ids[row, width - len(one) :] = like.new_tensor(one)
        mask[row, width - len(one) :] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(dim=-1) - 1).clamp(min=0),
    }


def _restore(out: Any, given: Mapping[str, Any]) -> None:
    import torch  # noqa: PLC0415  (heavy)

    said = out["responses"]
    length = said.shape[1]
    mask = out["attention_mask"][:, -length:]
    after = torch.arange(1, length + 1, device=said.device)[None]
    later = given["position_ids"][:, -1:] + after
    out["prompts"] = given["input_ids"]
    out["input_ids"] = torch.cat([given["input_ids"], said], dim=1)
    out["attention_mask"] = torch.cat([given["attention_mask"], mask], dim=1)
    out["position_ids"] = torch.cat([given["position_ids"], later], dim=1)


def _like(column: Any, values: Sequence[Any]) -> Any:
    """``values`` as a column like another one, whose numpy array has objects."""
    made = column.copy()
    for place, value in enumerate(values):
        made[place] = value
    return made
