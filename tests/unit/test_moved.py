"""Old import paths that users' files and programs name."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from adjudge.installation import LAB, install_command
from adjudge.moved import MOVED_MODULES, REMOVED_IN
from adjudge.version import __version__


@pytest.mark.parametrize(
    ("old", "new"), [pair for pair in MOVED_MODULES.items() if pair[1].startswith("adjudge.")]
)
def test_an_old_path_is_the_new_module(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under both names the classes are the same objects; the old name warns."""
    monkeypatch.delitem(sys.modules, old, raising=False)
    module = import_module(new)
    spec = module.__spec__
    with pytest.warns(DeprecationWarning, match=new):
        assert import_module(old) is module
    assert module.__spec__ is spec


def test_without_the_lab_the_message_says_what_to_install() -> None:
    """An old path of something that is in the other package names that package."""
    program = (
        "import sys; sys.modules['adjudge_lab'] = None\n"
        "try: import adjudge.environments\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == (
        f"adjudge.environments is in the package adjudge-lab. Run: {install_command(package=LAB)}"
    )


def test_a_module_that_never_was_is_not_found() -> None:
    """The finder answers for the listed names alone."""
    with pytest.raises(ModuleNotFoundError):
        import_module("adjudge.training.nothing_of_that_name")


def test_old_paths_are_gone_from_the_version_that_the_warning_names() -> None:
    version, last = (tuple(map(int, one.split(".")[:2])) for one in (__version__, REMOVED_IN))
    assert version < last, "empty MOVED_MODULES, and name the next version"
