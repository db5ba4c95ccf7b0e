"""verl 0.6.1's trainer with rubrics shown to training rollouts: RuscaRL.

Rollouts of training are drawn from prompts with a system message that shows criteria; all that
follows (rewards, log-probabilities, the update, dumps) has the original prompts. Validation is left
alone. Settings are those of ``[rollout.scaffold]``, as ``+adjudge.scaffold.…`` and
``+adjudge.seed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.config import validate
from adjudge.errors import ConfigError
from adjudge.trainers.verl.trainer import judge_trainer
from adjudge.training.runfile.tables import Scaffold
from adjudge.training.verl.scaffold_batch import COUNT, RATIO, Drawn, RolloutScaffold, generated

__all__ = ["ScaffoldTrainerMixin", "scaffold_trainer"]

_ROWS = "adjudge_rows"
_WHERE_RUBRICS_MAY_BE = ("rubrics", "reward_model", "extra_info")


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
        self._scaffold, self._seed = scaffold_of(self.config)

    def init_workers(self) -> None:
        """Also puts the scaffold around rollouts, and its metrics among the actor's."""
        super().init_workers()  # type: ignore[misc]  # of the trainer beside us
        workers = self.actor_rollout_wg
        generate, update = workers.generate_sequences, workers.update_actor

        def scaffolded_rollouts(batch: Any) -> Any:
            rows = batch.non_tensor_batch.pop(_ROWS, None)
            meta = batch.meta_info
            if rows is None or meta.get("validate", False) or not meta.get("do_sample", True):
                return generate(batch)
            drawn = self._schedule().drawn(
                rows, batch.non_tensor_batch["raw_prompt"], meta["global_steps"]
            )
            return generated(
                batch, drawn, [self._tokens(one) for one in drawn], generate=generate,
                pad=self.tokenizer.pad_token_id, trained=self._scaffold.participate_training,
            )  # fmt: skip

        def update_and_report(batch: Any) -> Any:
            output = update(batch)
            output.meta_info["metrics"].update(_metrics(batch, self._scaffold))
            return output

        workers.generate_sequences = scaffolded_rollouts
        workers.update_actor = update_and_report

    def _get_gen_batch(self, batch: Any) -> Any:
        """Verl's, with what has the rubrics beside each prompt."""
        columns = batch.non_tensor_batch
        found = {name: columns[name] for name in _WHERE_RUBRICS_MAY_BE if name in columns}
        rows = columns["raw_prompt"].copy()
        for place in range(len(rows)):
            rows[place] = {name: column[place] for name, column in found.items()}
        made = super()._get_gen_batch(batch)  # type: ignore[misc]  # as above
        made.non_tensor_batch[_ROWS] = rows
        return made

    def _log_rollout_data(
        self, batch: Any, reward_extra_infos_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """The dump of a training batch, with what each rollout was shown."""
        columns = batch.non_tensor_batch
        shown = {name: columns[name].tolist() for name in (COUNT, RATIO) if name in columns}
        told = {**reward_extra_infos_dict, **shown}
        super()._log_rollout_data(batch, told, *args, **kwargs)  # type: ignore[misc]  # as above

    def _schedule(self) -> RolloutScaffold:
        size = int(self.config.actor_rollout_ref.rollout.n)
        return RolloutScaffold(self._scaffold, self._seed, self.total_training_steps, size)

    def _tokens(self, one: Drawn) -> list[int]:
        told = self.config.data.get("apply_chat_template_kwargs", None) or {}
        text = self.tokenizer.apply_chat_template(
            one.messages, add_generation_prompt=True, tokenize=False, **told
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        room = _room(self.config, self._scaffold)
        if len(ids) > room:
            raise ConfigError(
                f"a prompt has {len(ids)} tokens with {one.shown} of its criteria, and there is "
                f"room for {room}: raise actor_rollout_ref.rollout.max_model_len (with "
                "participate_training: data.max_prompt_length)"
            )
        return ids


def scaffold_of(config: Any) -> tuple[Scaffold, int]:
    """The scaffold of verl's ``config`` and the seed that draws from rubrics; checks the rest."""
    from omegaconf import OmegaConf  # noqa: PLC0415  (verl's)

    told = OmegaConf.to_container(config.get("adjudge") or OmegaConf.create({}), resolve=True)
    told = told if isinstance(told, dict) else {}
    if odd := sorted(map(str, told.keys() - {"scaffold", "seed"})):
        raise ConfigError(f"adjudge.{odd[0]}: unknown key (allowed: scaffold, seed)")
    seed = told.get("seed", 0)
    if type(seed) is not int:
        raise ConfigError(f"adjudge.seed: found {str(seed)[:40]!r}, must be an integer")
    scaffold = validate(Scaffold, told.get("scaffold") or {}, "adjudge.scaffold")
    mode = config.actor_rollout_ref.rollout.mode
    if mode != "sync":
        raise ConfigError(
            f"actor_rollout_ref.rollout.mode: is {mode!r}; a scaffold is for 'sync', where whole "
            "groups are drawn at a time"
        )
    if not config.data.get("return_raw_chat", False):
        raise ConfigError("data.return_raw_chat: must be True: a scaffold goes into the messages")
    if not scaffold.participate_training:
        _check_correction(config, scaffold)
    return scaffold, seed


def _check_correction(config: Any, scaffold: Scaffold) -> None:
    """Raise where verl's settings do not do what ``correction`` says."""
    rollout, theirs = config.actor_rollout_ref.rollout, config.algorithm.rollout_correction
    told = "adjudge.scaffold.correction"
    if scaffold.correction == "none":
        if theirs.rollout_is is not None or theirs.bypass_mode:
            raise ConfigError(f"{told}: is 'none', and algorithm.rollout_correction is set")
        return
    wanted = {"rollout_is": "token", "rollout_is_threshold": scaffold.correction_cap}
    done = {name: theirs[name] for name in wanted}
    if done != wanted or theirs.bypass_mode or not rollout.calculate_log_probs:
        lines = [f"algorithm.rollout_correction.{name}={value}" for name, value in wanted.items()]
        raise ConfigError(
            f"{told}: is {scaffold.correction!r}, which verl does with {' '.join(lines)} "
            "algorithm.rollout_correction.bypass_mode=False "
            "actor_rollout_ref.rollout.calculate_log_probs=True; +adjudge.scaffold.correction=none "
            "does without"
        )


def _room(config: Any, scaffold: Scaffold) -> int:
    """The tokens that a scaffolded prompt may have."""
    rollout = config.actor_rollout_ref.rollout
    if scaffold.participate_training or not rollout.max_model_len:
        return int(rollout.prompt_length)
    return int(rollout.max_model_len) - int(rollout.response_length)


def _metrics(batch: Any, scaffold: Scaffold) -> dict[str, float]:
    """What the step's rollouts were shown, and the weights of tokens drawn with a scaffold."""
    columns, tensors = batch.non_tensor_batch, batch.batch
    if COUNT not in columns:
        return {}
    found = {
        "scaffold/shown_mean": float(columns[COUNT].astype(float).mean()),
        "scaffold/ratio_mean": float(columns[RATIO].astype(float).mean()),
    }
    if "rollout_is_weights" not in tensors.keys():  # noqa: SIM118  (a TensorDict)
        return found
    mask = tensors["response_mask"].bool()
    if not scaffold.add_base_when_zero:  # else every prompt has been added to
        drawn = [count > 0 for count in columns[COUNT].tolist()]
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


def scaffold_trainer() -> type:
    """The trainer with judges (:func:`~adjudge.trainers.verl.trainer.judge_trainer`) and this."""
    return type("ScaffoldRayPPOTrainer", (ScaffoldTrainerMixin, judge_trainer()), {})
