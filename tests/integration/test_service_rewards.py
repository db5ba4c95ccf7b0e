"""A spec in this process and behind `adjudge serve`: equal rewards, by every route."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import adjudge
from adjudge.service.server import start_service

pytestmark = pytest.mark.slow

PLAIN = '[[graders]]\nname = "match"\ntype = "string_match"\n'
SPECS = {"plain": PLAIN, "full": f'{PLAIN}[reward]\ncombine_mode = "weighted_sum"\n'}
REFERENCES = [["Paris", "City of Paris"], {"value": "Paris"}, 4, True, None, "Paris"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for name, spec in SPECS.items():
        (folder / f"{name}.toml").write_text(spec)
    return folder


def rewards(spec: str, **columns: Any) -> Any:
    reward = adjudge.make_reward(spec, trainer="trl")
    texts = ["Paris"] * len(REFERENCES)
    return asyncio.run(reward(prompts=["Capital?"] * len(texts), completions=texts, **columns))


def post(address: str, body: Any) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(address, json.dumps(body).encode()) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_an_address_in_place_of_a_spec_gives_the_same_rewards(folder: Path) -> None:
    columns = {"ground_truth": REFERENCES, "env_reward": [0.25, 0.5, 0.75, 1.0, 2.0, 0.125]}
    found = rewards(str(folder / "full.toml"), **columns)
    assert found == [1.25, None, None, None, None, 1.125]
    with start_service(str(folder / "full.toml")) as url:
        assert rewards(url, **columns) == found


def test_every_route_keeps_the_reference_as_it_is(folder: Path) -> None:
    found = rewards(str(folder / "plain.toml"), ground_truth=REFERENCES)
    assert found == [1.0, None, None, None, None, 1.0]
    with start_service(str(folder / "plain.toml")) as url:
        asked = [
            {"prompt": "Capital?", "completion": "Paris", "answer": answer} for answer in REFERENCES
        ]
        _, batch = post(f"{url}/batch_judge", {"requests": asked})
        assert [one.get("score") for one in batch["responses"]] == found
        for reference, request, score in zip(REFERENCES, asked, found, strict=True):
            openrlhf = {"query": ["Q Paris"], "prompts": ["Q "], "labels": [reference]}
            slime = {"prompt": "Q", "response": "Paris", "label": reference}
            answers = [
                post(f"{url}/judge", request),
                post(f"{url}/get_reward", openrlhf),
                post(f"{url}/slime", slime),
            ]
            if score is None:
                kinds = [(status, body["error"]["kind"]) for status, body in answers]
                assert kinds == [(422, "invalid_input")] * 3
            else:
                judged, listed, alone = (body for _, body in answers)
                assert (judged["score"], listed["rewards"], alone) == (score, [score], score)
