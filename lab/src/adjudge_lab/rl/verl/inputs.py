"""What verl is given for a run: its version and GPUs, the reward spec, the rows, the scaffold.

verl's version is found without importing it. Its rows are a run's prompts in the order in which
they are trained on. ``[rollout.scaffold]`` is said in verl 0.6.1's own settings and those of our
hook.

verl's reward workers play no episodes: they see a rollout's answer and its row, and no environment.
So where the run adds what the environment pays, the rule that pays becomes a grader of the spec:
with O the weighted mean of the judged graders, and the rule's scores from 0 to h,

    env + s·(w_e·E + w_o·O)  =  (h + s·w_o)·mean + s·w_e·E,

where the mean is over the rule with weight h and the judged graders with their shares of s·w_o.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.graders.registry import list_parameters, load_grader_class
from adjudge.installation import install_command
from adjudge.intake.columns import find_reference
from adjudge.messages import content_text
from adjudge.rewards.spec import RewardSpec
from adjudge.text import encode_exactly
from adjudge.trainers.verl import installed_verl
from adjudge.types import Role
from adjudge_lab.environments.tasks import read_row_rubrics
from adjudge_lab.rl.episodes import draw_training_seeds
from adjudge_lab.rl.policy import read_chat_template
from adjudge_lab.rl.rewards import build_single_turn_task, dry_run_spec, is_stand_in_rubric
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.scaffold import add_scaffold_message, build_scaffold_message
from adjudge_lab.rl.trainer_settings import flatten_settings


def verl_version() -> str:
    """``0.6.1`` where a verl before 0.7 is installed, else ``0.9.1``: the two that are tested."""
    parts = (installed_verl() or "0.9.1").split(".")
    is_old = parts[0] == "0" and len(parts) > 1 and parts[1].isdigit() and int(parts[1]) < 7
    return "0.6.1" if is_old else "0.9.1"


def verl_nodes(run: RunFile) -> int:
    """The machines: as ``[verl] trainer.nnodes`` says, else one."""
    return int(flatten_settings(run.verl).get("trainer.nnodes", 1))


def verl_gpus(run: RunFile) -> int:
    """The GPUs of all machines.

    A machine has as many as ``[verl] trainer.n_gpus_per_node`` says, else as are asked for, else
    those of the split, else one.
    """
    split = run.topology
    parts = (split.gpus_for_vllm, split.gpus_for_training, split.gpus_for_ref)
    of_a_node = flatten_settings(run.verl).get("trainer.n_gpus_per_node") or run.compute.gpu_count
    return verl_nodes(run) * int(of_a_node or sum(part or 0 for part in parts) or 1)


_CAPITAL_GRADER = "adjudge_lab.rl.tiny:CapitalGrader"

RewardProblem = tuple[str, str, str, str]
"""Key, what was asked, what happens instead, because."""

NOTHING_RUNS = "nothing can run"
"""What happens instead where the run is impossible."""


def find_reward_problem(run: RunFile) -> RewardProblem | None:
    """Why the rewards of a single-turn ``run`` cannot be had from verl, if so."""
    judge = run.judge
    for name, weight in run.scheduled_weights.items():
        key = f"graders.{name}.weight"
        return key, repr(weight), NOTHING_RUNS, "verl tells a reward manager no training step"
    if not judge.enabled or judge.combine_mode == "replace":
        return None
    mode = ("judge.combine_mode", repr(judge.combine_mode), NOTHING_RUNS)
    if judge.combine_mode == "multiply":
        return (*mode, "verl's reward workers have no environment, so no reward to multiply")
    spec = dry_run_spec(run)
    if problem := _sum_problem(run, spec):
        return (*mode, problem)
    graders = spec.build_graders()
    counted = [
        e for e in spec.graders if e.scope == "outcome" and e.counts and judge.outcome_weight
    ]
    if odd := [
        e.name for e in counted if getattr(graders[e.name], "role", Role.SCORE) != Role.SCORE
    ]:
        return (*mode, f"the grader {odd[0]!r} gives no score that can be averaged with others")
    return None


def _sum_problem(run: RunFile, spec: RewardSpec) -> str | None:
    """Why the judge's part and the environment's are no mean of both."""
    judge = run.judge
    if judge.judge_scale * judge.outcome_weight < 0 or judge.judge_scale * judge.event_weight < 0:
        return "a judge with a negative weight cannot be added to the environment's reward"
    if judge.aggregate != "weighted_mean":
        return (
            "the environment's reward can be added to aggregate = 'weighted_mean' only, not to "
            f"{judge.aggregate!r}"
        )
    payer = _payer_entry(run, spec)
    low, high = _payer_score_range(run, payer)
    if low != 0 or high is None or high <= 0:
        return f"the grader {payer['name']!r} must score from 0 to a known maximum to be added"
    return None


def build_verl_spec(run: RunFile, spec: RewardSpec) -> dict[str, Any]:
    """``spec``, the reward spec of a single-turn run, as plain data for a file anywhere.

    Paths are absolute, and the environment's reward is part of it, for which every rollout is
    judged. Raises :class:`~adjudge.errors.ConfigError`.
    """
    judge = run.judge
    data = spec.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    data["graders"] = [_with_absolute_paths(run, one) for one in data["graders"]]
    reward = data["reward"]
    reward.pop("sample_rate", None)
    if not judge.enabled:
        payer = _with_absolute_paths(run, {**_payer_entry(run, spec), "weight": 1.0})
        others = [
            one for one in data["graders"] if one["name"] not in (payer["name"], "environment")
        ]
        return {**data, "graders": [payer, *others]}
    if judge.combine_mode == "weighted_sum":
        _add_environment(run, spec, data)
    return data


def _add_environment(run: RunFile, spec: RewardSpec, data: dict[str, Any]) -> None:
    judge, reward = run.judge, data["reward"]
    payer = _payer_entry(run, spec)
    _, high = _payer_score_range(run, payer)
    height, share = float(high or 0.0), judge.judge_scale * judge.outcome_weight
    outcome = [e for e in spec.graders if e.scope == "outcome" and e.name != payer["name"]]
    total = sum(entry.weight_at(0) for entry in outcome)
    shares = {e.name: share * e.weight_at(0) / total if total else 0.0 for e in outcome}
    payer = _with_absolute_paths(run, {**payer, "weight": height})
    others = [
        {**one, "weight": shares.get(one["name"], one.get("weight", 1.0))}
        for one in data["graders"]
        if one["name"] != payer["name"]
    ]
    data["graders"] = [payer, *others]
    reward |= {
        "combine_mode": "replace",
        "judge_scale": 1.0,
        "outcome_weight": height + share,
        "event_weight": judge.judge_scale * judge.event_weight,
    }


def _payer_entry(run: RunFile, spec: RewardSpec) -> dict[str, Any]:
    """The entry of the rule that computes the environment's reward."""
    name = run.rollout.env_grader
    if name is not None:
        return next(dict(one) for one in run.graders if one["name"] == name)
    taken = {entry.name for entry in spec.graders}
    name = "capital"
    while name in taken:
        name += "_"
    return {"name": name, "type": _CAPITAL_GRADER}


