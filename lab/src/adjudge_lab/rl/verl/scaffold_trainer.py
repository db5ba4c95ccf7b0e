"""verl 0.6.1's trainer with rubrics shown to training rollouts: RuscaRL.

Rollouts of training are drawn from prompts with a system message that shows criteria; all that
follows (rewards, log-probabilities, the update, dumps) has the original prompts. Validation is left
alone. Settings are those of ``[rollout.scaffold]``, as ``+adjudge.scaffold.…`` and
``+adjudge.seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adjudge.config import check_keys
from adjudge.config_tables import validate_model
from adjudge.errors import ConfigError, GradingFailure
from adjudge.rubrics import Criterion
from adjudge.trainers.verl.main_ppo import make_judge_trainer
from adjudge_lab.environments.tasks import has_rubrics, read_row_rubrics
from adjudge_lab.rl.runfile import ScaffoldTable
from adjudge_lab.rl.scaffold import add_scaffold_message, build_scaffold_message, draw_shown_rubrics

SHOWN_COLUMN, RATIO_COLUMN = "scaffold_shown", "scaffold_ratio"
"""Columns of a scaffolded batch: how many criteria a rollout was shown, and its reveal ratio."""


@dataclass(frozen=True)
class ScaffoldedPrompt:
    """What one rollout is shown."""

    messages: list[dict[str, Any]]
    shown: int
    ratio: float


@dataclass(frozen=True)
class RolloutScaffold:
    """What rollouts are shown in a run of ``steps`` steps with groups of ``size``."""

    scaffold: ScaffoldTable
    seed: int
    steps: int
    size: int

    def draw_prompts(
        self, rows: Sequence[Mapping[str, Any]], prompts: Sequence[Any], step: int
    ) -> list[ScaffoldedPrompt]:
        """One for each rollout of a step: groups one after another, each of ``size``.

        ``rows`` have the rubrics, ``prompts`` the chat messages. A group is its place in the step.
        Raises :class:`~adjudge.errors.ConfigError` for a row that has no rubrics.
        """
        return [
            self._one(row, prompt, step, *divmod(place, self.size))
            for place, (row, prompt) in enumerate(zip(rows, prompts, strict=True))
        ]

    def _one(
        self, row: Mapping[str, Any], prompt: Any, step: int, group: int, index: int
    ) -> ScaffoldedPrompt:
        ratio, shown = draw_shown_rubrics(
            self.scaffold, _read_prompt_rubrics(row, f"step {step}, prompt {group}"),
            step=step, steps=self.steps, index=index, size=self.size, seed=self.seed, group=group,
        )  # fmt: skip
        text = build_scaffold_message(shown, self.scaffold)
        return ScaffoldedPrompt(add_scaffold_message(prompt, text), len(shown), ratio)


def _read_prompt_rubrics(row: Mapping[str, Any], where: str) -> tuple[Criterion, ...]:
    # extra_info has a data set's own columns, with a run file all of them.
    extra = row.get("extra_info")
    places = [row, extra] if isinstance(extra, Mapping) else [row]
    found = next((place for place in places if has_rubrics(place)), row)
    try:
        return read_row_rubrics(found)
    except GradingFailure as failure:
        raise ConfigError(
            f"scaffold is on, but {where} {failure}, so this would be plain RL. Give every row "
            "rubrics, or train without a scaffold."
        ) from None


def generate_with_scaffold(
    batch: Any,
    drawn: Sequence[ScaffoldedPrompt],
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
    shown = _pad_prompts(tokens, width, pad, given["input_ids"])
    for name, tensor in shown.items():
        batch.batch[name] = tensor
    columns = batch.non_tensor_batch
    before = columns.get("raw_prompt_ids")
    if before is not None:
        columns["raw_prompt_ids"] = _object_column(before, list(map(list, tokens)))
    out = generate(batch)
    if not trained:
        _restore_prompts(out.batch, given)
        if before is not None and "raw_prompt_ids" in out.non_tensor_batch:
            out.non_tensor_batch["raw_prompt_ids"] = before
    blank = columns["raw_prompt"]
    out.non_tensor_batch[SHOWN_COLUMN] = _object_column(blank, [one.shown for one in drawn])
    out.non_tensor_batch[RATIO_COLUMN] = _object_column(blank, [one.ratio for one in drawn])
    return out


def _pad_prompts(
    tokens: Sequence[Sequence[int]], width: int, pad: int, like: Any
) -> dict[str, Any]:
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


def _restore_prompts(out: Any, given: Mapping[str, Any]) -> None:
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


def _object_column(column: Any, values: Sequence[Any]) -> Any:
    """``values`` as a column like another one: a numpy array of objects."""
    made = column.copy()
    for place, value in enumerate(values):
        made[place] = value
    return made


_ROWS_COLUMN = "adjudge_rows"
_RUBRIC_PARENTS = ("rubrics", "reward_model", "extra_info")


class ScaffoldTrainerMixin:
    """For a trainer of your own: ``class Trainer(ScaffoldTrainerMixin, RayPPOTrainer)``.

    Raises :class:`~adjudge.errors.ConfigError` at the start for what it cannot do (another rollout
    mode than ``sync``, no ``data.return_raw_chat``), and where a prompt has no rubrics or does not
    fit with them.
    """

    config: Any
    tokenizer: Any
    actor_rollout_wg: Any
    total_training_steps: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scaffold, self._seed = read_scaffold_config(self.config)

    def init_workers(self) -> None:
        """Also puts the scaffold around rollouts, and its metrics among the actor's."""
        super().init_workers()  # type: ignore[misc]  # of the trainer beside us
        workers = self.actor_rollout_wg
        generate, update = workers.generate_sequences, workers.update_actor

        def scaffolded_rollouts(batch: Any) -> Any:
            rows = batch.non_tensor_batch.pop(_ROWS_COLUMN, None)
            meta = batch.meta_info
            if rows is None or meta.get("validate", False) or not meta.get("do_sample", True):
                return generate(batch)
            drawn = self._schedule().draw_prompts(
                rows, batch.non_tensor_batch["raw_prompt"], meta["global_steps"]
            )
            return generate_with_scaffold(
                batch, drawn, [self._tokens(one) for one in drawn], generate=generate,
                pad=self.tokenizer.pad_token_id, trained=self._scaffold.participate_training,
            )  # fmt: skip

        def update_and_report(batch: Any) -> Any:
            output = update(batch)
            output.meta_info["metrics"].update(_scaffold_batch_metrics(batch, self._scaffold))
            return output

        workers.generate_sequences = scaffolded_rollouts
        workers.update_actor = update_and_report

    def _get_gen_batch(self, batch: Any) -> Any:
        """Verl's, with what has the rubrics beside each prompt."""
        columns = batch.non_tensor_batch
        found = {name: columns[name] for name in _RUBRIC_PARENTS if name in columns}
        rows = columns["raw_prompt"].copy()
        for place in range(len(rows)):
            rows[place] = {name: column[place] for name, column in found.items()}
        made = super()._get_gen_batch(batch)  # type: ignore[misc]  # as above
        made.non_tensor_batch[_ROWS_COLUMN] = rows
        return made

    def _log_rollout_data(
        self, batch: Any, reward_extra_infos_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """The dump of a training batch, with what each rollout was shown."""
        columns = batch.non_tensor_batch
        shown = {
            name: columns[name].tolist() for name in (SHOWN_COLUMN, RATIO_COLUMN) if name in columns
        }
        columns = {**reward_extra_infos_dict, **shown}
        super()._log_rollout_data(batch, columns, *args, **kwargs)  # type: ignore[misc]  # as above

    def _schedule(self) -> RolloutScaffold:
        size = int(self.config.actor_rollout_ref.rollout.n)
        return RolloutScaffold(self._scaffold, self._seed, self.total_training_steps, size)

    def _tokens(self, one: ScaffoldedPrompt) -> list[int]:
        settings = self.config.data.get("apply_chat_template_kwargs", None) or {}
        text = self.tokenizer.apply_chat_template(
            one.messages, add_generation_prompt=True, tokenize=False, **settings
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        room = _prompt_room(self.config, self._scaffold)
        if len(ids) > room:
            raise ConfigError(
                f"a prompt with {one.shown} of its criteria is too long (found {len(ids)} "
                f"tokens; allowed: {room}). Raise actor_rollout_ref.rollout.max_model_len "
                "(with participate_training: data.max_prompt_length)."
            )
        return ids


def read_scaffold_config(config: Any) -> tuple[ScaffoldTable, int]:
    """The scaffold of verl's ``config`` and the seed that draws from rubrics; checks the rest."""
    from omegaconf import OmegaConf  # noqa: PLC0415  (verl's)

    given = OmegaConf.to_container(config.get("adjudge") or OmegaConf.create({}), resolve=True)
    given = given if isinstance(given, dict) else {}
    check_keys(sorted(map(str, given)), ("scaffold", "seed"), "adjudge.")
    seed = given.get("seed", 0)
    if type(seed) is not int:
        raise ConfigError(f"adjudge.seed: must be an integer (found {str(seed)[:40]!r})")
    scaffold = validate_model(ScaffoldTable, given.get("scaffold") or {}, "adjudge.scaffold")
    mode = config.actor_rollout_ref.rollout.mode
    if mode != "sync":
        raise ConfigError(
            "actor_rollout_ref.rollout.mode: must be 'sync', because a scaffold needs whole "
            f"groups (found {mode!r})"
        )
    if not config.data.get("return_raw_chat", False):
        raise ConfigError(
            "data.return_raw_chat: must be True, because a scaffold is written into the messages"
        )
    if not scaffold.participate_training:
        _check_correction(config, scaffold)
    return scaffold, seed


def _check_correction(config: Any, scaffold: ScaffoldTable) -> None:
    """Raise where verl's settings do not do what ``correction`` says."""
    rollout, theirs = config.actor_rollout_ref.rollout, config.algorithm.rollout_correction
    key = "adjudge.scaffold.correction"
    if scaffold.correction == "none":
        if theirs.rollout_is is not None or theirs.bypass_mode:
            raise ConfigError(
                f"{key}: is 'none', and algorithm.rollout_correction is set. Remove one of them."
            )
        return
    wanted = {"rollout_is": "token", "rollout_is_threshold": scaffold.correction_cap}
    done = {name: theirs[name] for name in wanted}
    if done != wanted or theirs.bypass_mode or not rollout.calculate_log_probs:
        lines = [f"algorithm.rollout_correction.{name}={value}" for name, value in wanted.items()]
        raise ConfigError(
            f"{key}: verl's settings do not do this correction (found {scaffold.correction!r}). "
            f"Set {' '.join(lines)} algorithm.rollout_correction.bypass_mode=False "
            "actor_rollout_ref.rollout.calculate_log_probs=True, or "
            "+adjudge.scaffold.correction=none."
        )


def _prompt_room(config: Any, scaffold: ScaffoldTable) -> int:
    """The tokens that a scaffolded prompt may have."""
    rollout = config.actor_rollout_ref.rollout
    if scaffold.participate_training or not rollout.max_model_len:
        return int(rollout.prompt_length)
    return int(rollout.max_model_len) - int(rollout.response_length)


def _scaffold_batch_metrics(batch: Any, scaffold: ScaffoldTable) -> dict[str, float]:
    """What the step's rollouts were shown, and the weights of tokens drawn with a scaffold."""
    columns, tensors = batch.non_tensor_batch, batch.batch
    if SHOWN_COLUMN not in columns:
        return {}
    found = {
        "scaffold/shown_mean": float(columns[SHOWN_COLUMN].astype(float).mean()),
        "scaffold/ratio_mean": float(columns[RATIO_COLUMN].astype(float).mean()),
    }
    if "rollout_is_weights" not in tensors.keys():  # noqa: SIM118  (a TensorDict)
        return found
    mask = tensors["response_mask"].bool()
    if not scaffold.add_base_when_zero:  # else every prompt has been added to
        drawn = [count > 0 for count in columns[SHOWN_COLUMN].tolist()]
        mask = mask & mask.new_tensor(drawn)[:, None]
    weights = tensors["rollout_is_weights"][mask].float()
    if weights.numel() == 0:
        return found
    squares = float(weights.square().mean())
    return found | {
        "scaffold/weight_mean": float(weights.mean()),
        "scaffold/weight_clipped_frac": float((weights >= scaffold.correction_cap).float().mean()),
        "scaffold/ess": float(weights.mean()) ** 2 / squares if squares else 0.0,
    }


def build_scaffold_trainer() -> type:
    """The trainer with judges (of :func:`make_judge_trainer`) and this mixin."""
    return type("ScaffoldRayPPOTrainer", (ScaffoldTrainerMixin, make_judge_trainer()), {})
