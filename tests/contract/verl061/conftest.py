"""Fixtures; where this verl is not installed, nothing is collected."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if find_spec("verl") is None:
    collect_ignore = [str(path) for path in HERE.glob("*.py")]

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path[:0] = [str(HERE), str(HERE.parent / "verl_shared")]


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a spec whose judge says nothing of answers with `fail` in them."""
    from tiny import SPEC  # type: ignore[import-not-found]  # beside this file

    path = tmp_path_factory.mktemp("spec") / "reward.toml"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture(autouse=True)
def _fresh_custom_module() -> Iterator[None]:
    yield
    sys.modules.pop("custom_module", None)  # verl keeps the first file it ever loaded