def _payer_score_range(run: RunFile, entry: dict[str, Any]) -> tuple[float | None, float | None]:
    where = f"{run.where}: rollout.env_grader"
    alone = RewardSpec.from_dict({"graders": [{**entry, "weight": 1.0}], "reward": {
        "normalise": False}}, where=where, folder=run.folder)  # fmt: skip
    if alone.asks_judge(alone.graders[0]):
        raise ConfigError(f"{where}: must name a rule, and {entry['name']!r} asks a judge")
    found = getattr(alone.build_graders()[entry["name"]], "score_range", None)
    return (None, None) if found is None else found


def _with_absolute_paths(run: RunFile, entry: dict[str, Any]) -> dict[str, Any]:
    """``entry`` with absolute paths; a rubric's placeholder by its name again."""
    entry = dict(entry)
    if is_stand_in_rubric(entry.get("criteria")):
        del entry["criteria"]
        entry |= {"rubric_id": run.judge.rubric_id, "rubric_dir": run.judge.rubric_dir}
    folder = run.folder.resolve()
    for parameter in list_parameters(load_grader_class(entry["type"], run.folder)):
        given = entry.get(parameter.name)
        if given is None and isinstance(parameter.default, Path):
            given = str(parameter.default)
        if parameter.annotation in (Path, Path | None) and isinstance(given, str):
            entry[parameter.name] = str(folder / given)
    return entry


