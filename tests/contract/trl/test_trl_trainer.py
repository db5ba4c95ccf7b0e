"""A reward spec inside the real `GRPOTrainer`, on a CPU: run by `make test-trl`.

A judge that fails for a tenth of the responses rewards kind words; the policy learns them, and
what the trainer makes of the rewards is compared with what it would make of the others alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections import Counter
from importlib import import_module
from itertools import count
from math import isnan
from pathlib import Path
from statistics import mean, pstdev
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
import yaml
from tests.contract.trl.tiny_policy import GROUP, TEMPLATE, new_policy, spec_file, train
from tests.refusals import refuses

from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.trainers.trl import PicklableReward, make_reward, reward as dotted_path
from adjudge.trainers.trl_functions import expose_environment_reward, share_missing

REASON = "not installed here; run `make test-trl`"
trl: Any = pytest.importorskip("trl", reason=f"trl is {REASON}")
torch: Any = pytest.importorskip("torch", reason=f"torch is {REASON}")

STEPS = 50
ROOT = Path(__file__).parents[3]
OFFLINE = os.environ | {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
}
EPSILON = 1e-4  # what GRPOTrainer adds to a group's deviation


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def recorded(trainer_class: Any) -> Any:
    """The trainer, keeping what it was given as rewards and what it made of them."""

    class Recorded(trainer_class):  # type: ignore[misc]
        def _calculate_rewards(self, *given: Any) -> Any:
            self.seen = [*getattr(self, "seen", []), super()._calculate_rewards(*given)]
            return self.seen[-1]

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            self.made = [*getattr(self, "made", []), output["advantages"]]
            return output

    return Recorded


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    reward = make_reward(spec_file(folder))
    return train(new_policy(), folder, reward, steps=STEPS, trainer_class=recorded(trl.GRPOTrainer))


def history(trainer: Any, key: str) -> list[float]:
    return [float(entry[key]) for entry in trainer.state.log_history if key in entry]


def by_hand(rewards: Any) -> Any:
    """Advantages of one group from its present rewards alone; a missing one has none, that is 0."""
    advantages = torch.zeros_like(rewards)
    there = ~torch.isnan(rewards)
    present = rewards[there]
    if len(present) > 1:
        advantages[there] = (present - present.mean()) / (present.std() + EPSILON)
    return advantages


def test_the_policy_learns_what_the_judge_rewards(trained: Any) -> None:
    rewards = history(trained, "reward")
    tenth = STEPS // 10
    assert mean(rewards[-tenth:]) > mean(rewards[:tenth]) + 0.3


def test_failures_leave_the_advantages_of_the_others_alone(trained: Any) -> None:
    missing = 0
    for rewards, advantages in zip(trained.seen, trained.made, strict=True):
        groups = rewards.view(-1, GROUP)
        missing += int(torch.isnan(groups).sum())
        expected = torch.cat([by_hand(group) for group in groups])
        torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-5)
        assert (advantages[torch.isnan(rewards).view(-1)] == 0).all()
    share = missing / (STEPS * 8 * GROUP)
    assert 0.05 < share < 0.2
    zero_filled = torch.nan_to_num(trained.seen[0]).view(-1, GROUP)
    as_zero = torch.cat([by_hand(group) for group in zero_filled])
    assert (trained.made[0] - as_zero).abs().max() > 0.1


def test_metrics_and_kinds_are_logged(trained: Any) -> None:
    assert len(history(trained, "judge/score_mean")) == STEPS
    assert history(trained, "judge/score_mean") == pytest.approx(
        history(trained, "rewards/adjudge/mean"), abs=1e-6
    )
    share = mean(history(trained, "judge/missing_frac"))
    kinds = [history(trained, f"judge/missing_frac/{kind}") for kind in ("timeout", "refused")]
    assert all(kinds)
    assert sum(map(sum, kinds)) / STEPS == pytest.approx(share, abs=1e-6)
    extra = trained._logs["extra"]
    assert set(extra["judge/missing"]) <= {"", "timeout", "refused"}
    for kind, score in zip(extra["judge/missing"], extra["judge/kindness_score"], strict=True):
        assert (kind == "") == (score is not None)


@pytest.mark.parametrize("kind", ["budget", "unparsable"])
def test_a_run_ends_once_its_judge_gives_no_rewards(tmp_path: Path, kind: str) -> None:
    spec, name = spec_file(tmp_path), f"judge_that_ends_in_{kind}"  # a module's name is taken once
    judge = tmp_path / "kind_judge.py"
    spec.write_text(spec.read_text().replace("kind_judge", name))
    broken = f"    if next(ASKED) > 64:\n        return ErrorKind.{kind.upper()}\n    lines ="
    code = judge.read_text().replace("    lines =", broken)
    judge.with_name(f"{name}.py").write_text(
        f"{code}\n\nfrom itertools import count\nASKED = count()\n"
    )
    with pytest.raises(JudgeUnavailable, match="kindness: .*scripted"):
        train(new_policy(), tmp_path, make_reward(spec), steps=8)


def test_a_group_that_straddles_processes(tmp_path: Path) -> None:
    """Two real processes, each with half of every group."""
    script = Path(__file__).with_name("two_processes.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    launch += ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    subprocess.run([*launch, str(script), str(tmp_path)], check=True, timeout=300, env=OFFLINE)
    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said["alone"] == [GROUP // 2] * 2
        assert "multiple of num_generations" in said["compared"]
        assert f"process {rank}" in said["compared"]
        divided, whole, evaluated = said["foreseen"]
        assert f"each of 2 processes has {GROUP // 2} completions" in divided
        assert whole == ""
        assert "num_generations_eval is" in evaluated
    lines = (tmp_path / "recorded" / "rollouts.jsonl").read_bytes().splitlines()
    recorded = [json.loads(line) for line in lines]
    members = Counter((row["step"], row["group"], row["rank"]) for row in recorded)
    assert set(members.values()) == {GROUP // 2}
    assert len(members) == 2 * 2  # a step, a group of which each process has half
    assert len({member[:2] for member in members}) == 2
    assert sorted(row["index"] for row in recorded) == list(range(2 * GROUP))


def test_the_dotted_path_from_a_config_file(tmp_path: Path) -> None:
    """`trl grpo --config` with nothing of ours but a name and an environment variable."""
    (tmp_path / "policy").mkdir()
    new_policy().save(tmp_path / "policy")
    rows = [json.dumps({"prompt": word, "answer": "kind"}) for word in ("cold", "hard") * 8]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    config = {
        "model_name_or_path": str(tmp_path / "policy"),
        "datasets": [{"path": "json", "data_files": str(tmp_path / "rows.jsonl")}],
        "reward_funcs": ["adjudge.trainers.trl.reward"],
        "output_dir": str(tmp_path / "out"),
        "per_device_train_batch_size": GROUP,
        "num_generations": GROUP,
        "max_completion_length": 8,
        "max_steps": 2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    environment = OFFLINE | {"ADJUDGE_SPEC": str(spec_file(tmp_path)), "HF_HOME": str(tmp_path)}
    program = Path(sys.executable).with_name("trl")
    done = subprocess.run(
        [program, "grpo", "--config", str(tmp_path / "run.yaml")],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())
    for entry in state["log_history"][:2]:
        assert entry["judge/score_mean"] == pytest.approx(entry["rewards/adjudge/mean"], abs=1e-6)


@pytest.mark.parametrize("form", ["dotted path", "picklable"])
def test_async_grpo_scores_a_group(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scoring of its rollout process; the process itself needs a vLLM server."""
    worker = import_module("trl.experimental.async_grpo.async_rollout_worker")
    monkeypatch.setattr(worker, "logger", logging.getLogger(worker.__name__))
    monkeypatch.setenv("ADJUDGE_SPEC", str(spec_file(tmp_path)))
    given = dotted_path if form == "dotted path" else PicklableReward(spec_file(tmp_path))
    loop = object.__new__(worker._AsyncRolloutLoop)
    loop.reward_funcs = [pickle.loads(pickle.dumps(given))]
    loop.reward_func_names = [worker.get_callable_name(given)]
    loop._env_reward_types, loop._provides_rollout_reward = [], False
    said = ["kind warm", "cold", "kind cold dull", "loud"]
    failing = next(f"cold {n}" for n in count() if crc32(f"cold {n}".encode()) % 10 == 3)
    texts = [*said, failing]
    rows = [SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])]
    group = worker.RolloutGroup(
        prompts=[[{"role": "user", "content": "cold"}]] * len(texts),
        reward_kwargs={"answer": ["kind"] * len(texts)},
        completions=[[{"role": "assistant", "content": text}] for text in texts],
        completions_ids=[[1]] * len(texts),
        completions_sequences=[rows] * len(texts),
        tool_call_counts=[0] * len(texts),
        tool_failure_counts=[0] * len(texts),
        model_version=0,
        group_id=0,
        env_rewards=[None] * len(texts),
        rollout_rewards=[None] * len(texts),
    )
    samples = asyncio.run(loop._score_group(group))
    advantages = [sample.advantage for sample in samples]
    rewards = [2 / 8, 0.0, 1 / 8, 0.0]
    expected = [(reward - mean(rewards)) / (pstdev(rewards) + 1e-8) for reward in rewards]
    assert advantages == pytest.approx([*expected, 0.0])
    assert isnan(samples[-1].metrics["reward"])
    assert "rewards/adjudge" in samples[0].metrics


