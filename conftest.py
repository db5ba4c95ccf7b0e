"""What holds in every test of both packages.

No message of a ``ConfigError`` is unknown. Properties are tried with the same 25 examples every
time, or with 100 others each time: ``--hypothesis-profile=random``. A test that needs more than
Python is marked ``needs``.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

from adjudge.engine.sandbox import sandbox_available
from adjudge.errors import ConfigError

try:
    from hypothesis import settings
except ModuleNotFoundError:  # where a trainer is tested, for one
    pass
else:
    # How long an example takes says more about who else uses the machine; pytest has a timeout.
    settings.register_profile("random", deadline=None, max_examples=100, print_blob=True)
    settings.register_profile("same", deadline=None, max_examples=25, derandomize=True)
    settings.load_profile("same")

_ROOT = Path(__file__).parent
_SOURCES = (str(_ROOT / "src"), str(_ROOT / "lab" / "src"))
_checked: set[tuple[str, int]] = set()
_unknown: list[str] = []


@cache
def _generator() -> ModuleType:
    spec = spec_from_file_location("generate_errors", _ROOT / "docs" / "generate_errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def _patterns() -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
    """What a message of several lines must match, and what each line of the others must."""
    messages = _generator().find_messages()
    several = [message.pattern for message in messages if "\n" in message.template]
    return several, [message.pattern for message in messages]


@cache
def _worded_lines(file: str) -> set[int]:
    found: set[int] = _generator().find_worded_lines(Path(file))
    return found


def _record(error: ConfigError, *arguments: Any) -> None:
    ValueError.__init__(error, *arguments)
    frame = sys._getframe(1)
    place = (frame.f_code.co_filename, frame.f_lineno)
    if place in _checked or not place[0].startswith(_SOURCES):
        return
    if place[1] not in _worded_lines(place[0]):
        return
    text = str(error)
    several, known = _patterns()
    lines = [] if any(one.search(text) for one in several) else text.splitlines()
    for line in lines:
        if line.strip() and not any(one.search(line) for one in known):
            _unknown.append(f"{place[0]}:{place[1]}: {line}")
            return
    _checked.add(place)


@pytest.fixture(autouse=True)
def _messages_are_documented() -> Iterator[None]:
    yield
    unknown = _unknown.copy()
    _unknown.clear()
    assert not unknown, f"messages that docs/generate_errors.py does not find: {unknown}"


@pytest.fixture
def sandboxed() -> None:
    """A machine on which programs can be sandboxed; else the test is skipped, or fails in CI."""
    reason = sandbox_available()
    if reason is not None and os.environ.get("ADJUDGE_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt install bubblewrap)")
    if reason is not None:
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a sandbox or a browser, so that `-m needs` finds it."""
    for item in items:
        if not {"sandboxed", "browser"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("needs")


def pytest_configure() -> None:
    """Record each message where it is made."""
    ConfigError.__init__ = _record  # type: ignore[assignment, method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in the files that have some: in all of them it is half of collecting."""
    found = yield
    if file_path.suffix != ".py" or ">>> " in file_path.read_text(encoding="utf-8"):
        return found
    return [one for one in found if not isinstance(one, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays to the end: the garbage collector is not to look at it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
