"""NeMo-Gym's own agent and aggregation against a real `adjudge serve`; in the verl 0.6.1 env."""

import asyncio
import importlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.plugins.scripted import SPEC, find_source, patch_source, write_response

from adjudge.engine.processes import start_child_server
from adjudge.service.nemo_gym import aggregate_metrics
from adjudge_lab.conformance.driver import Batch
from adjudge_lab.conformance.drivers.nemo_rl import NeMoRLDriver
from adjudge_lab.conformance.source import TrainerSource, stand_in

sys.path.insert(0, str(find_source("nemo-gym-07d6b0d")))
torch = pytest.importorskip("torch")  # before the modules that stand in for others
for needed in ("pandas", "wandb", "fastapi", "omegaconf", "ray", "openai"):
    pytest.importorskip(needed, reason=f"NeMo-Gym needs {needed}; run `make test-plugins`")
if importlib.util.find_spec("itsdangerous") is None:  # of cookies, which are not used here
    stand_in("itsdangerous")
    stand_in("itsdangerous.exc", BadSignature=Exception)
for unused, names in (("yappi", ()), ("gprof2dot", ("main",)), ("pydot", ("graph_from_dot_file",))):
    if importlib.util.find_spec(unused) is None:  # of profiles
        stand_in(unused, **dict.fromkeys(names))

models: Any = importlib.import_module("nemo_gym.config_types")
profile: Any = importlib.import_module("nemo_gym.reward_profile")
agent: Any = importlib.import_module("responses_api_agents.simple_agent.app")


@contextmanager
def start_service(spec: str, *arguments: str) -> Iterator[str]:
    """`adjudge serve` by a Python that has the service's packages, which Gym's need not have."""
    python = os.environ.get("ADJUDGE_SERVER_PYTHON", sys.executable)
    command = [python, "-m", "adjudge", "serve", spec, "--json", "--until-eof", "--port", "0"]
    with start_child_server([*command, *arguments]) as (line, _):
        yield json.loads(line)["url"]


def toml_spec(folder: Path, *, group: str = "none") -> str:
    """SPEC as a file of the service."""
    script = SPEC["judges"]["main"]["script"]
    lines = [f"{json.dumps(key)} = {json.dumps(text)}" for key, text in script.items()]
    path = folder / f"{group}.toml"
    path.write_text(
        '[[graders]]\nname = "quality"\ntype = "llm"\ntemplate = "{response}"\n'
        f'score_range = [0.0, 1.0]\n[reward]\ngroup = "{group}"\n'
        '[judges.main]\ntype = "scripted"\n[judges.main.script]\n' + "\n".join(lines) + "\n"
    )
    return str(path)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_service(toml_spec(tmp_path_factory.mktemp("alone"))) as running:
        yield running


class Client:
    """Stands for Gym's ``ServerClient``: the policy answers, our service verifies."""

    def __init__(self, url: str, session: aiohttp.ClientSession, text: str) -> None:
        self.url, self.session, self.text = url, session, text
        self.global_config_dict: dict[str, Any] = {}

    async def post(self, *, server_name: str, url_path: str, json: Any, **_: Any) -> Any:
        if server_name == "policy_agent":
            return Answered(response(self.text))
        body = json if isinstance(json, dict) else json.model_dump()
        return await self.session.post(self.url + url_path, json=body)


class Answered:
    ok = True

    def __init__(self, value: Any) -> None:
        self.value = value
        self.cookies: dict[str, str] = {}

    async def read(self) -> bytes:
        return json.dumps(self.value).encode()


def response(text: str) -> dict[str, Any]:
    said = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [said],
        "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.25],
    }  # fmt: skip
    return {
        "id": "r", "created_at": 0.0, "model": "policy", "object": "response", "output": [message],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


async def run_agent(url: str, texts: list[str], **fields: Any) -> list[Any]:
    """Gym's ``SimpleAgent.run`` for each text, all at once, as rows of one task."""

    async def one(session: aiohttp.ClientSession, place: int, text: str) -> Any:
        made = agent.SimpleAgent.model_construct(
            config=agent.SimpleAgentConfig.model_construct(
                name="policy_agent",
                skip_verification=False,
                resources_server=type("Reference", (), {"name": "adjudge"}),
            ),
            server_client=Client(url, session, text),
        )
        body = agent.SimpleAgentRunRequest.model_validate(
            {
                "responses_create_params": {"input": [{"role": "user", "content": "2 + 2?"}]},
                "_ng_task_index": 0,
                "_ng_rollout_index": place,
                **fields,
            }
        )
        request = type("Request", (), {"cookies": {}})
        try:
            return (await made.run(request, body)).model_dump()
        except aiohttp.ClientResponseError as error:
            return error.status

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(session, *each)) for each in enumerate(texts)]
    return [task.result() for task in running]