def test_what_a_rollout_func_plays_is_judged_without_the_environments_text(tmp_path: Path) -> None:
    """The policy says one word between two of the environment's; a mask tells them apart."""
    policy, words = new_policy(), ["kind", "cold"]
    own: list[str] = []

    def play(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        ids = policy.tokenizer(" ".join(["warm", words[len(own) % 2], "soft"]))["input_ids"]
        own.append(words[len(own) % 2])
        count = len(prompts)
        return {
            "prompt_ids": [policy.tokenizer("hard")["input_ids"]] * count,
            "completion_ids": [ids] * count,
            "logprobs": [[-1.0] * len(ids)] * count,
            "env_mask": [[0, 1, 0]] * count,
            "tool_mask": [[0, 1, 0]] * count,
        }

    class Rolling(recorded(trl.GRPOTrainer)):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given, rollout_func=play)

    reward = make_reward(spec_file(tmp_path))
    trainer = train(policy, tmp_path, reward, steps=2, trainer_class=Rolling)
    assert own == words
    assert [set(rewards.view(-1).tolist()) for rewards in trainer.seen] == [{1 / 8}, {0.0}]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_a_missing_reward_beside_a_rule_changes_nothing_for_the_others(
    aggregation: str, tmp_path: Path
) -> None:
    def rule(completions: Any, **_: Any) -> list[float]:
        return [len(one[-1]["content"]) / 10 for one in completions]

    def run(functions: Any) -> Any:
        made = recorded(trl.GRPOTrainer)
        options: dict[str, Any] = {
            "multi_objective_aggregation": aggregation,
            "reward_weights": [1.0, 0.5],
        }
        return train(new_policy(), tmp_path, functions, trainer_class=made, **options)

    both = [make_reward(spec_file(tmp_path)), rule]
    with refuses("missing.policy"):
        run(both)
    trainer = run(share_missing(both))
    [rewards], [advantages] = trainer.seen, trainer.made
    gone = torch.isnan(rewards)
    assert gone.any()
    assert (gone.any(dim=1) == gone.all(dim=1)).all()
    if aggregation == "sum_then_normalize":
        totals = rewards @ torch.tensor([1.0, 0.5])
        expected = torch.cat([by_hand(group) for group in totals.view(-1, GROUP)])
    else:
        parts = [[by_hand(one) for one in part.T] for part in rewards.view(-1, GROUP, 2)]
        totals = torch.cat([one + 0.5 * other for one, other in parts])
        totals[gone.any(dim=1)] = float("nan")
        expected = by_hand(totals)
    torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-5)
    assert (advantages[gone.any(dim=1)] == 0).all()


