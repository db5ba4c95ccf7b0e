"""A spec in this process and behind `adjudge serve`: equal rewards, by every route."""

from __future__ import annotations

import asyncio
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


def test_an_address_in_place_of_a_spec_gives_the_same_rewards(folder: Path) -> None:
    columns = {"ground_truth": REFERENCES, "env_reward": [0.25, 0.5, 0.75, 1.0, 2.0, 0.125]}
    found = rewards(str(folder / "full.toml"), **columns)
    assert found == [1.25, None, None, None, None, 1.125]
    with start_service(str(folder / "full.toml")) as url:
        assert rewards(url, **columns) == found
