"""Trials of Harbor, as its models of 0.25.0 write them, and its trajectories alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adjudge.rollouts.samples import SampleReader

TASK = "Make the file kelp.txt with the depth of kelp in metres."
TRAJECTORY: dict[str, Any] = {
    "schema_version": "ATIF-v1.8",
    "session_id": "s",
    "agent": {"name": "terminus-2", "version": "2.0", "model_name": "toy/small"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "You work in a shell."},
        {"step_id": 2, "source": "user", "message": TASK},
        {
            "step_id": 3,
            "source": "agent",
            "message": "I look first.",
            "reasoning_content": "Is it there?",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}
            ],
            "observation": {"results": [{"source_call_id": "c1", "content": "notes.txt"}]},
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "echo 20 > kelp.txt",
            "observation": {"results": [{"content": "$"}]},
        },
        {"step_id": 5, "source": "agent", "message": "Done."},
    ],
}


def write_trial(
    folder: Path, rewards: dict[str, Any] | None, error: str | None = None, *, played: bool = True
) -> None:
    """A trial's folder; ``error`` names what failed."""
    (folder / "agent").mkdir(parents=True)
    failure = {"exception_type": error, "exception_message": "it did not end well"}
    result = {
        "task_name": "kelp",
        "trial_name": folder.name,
        "source": "sea",
        "task_checksum": "00000000",
        "agent_info": {"name": "terminus-2", "version": "2.0", "model_info": None},
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": None if error is None else failure,
        "step_results": None,
    }
    (folder / "result.json").write_text(json.dumps(result))
    if played:
        (folder / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY))


def test_a_job_is_its_trials_with_the_verifiers_reward(tmp_path: Path) -> None:
    job = tmp_path / "job"
    write_trial(job / "a", {"reward": 1.0})
    write_trial(job / "b", {"reward": 0.0}, "AgentTimeoutError")
    write_trial(job / "c", {"correct": 1.0, "tidy": 0.5})
    write_trial(job / "d", {"correct": 1.0, "reward": 0.25})
    reader = SampleReader([job], {})
    samples = list(reader)
    assert [one.env_reward for one in samples] == [1.0, 0.0, None, 0.25]
    assert {one.group for one in samples} == {"sea/kelp"}
    assert samples[1].extra["termination_reason"] == "AgentTimeoutError"
    assert samples[2].extra["reward_components"] == {"correct": 1.0, "tidy": 0.5}
    assert (samples[0].prompt, samples[0].response) == (TASK, "Done.")
    messages = samples[0].messages or []
    roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [one["role"] for one in messages] == roles
    assert messages[2]["tool_calls"][0]["function"] == {
        "name": "bash",
        "arguments": '{"command":"ls"}',
    }
    assert messages[2]["reasoning_content"] == "Is it there?"
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "notes.txt"}
    assert not reader.broken


def test_a_trial_that_something_else_ended_is_broken_whatever_it_was_paid(tmp_path: Path) -> None:
    for error in ("SandboxLikelyOutOfMemoryError", "RateLimitError", "Unheard"):
        write_trial(tmp_path / error / "a", {"reward": 0.0}, error)
        reader = SampleReader([tmp_path / error], {})
        assert not list(reader)
        [broken] = reader.broken
        assert broken.message == f"the run failed: {error}: it did not end well"
    for error in ("VerifierTimeoutError", "RewardFileNotFoundError"):
        write_trial(tmp_path / error / "a", {"reward": 0.0}, error)
        [sample] = SampleReader([tmp_path / error], {})
        assert sample.env_reward is None


def test_a_trial_without_its_trajectory_says_what_is_not_there(tmp_path: Path) -> None:
    write_trial(tmp_path / "job" / "a", {"reward": 1.0}, played=False)
    write_trial(tmp_path / "job" / "b", {"reward": 1.0})
    (tmp_path / "job" / "b" / "agent" / "trajectory.json").write_text("{torn")
    reader = SampleReader([tmp_path / "job"], {})
    assert not list(reader)
    first, second = sorted(one.message for one in reader.broken if "result.json" in one.where)
    assert first.startswith("agent/trajectory.json cannot be read")
    assert second == "the trial has no agent/trajectory.json beside it, so nothing can be judged"


def test_a_trajectory_alone_is_a_rollout(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(TRAJECTORY))
    [sample] = SampleReader([file], {})
    assert (sample.response, sample.env_reward) == ("Done.", None)
    silent = {**TRAJECTORY, "steps": TRAJECTORY["steps"][:2]}
    file.write_text(json.dumps(silent))
    reader = SampleReader([file], {})
    assert not list(reader)
    assert "nothing was answered" in reader.broken[0].message