class Playground:
    """An environment with a reward of its own, which TRL would add to the spec's."""

    made = 0

    def __init__(self) -> None:
        Playground.made += 1
        self.number = Playground.made

    def reset(self, **_: Any) -> None:
        """Nothing to say."""

    async def get_reward(self) -> float | None:
        """It fails for one of four."""
        return None if self.number % 4 == 0 else float(self.number % 4)


def played(folder: Path, environment: Any, combine: str) -> Any:
    """A step whose completions are played in an environment."""
    spec = spec_file(folder)
    spec.write_text(spec.read_text().replace("[reward]", f"[reward]\ncombine_mode = '{combine}'"))

    class Playing(recorded(trl.GRPOTrainer)):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given, environment_factory=environment)

    policy = new_policy()
    calls = "{% if m.tool_calls %}{{ m.tool_calls | tojson }} {% endif %}"
    policy.tokenizer.chat_template = TEMPLATE.replace("{% endfor %}", calls + "{% endfor %}")
    return train(policy, folder, make_reward(spec), trainer_class=Playing)


def test_the_reward_of_an_environment_is_counted_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'weighted_sum' would count .* of Playground twice"):
        played(tmp_path, Playground, "weighted_sum")
    with pytest.raises(ConfigError, match=r"missing\.policy: does not hold beside other reward"):
        played(tmp_path, Playground, "replace")
    trainer = played(tmp_path, expose_environment_reward(Playground), "weighted_sum")
    assert len(trainer.reward_funcs) == 1
    [rewards] = trainer.seen
    own = [environment.number % 4 for environment in trainer.environments]
    expected = torch.cat([by_hand(group) for group in rewards.view(-1, GROUP)])
    torch.testing.assert_close(trainer.made[0], expected, rtol=1e-4, atol=1e-5)
    assert 0 in own
    for number, reward in zip(own, rewards.view(-1).tolist(), strict=True):
        assert isnan(reward) if number == 0 else isnan(reward) or number <= reward <= number + 1


