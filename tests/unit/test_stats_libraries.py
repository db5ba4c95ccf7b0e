"""Without numpy and scipy: what grading loads does without, and the others say what to install."""

import subprocess
import sys

import pytest

from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.stats.estimates import LazyLibrary

WITHOUT = "import sys; sys.modules.update(numpy=None, scipy=None); "
COMMANDS = (
    ["audit", "rows.jsonl"],
    ["probe", "spec.toml"],
    ["eval", "judge", "judge"],
    ["study", "swap", "rows.jsonl"],
)
RUN = f"""
{WITHOUT}
import adjudge.cli.grade, adjudge.graders, adjudge.trainers.trl
from adjudge.cli.main import main

def run(words):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0

for words in {COMMANDS!r}:
    code = run([*words, "--help"])
    assert code == 0, (words, code)
    code = run(words)
    assert code == 2, (words, code)
"""


def test_grading_does_without_and_a_command_says_what_to_install_before_it_asks() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stderr.split())
    assert shown.count(f"Run: {install_command('full')}") == len(COMMANDS)


def test_a_library_is_loaded_once_and_only_when_it_is_used() -> None:
    loads: list[str] = []

    def load() -> object:
        loads.append("loaded")
        return sys

    library = LazyLibrary(load)
    assert not loads
    assert library.maxsize == library.maxsize == sys.maxsize
    assert loads == ["loaded"]

    def absent() -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy.core")

    with pytest.raises(ConfigError, match=r"need numpy, which is not installed. Run: .*\[full\]"):
        _ = LazyLibrary(absent).array
