"""verl's V1 rollout, replay buffer, padding and advantages on a CPU; only the LLM is not real.

Arguments: a folder, and cases as JSON: each has a trainer ``mode``, ``prompts`` (the answers that
each prompt gets) and ``overrides``; cases of one mode stand together. Prints one JSON list as its
last line. A case with ``slots`` has an LLM that answers so many calls at a time; ``crash`` is an
answer on which it fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import tiny  # beside this file
import transfer_queue as tq  # type: ignore[import-not-found]  # of verl 0.9.1
from omegaconf import open_dict
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.import_utils import load_class_from_fqn
from verl.workers.rollout.replica import TokenOutput

from adjudge.trainers.verl.main_ppo import make_metrics_trainer


class ScriptedLLM:
    """Answers a prompt's n-th call with the n-th word behind its question mark.

    `look` is a call of the tool of that name, whose result is the answer; `again` calls it anew for
    each result.
    """

    def __init__(self, slots: int = 1000) -> None:
        self.calls: Counter[tuple[int, ...]] = Counter()
        self.slots = asyncio.Semaphore(slots)

    async def generate(self, request_id: str, prompt_ids: list[int], **_: Any) -> TokenOutput:
        word = self._word(prompt_ids)
        async with self.slots:
            await asyncio.sleep(0.01)
        if word == "crash":
            raise RuntimeError("the engine is gone")
        said = [*tiny.ids(CALLS.get(word, word)), 1]
        extra = {"min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=said, log_probs=[0.0] * len(said), extra_fields=extra)

    def _word(self, prompt_ids: list[int]) -> str:
        text: list[str] = [tiny.WORDS[i] for i in prompt_ids]
        if "<tool_response>" in text:
            result = text[text[::-1].index("<tool_response>") * -1]
            return "again" if result == "fine" else result
        key = tuple(prompt_ids)
        words = [word for word in text if word in ANSWERS]
        self.calls[key] += 1
        return words[(self.calls[key] - 1) % len(words)]


CALL = '<tool_call> {"name": "look", "arguments": {"word": "%s"}} </tool_call>'
CALLS = {"look": f"fine , {CALL % 'good'}", "again": CALL % "fine"}
ANSWERS = {"good", "poor", "fail", "fine", "other", "crash", *CALLS}


def rows_of(prompts: list[list[str]]) -> dict[str, Any]:
    chats = [[{"role": "user", "content": " ".join(["is 5 ?", *words])}] for words in prompts]
    size = len(prompts)
    return {
        "raw_prompt": tiny.objects(chats),
        "data_source": tiny.objects(["judge/x"] * size),
        "reward_model": tiny.objects([{"ground_truth": "5"} for _ in prompts]),
        "extra_info": tiny.objects([{"index": i} for i in range(size)]),
        "index": tiny.objects(list(range(size))),
    }


class GPUs:
    """What verl's own metrics of a step divide by."""

    def get_n_gpus(self) -> int:
        return 1