class VerlRows:
    """What verl is given to train on and to validate with, for a run of single turns.

    ``train`` has the prompts of all steps one after another, so that verl, without shuffling,
    takes the order that ``training.seed`` means; ``validation`` has the held-out ones. A row is
    ``prompt`` (chat messages), ``data_source``, ``reward_model`` (``ground_truth``: the reference)
    and ``extra_info`` (``index`` and all other columns).
    Raises :class:`~adjudge.errors.ConfigError`.
    """

    def __init__(self, run: RunFile) -> None:
        self._run, self._task = run, build_single_turn_task(run)
        held_out, size = run.evaluation.held_out, self._task.size
        if size is not None and run.evaluation.seeds is None:
            held_out = [seed for seed in held_out if seed < size]
        self.held_out = held_out
        self.count = prompts_per_step(run) * (
            run.training.steps + int(run.training.pipeline_async_enabled)  # one batch ahead
        )
        seeds = draw_training_seeds(self._task, held_out, run.training.seed)
        self.seeds = list(islice(seeds, self.count))
        self._begun = {seed: self._task.begin(seed) for seed in sorted({*self.seeds, *held_out})}
        self._template = _estimate_tokens(read_chat_template(run) or "")

    @property
    def train(self) -> Iterator[dict[str, Any]]:
        """A row for each prompt of each step."""
        return map(self._row, self.seeds)

    @property
    def validation(self) -> Iterator[dict[str, Any]]:
        """A row for each held-out beginning."""
        return map(self._row, self.held_out)

    @property
    def prompt_tokens(self) -> int:
        """Room for the longest prompt: a token per two bytes, and the chat template's own."""
        return self._rounded(max(_prompt_room(one.messages) for one in self._begun.values()))

    @property
    def shown_tokens(self) -> int:
        """Room for the longest prompt with all of its rubrics; without a scaffold the same."""
        scaffold = self._run.rollout.scaffold
        if scaffold is None:
            return self.prompt_tokens
        rooms = []
        for episode in (self._begun[seed] for seed in set(self.seeds)):
            text = build_scaffold_message(read_row_rubrics(episode.columns), scaffold)
            rooms.append(_prompt_room(add_scaffold_message(episode.messages, text)))
        return max(self.prompt_tokens, self._rounded(max(rooms)))

    def _rounded(self, room: int) -> int:
        return max(512, 64 * math.ceil((room + self._template) / 64))

    def _row(self, seed: int) -> dict[str, Any]:
        episode = self._begun[seed]
        columns = {name: value for name, value in episode.columns.items() if name != "reference"}
        # Graders get what is in reward_model under both names.
        named = find_reference(episode.columns)
        truth = None if named is None else episode.columns[named]
        return {
            "prompt": episode.messages,
            "data_source": self._run.env_name,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {**columns, "index": seed},
        }


def prompts_per_step(run: RunFile) -> int:
    """Prompts behind one update, each answered ``group_size`` times."""
    return run.training.rollouts_per_step // run.training.group_size


def write_parquet_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """A Parquet file of ``rows``; raises :class:`~adjudge.errors.ConfigError`."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (heavy)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "backend = 'verl' needs pyarrow for its data, and it is not installed. Run: "
            + install_command("full")
        ) from None
    try:
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    except (
        pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError,
        UnicodeEncodeError,
    ) as error:  # fmt: skip
        raise ConfigError(
            f"{path.name}: the columns of the dataset do not fit a Parquet table ({error}). "
            "Give each column one type."
        ) from None


def _prompt_room(messages: Sequence[Mapping[str, Any]]) -> int:
    return 64 + sum(
        16 + _estimate_tokens(content_text(message.get("content"))) for message in messages
    )


def _estimate_tokens(text: str) -> int:
    return len(encode_exactly(text)) // 2


_BATCHED_TOKENS = 8192  # verl's default


def build_scaffold_settings(run: RunFile, shown_tokens: int) -> dict[str, Any]:
    """What rollouts are shown, and verl's correction for their having been shown it.

    ``shown_tokens``: room for the longest prompt with all of its rubrics. ``truncated_is`` is
    verl's own: each token's loss times min(π_old(token | prompt) / π_rollout(token | shown), cap),
    from the log-probabilities that the rollout server gives. Without a scaffold nothing.
    """
    scaffold, at = run.rollout.scaffold, "actor_rollout_ref.rollout"
    if scaffold is None:
        return {}
    room = shown_tokens + run.rollout.max_tokens
    settings: dict[str, Any] = {
        **{f"+adjudge.scaffold.{key}": value for key, value in scaffold.model_dump().items()},
        "+adjudge.seed": run.training.seed,
        f"{at}.max_model_len": room,
        f"{at}.max_num_batched_tokens": max(_BATCHED_TOKENS, room),
    }
    if scaffold.correction == "truncated_is" and not scaffold.participate_training:
        settings |= {
            f"{at}.calculate_log_probs": True,
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": scaffold.correction_cap,
        }
        if run.rollout.temperature != 1.0:  # vLLM's are those before it, unless set otherwise
            settings[f"+{at}.engine_kwargs.vllm.logprobs_mode"] = "processed_logprobs"
    return settings
