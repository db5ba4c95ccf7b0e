"""NeMo-Gym is in no package index: an exchange as its source sends and reads it."""

import asyncio
from typing import Any

import aiohttp
from tests.contract.formats.served import Judge, serving


async def posted(url: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        # As both clients read it: aiohttp refuses to decode another content type.
        return response.status, await response.json()


ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "2 + 2?"}], "tools": []},
    "response": {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "policy",
        "object": "response",
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "four", "annotations": []}],
                "prompt_token_ids": [1, 2],
                "generation_token_ids": [3],
                "generation_log_probs": [-0.25],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    },
    "expected_answer": "4",
    "agent_ref": {"name": "simple_agent"},
}


def test_nemo_gyms_agent_seeds_and_verifies() -> None:
    judge = Judge()
    with serving(judge) as url:
        assert asyncio.run(posted(f"{url}/seed_session", ROW)) == (200, {})
        status, answer = asyncio.run(posted(f"{url}/verify", ROW))
    assert (status, answer) == (200, {**ROW, "reward": 4.0})
    assert (judge.asked[0].prompt, judge.asked[0].answer) == ("2 + 2?", "4")