class Actor:
    """What padding and advantages ask of the actor's workers."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": [0]}


def actors_of(config: Any, slots: int) -> tuple[RewardLoopManager, AgentLoopManagerTQ]:
    """Reward and rollout actors, which take long to start; one set for each kind of case."""
    path = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    manager = load_class_from_fqn(path) if path else AgentLoopManagerTQ  # as verl's main_ppo does
    loops = config.actor_rollout_ref.rollout.agent.agent_loop_config_path
    mode = config.trainer.v1.trainer_mode, path, slots, loops
    if mode not in ACTORS:
        for rewards, rollouts in ACTORS.values():
            for worker in rewards.reward_loop_workers + rollouts.agent_loop_workers:
                ray.kill(worker)  # their names are taken
        rewards = RewardLoopManager(config)
        rollouts = manager.create(
            config=config,
            llm_client=ScriptedLLM(slots),
            reward_loop_worker_handles=rewards.reward_loop_worker_handles,
        )
        ACTORS[mode] = rewards, rollouts
    return ACTORS[mode]


ACTORS: dict[Any, tuple[RewardLoopManager, AgentLoopManagerTQ]] = {}


def trainer_of(config: Any, batches: list[dict[str, Any]], slots: int) -> Any:
    """The real V1 trainer, without models: ``_setup`` needs GPUs."""
    trainer = make_metrics_trainer(get_trainer_cls(config.trainer.v1.trainer_mode))(config)
    trainer.tokenizer = tiny.tokenizer()
    trainer.global_steps, trainer.timing_raw = 0, {}
    trainer.reward_loop_manager, trainer.agent_loop_manager = actors_of(config, slots)
    trainer.actor_rollout_wg, trainer.resource_pool_manager = Actor(), GPUs()
    trainer.replay_buffer.poll_interval = 0.2
    trainer.refilled = 0
    trainer.val_dataloader = batches
    return trainer


def submit(trainer: Any, rows: dict[str, Any]) -> list[str]:
    uids = [str(uuid.uuid4()) for _ in rows["raw_prompt"]]
    batch = tu.get_tensordict({**rows, "uid": tiny.objects(uids)})
    tu.assign_non_tensor_data(batch, "global_steps", 0)
    trainer._submit_batch_to_rollout(batch)
    return uids


def advantages(trainer: Any, rows: dict[str, Any], prompts: list[list[str]]) -> dict[str, Any]:
    """One step up to the advantages, as ``_step_once`` does."""
    uids = submit(trainer, rows)

    def refill(count: int) -> None:
        trainer.refilled += count
        if trainer.refilled > 3:
            raise RuntimeError("refilling without end")
        uids.extend(submit(trainer, {key: column[:count] for key, column in LATER.items()}))

    trainer.replay_buffer.refill_fn = refill
    batch, metrics = trainer.replay_buffer.sample(
        global_steps=0, partition_id="train", batch_size=len(prompts)
    )
    metrics = dict(metrics)
    batch = trainer._balance_batch(batch, metrics)
    batch = trainer._compute_advantage(batch, metrics)
    fields = ["uid", "rm_scores", "responses", "advantages", "response_mask", "extra_fields"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=fields)
    found = []
    for i, key in enumerate(batch.keys):
        row = data[i]
        uid = key.rsplit("_", 2)[0]
        found.append(
            {
                "prompt": uids.index(uid) if uid in uids else None,
                "padding": bool(batch.tags[i].get("is_padding", False)),
                "word": tiny.WORDS[int(row["responses"][0])],
                "reward": float(row["rm_scores"].sum()),
                "scores": row["rm_scores"].tolist(),
                "advantages": row["advantages"].tolist(),
                "mask": row["response_mask"].tolist(),
                "info": row["extra_fields"].get("reward_extra_info"),
            }
        )
    trainer._compute_metrics(batch, metrics, {"step": 1.0}, global_steps=1, epoch=0)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    judged = {name: value for name, value in metrics.items() if name.startswith("judge/")}
    return {"rows": found, "refilled": trainer.refilled, "metrics": judged}


LATER = rows_of([["good", "poor", "fine", "other"]])


def attempt(name: str, step: Callable[[], Any]) -> Any:
    try:
        return step()
    except Exception as error:
        logging.getLogger("v1").exception(name)
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def run_case(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    prompts, size = case["prompts"], len(case["prompts"])
    config = tiny.config(
        folder,
        *tiny.MANAGER,
        f"trainer.v1.trainer_mode={case['mode']}",
        f"data.train_batch_size={size}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={size}",
        "algorithm.rollout_correction.bypass_mode=True",  # no model to take log probabilities of
        *case.get("overrides", []),
    )
    rows = rows_of(prompts)
    trainer = trainer_of(config, [dict(rows)], case.get("slots", 1000))
    try:
        return {
            "validation": attempt("validation", trainer._validate),
            "step": attempt("step", lambda: advantages(trainer, rows, prompts)),
        }
    finally:
        for partition, items in (tq.kv_list() or {}).items():
            if items:
                tq.kv_clear(keys=list(items), partition_id=partition)


def main() -> None:
    folder = Path(sys.argv[1])
    ray.init(address="local", num_cpus=16, include_dashboard=False, object_store_memory=200 * 2**20)
    config = tiny.config(folder, "transfer_queue.backend.SimpleStorage.num_data_storage_units=1")
    with open_dict(config):
        config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    try:
        found = [run_case(folder, case) for case in json.loads(sys.argv[2])]
    finally:
        tq.close()
        ray.shutdown()
    sys.stdout.write("\n" + json.dumps(found, default=float) + "\n")


if __name__ == "__main__":
    main()
