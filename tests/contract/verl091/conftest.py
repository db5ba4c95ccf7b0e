"""Fixtures; where this verl is not installed, nothing is collected."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEW = find_spec("verl") is not None and find_spec("verl.experimental.reward_loop") is not None
if not NEW:
    collect_ignore = [str(path) for path in HERE.glob("*.py")]

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path[:0] = [str(HERE), str(HERE.parent / "verl_shared")]


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a spec whose judge says nothing of answers with `fail` in them."""
    from tiny import SPEC  # beside this file

    path = tmp_path_factory.mktemp("spec") / "reward.toml"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where configurations find their tokenizer."""
    return tmp_path_factory.mktemp("model")