def test_gyms_agent_gets_rewards_and_its_tokens_back(url: str) -> None:
    good, poor = asyncio.run(run_agent(url, [write_response(1.0), write_response(0.0)]))
    assert (good["reward"], poor["reward"]) == (1.0, 0.0)
    assert good["response"]["output"][0]["generation_log_probs"] == [-0.25]


def test_a_failed_judge_raises_in_gyms_agent(url: str) -> None:
    good, failed = asyncio.run(run_agent(url, [write_response(1.0), "fail"]))
    assert (good["reward"], failed) == (1.0, 503)


def test_a_group_is_settled_over_those_whose_judge_answered(tmp_path: Path) -> None:
    """A centred reward of NeMo-RL's group, each rollout of which asks alone."""
    scores = [1.0, 0.0, 0.5, None]
    texts = [write_response(score) for score in scores]
    spec = toml_spec(tmp_path, group="centre")
    with start_service(spec, "--group-size", str(len(texts))) as url:
        found = asyncio.run(run_agent(url, texts, _ng_group_id="g", _ng_group_attempt=0))
        again = asyncio.run(run_agent(url, texts, _ng_group_id="g", _ng_group_attempt=1))
    present = [score for score in scores if score is not None]
    middle = math.fsum(present) / len(present)
    wanted = [503 if score is None else score - middle for score in scores]
    for answers in (found, again):
        got = [one if one == 503 else one["reward"] for one in answers]
        assert got == pytest.approx(wanted)


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": place,
            "reward": (place % 3) / 2,
            "passed": place > 1,
            "response": {"usage": {"output_tokens": 10 + task * place}},
        }
        for task in range(3)
        for place in range(1 if task == 2 else 4)
    ]
    found[1]["only_here"] = 3.5
    return found


def test_metrics_are_gyms_own() -> None:
    ours = models.AggregateMetrics.model_validate(aggregate_metrics(rows()))
    theirs = profile.compute_aggregate_metrics(rows())
    assert ours.agent_metrics == pytest.approx(theirs.agent_metrics)
    assert ours.key_metrics == pytest.approx(theirs.key_metrics)
    for mine, own in zip(ours.group_level_metrics, theirs.group_level_metrics, strict=True):
        infos = own.pop("rollout_infos")
        kept = {key: value for key, value in own.items() if key in mine}
        numbers = {key for key in own if "/" in key}
        assert numbers <= set(mine)
        assert {key: mine[key] for key in kept} == pytest.approx(kept)
        assert [one["reward"] for one in mine["rollout_infos"]] == [i["reward"] for i in infos]


def test_gyms_agent_reads_our_metrics(url: str) -> None:
    async def ask() -> Any:
        async with aiohttp.ClientSession() as session:
            made = agent.SimpleAgent.model_construct(
                config=agent.SimpleAgentConfig.model_construct(
                    name="policy_agent",
                    skip_verification=False,
                    resources_server=type("Reference", (), {"name": "adjudge"}),
                ),
                server_client=Client(url, session, ""),
            )
            return await made.aggregate_metrics(
                models.AggregateMetricsRequest(verify_responses=rows())
            )

    found = asyncio.run(ask())
    assert found.key_metrics["mean/reward"] == pytest.approx(3 / 9)


def test_marked_rows_leave_nemo_rls_groups_where_it_is_patched(tmp_path: Path) -> None:
    """By wire, Gym's agent, NeMo-RL's reader of masks, its filter and its (patched) estimator."""
    scores = [None, 1.0, 0.0, 0.5, 1.0, 0.25, 0.0, None]
    checkout = patch_source("nemo-rl-7ea279a", "nemo_rl", tmp_path)
    reader: dict[str, Any] = {"torch": torch, "Any": Any}
    TrainerSource("nemo_rl", "nemo-rl", checkout).load_names(
        "experience/rollouts.py", ["_extract_mask_sample_flags"], reader
    )
    with start_service(toml_spec(tmp_path), "--format", "nemo-gym-marked") as url:
        rows = asyncio.run(run_agent(url, [write_response(score) for score in scores]))
    masks = reader["_extract_mask_sample_flags"]([{"full_result": row} for row in rows]).tolist()
    assert masks == [score is None for score in scores]
    assert {row["_ng_failure_class"] for row in rows if "_ng_failure_class" in row} == {
        "judge_failed"
    }
    told = tuple(None if mask else row["reward"] for mask, row in zip(masks, rows, strict=True))
    assert told == tuple(scores)
    driver = NeMoRLDriver(checkout)
    present = tuple(score for score in scores if score is not None)
    for setting in driver.settings:
        whole, alone = (
            driver.run_step(
                Batch(groups=(group,), lengths=((3,) * len(group),)), "mask_sample", setting
            ).advantages[0]
            for group in (told, present)
        )
        left = [value for value, mask in zip(whole, masks, strict=True) if not mask]
        assert left == pytest.approx(alone, abs=1e-6)