def test_online_dpo_awaits_nothing_and_is_refused_unless_missing_ends_it(tmp_path: Path) -> None:
    """It makes a missing reward 0 and prefers by it, in every version."""
    online_dpo = import_module("trl.experimental.online_dpo")
    datasets = import_module("datasets")

    def run(missing: str) -> Any:
        folder = tmp_path / missing
        folder.mkdir()
        spec, judge = spec_file(folder), folder / "kind_judge.py"
        judge.write_text(judge.read_text().replace("% 10 == 3", "< 0"))  # never fails
        spec.write_text(spec.read_text().replace("[missing]", f"[missing]\npolicy = '{missing}'"))
        policy = new_policy()
        arguments = online_dpo.OnlineDPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_new_tokens=4,
            max_length=32,
            max_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            logging_steps=1,
        )
        prompts = [[{"role": "user", "content": word}] for word in ("cold", "hard")] * 4
        trainer = online_dpo.OnlineDPOTrainer(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=PicklableReward(spec),
            train_dataset=datasets.Dataset.from_list([{"prompt": one} for one in prompts]),
            args=arguments,
        )
        trainer.train()
        return trainer

    with pytest.raises(ConfigError, match="OnlineDPOTrainer .*counts a missing reward as 0"):
        run("mask")
    assert len(history(run("raise"), "objective/scores")) == 1
