"""open-instruct: its judge, reward function, group filter, advantages, packing and loss."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource

_LOADER = "data_loader.py"
_LOOP = "DataPreparationActor._data_preparation_loop"
_LOSS = "grpo_fast.py"
_REWARDS = (
    "VerificationResult VerifierConfig LMJudgeVerifierConfig VerifierFunction LMJudgeVerifier "
    "RewardAggregator LastRewardAggregator SumRewardAggregator apply_verifiable_reward RewardConfig"
)
_NAMES: Mapping[str, str] = {
    "ground_truth_utils.py": _REWARDS,
    _LOADER: "Group process_group",
    "model_utils.py": "estimate_kl",
    "rl_utils.py": "reset_position_ids PackedSequences pack_sequences masked_mean",
    "grpo_utils.py": "GRPOLossType compute_grpo_loss calculate_token_counts",
}
_ADVANTAGES = ("scores", "mean_grouped", "std_grouped", "advantages", "result.masks", "packed_")
_LAST = ("if self.config.advantage_norm", "lookup_")
_LOSSES = ("pg_loss_BT, ", "(pg_loss_BT, ", "per_token_loss_BT =", "loss = masked_mean")
_IMPORTED = ("typing", "abc", "collections", "dataclasses")
_MODULES = ("asyncio", "dataclasses", "enum", "os", "re", "torch")
_INFOS = ("timeouts", "tool_errors", "tool_outputs", "tool_calleds", "rollout_states")
_COLUMNS = ("INPUT_IDS_PROMPT", "GROUND_TRUTHS", "RAW_PROMPT", "VERIFIER_SOURCE", "TOOLS_COLUMN")
_PROMPT = [1, 2]


class OpenInstructDriver:
    """open-instruct from a verifier to the loss of a pack that holds all answers of the batch.

    A failed judge is its own ``LMJudgeVerifier``; the calls raise. A verifier's score counts once,
    not ten times as by default, so that the logged mean is one of rewards.
    """

    name = "open-instruct"
    ways: tuple[Way, ...] = make_ways("its judge fails", undocumented=("raising", "None", "NaN"))
    settings: tuple[str, ...] = ("centered, token", "standard, token", "centered, 100")
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._source = source = TrainerSource("open_instruct", "open-instruct", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_LOADER, "scores_per_prompt = scores.reshape")
        self._scope: Scope = {
            **{name: one for file in _IMPORTED for name, one in vars(import_module(file)).items()},
            **{name: import_module(name) for name in _MODULES},
            **{f"{name}_KEY": name for name in _COLUMNS},
            "np": import_module("numpy"),
            "T": TypeVar("T"),
            "logger": SILENT,
            "data_types": SimpleNamespace(CollatedBatchData=None),
            "dist": SimpleNamespace(all_reduce=lambda *_, **__: 0, ReduceOp=SimpleNamespace(SUM=0)),
            # of its judge
            "JUDGE_PROMPT_MAP": {"quality": "{input}{output}{label}"},
            "EXTRACTOR_MAP": {"quality": None},
            "extract_final_answer": lambda answer: answer,
            "build_messages": lambda prompt: [prompt],
            "context_window_checker": SimpleNamespace(check_context_window_limit=lambda **_: True),
            "run_litellm_async_raw": _fail,
        }
        for file, names in _NAMES.items():
            source.load_names(file, names.split(), self._scope)
        self._scope["grpo_utils"] = self._scope["model_utils"] = SimpleNamespace(**self._scope)
        self._scope["asyncio"] = SimpleNamespace(**vars(asyncio) | {"sleep": _wait})
        self._advantages = source.load_statements(
            _LOADER, _LOOP, lambda text: text.startswith((*_ADVANTAGES, *_LAST))
        )
        self._loss = source.load_statements(
            _LOSS, "PolicyTrainerRayProcess.step", lambda text: text.startswith(_LOSSES)
        )

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """open-instruct's rewards, advantages, filter, logged mean and gradient."""
        size, lengths = len(batch.groups[0]), [one for group in batch.lengths for one in group]
        normalisation, _, denominator = setting.partition(", ")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a mean of nothing
            judged = [asyncio.run(self._judge(group, way)) for group in batch.groups]
            config = SimpleNamespace(num_samples_per_prompt_rollout=size, mask_tool_use=True)
            config.advantage_normalization_type, config.pack_length = normalisation, 10_000
            tokens = SimpleNamespace(pad_token_id=0)
            loop = SimpleNamespace(config=config, tokenizer=tokens, dp_world_size=1)
            scores = [score for scores, _ in judged for score in scores]
            rows = SimpleNamespace(scores=scores, queries=[_PROMPT] * len(lengths))
            kinds = (("responses", 3), ("masks", 1), ("logprobs", -1.0))
            result = {name: [[one] * length for length in lengths] for name, one in kinds}
            scope: Scope = {**self._scope, "self": loop, "batch": rows}
            scope["result"] = SimpleNamespace(**result)
            self._source.run_statements(_LOADER, self._advantages, scope)
            kept = [self._filter(scores) for scores, _ in judged]
        ends = accumulate(len(_PROMPT) + length for length in lengths)
        # of the answer's first token, in what is one shorter than the pack
        places = [end - length - 1 for end, length in zip(ends, lengths, strict=True)]
        gradients = self._gradients(scope["packed_sequences"], batch.kl, denominator)
        logged = [metrics["objective/verifiable_reward"] for _, metrics in judged]
        return StepResult(
            advantages=split_groups(scope["advantages"].tolist(), size),
            gradients=split_groups([gradients[place] for place in places], size),
            reward_mean=float(sum(logged) / len(logged)),
            kept=kept,
        )

    async def _judge(self, group: tuple[float | None, ...], way: str) -> Any:
        """The scores of a group and their metrics, from ``RewardConfig``'s reward function."""
        filler = {"None": None, "NaN": math.nan}.get(way)
        settings = self._scope["LMJudgeVerifierConfig"]("model", 9, 99, 0.0, 9, 1)
        own = self._scope["LMJudgeVerifier"]("quality", settings)

        async def verify(prediction: str, **arguments: Any) -> Any:
            reward = group[int(prediction)]
            if reward is None and way == "its judge fails":
                return await own.async_call(prediction=prediction, **arguments)
            if reward is None and way == "raising":
                raise TimeoutError("the judge did not answer")
            return self._scope["VerificationResult"](score=filler if reward is None else reward)

        verifier = SimpleNamespace(async_call=verify, name="judge", weight=1.0)
        function = self._scope["RewardConfig"](
            verification_reward=1.0, verifier_functions={"judge": verifier}
        ).build()
        infos = SimpleNamespace(**dict.fromkeys(_INFOS, ()))
        answers = [str(place) for place in range(len(group))]
        rest = (["label"] * len(group), ["judge"] * len(group), ["stop"] * len(group), infos)
        return await function([[3]] * len(group), answers, *rest)

    def _filter(self, scores: list[float]) -> bool:
        size = len(scores)
        result = SimpleNamespace(index=0, responses=[[3]] * size, finish_reasons=[])
        vars(result).update(reward_scores=scores, reward_metrics={}, token_statistics=1)
        decoder = SimpleNamespace(batch_decode=lambda *_, **__: [])
        return None is not self._scope["process_group"](
            *(result, SimpleNamespace(n=size), decoder, [defaultdict(str)], 1.0, None, None),
            *(True, False, None, None),
        )

    def _gradients(self, packed: Any, beta: float, denominator: str) -> list[float]:
        torch = self._torch
        mask = packed.response_masks[0].unsqueeze(0)
        rows = [packed.advantages[0].unsqueeze(0)]
        data = SimpleNamespace(advantages=rows, response_masks=[mask])
        logps = torch.full((1, mask.shape[1] - 1), -1.0, requires_grad=True)
        counts = self._scope["calculate_token_counts"](1, data, "cpu")
        arguments = SimpleNamespace(clip_lower=0.2, clip_higher=0.2, kl_estimator=2, beta=beta)
        arguments.loss_fn, arguments.load_ref_policy = self._scope["GRPOLossType"].dapo, True
        scope: Scope = {**self._scope, "self": SimpleNamespace(args=arguments), "i": 0}
        scope |= {
            "data_BT": data,
            "new_logprobs_BT": logps,
            "ratio_BT": torch.exp(logps - logps.detach()),
            "ref_logprobs_BT": [torch.full(logps.shape, -2.0)],
            "rho_BT": SimpleNamespace(weights=torch.ones(logps.shape)),
            "response_mask_BT": mask[:, 1:],
            "loss_denominator": counts[0] if denominator == "token" else float(denominator),
        }
        self._source.run_statements(_LOSS, self._loss, scope)
        scope["loss"].backward()
        return list(logps.grad[0].tolist())


async def _fail(**_: Any) -> None:
    raise TimeoutError("the judge did not answer")


async def _wait(_: float) -> None:
    """In place of the seconds between its attempts."""
