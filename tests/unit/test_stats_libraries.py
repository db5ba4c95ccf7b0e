"""Without numpy and scipy: what grading loads does without, and the others say what to install."""

import subprocess
import sys

import pytest

from adjudge.errors import ConfigError
from adjudge.stats.estimates import LazyLibrary

WITHOUT = "import sys; sys.modules.update(numpy=None, scipy=None); "
RUN = WITHOUT + "from adjudge.cli.main import main; main()"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words", [["probe", "spec.toml"], ["eval", "judge", "judge"], ["study", "swap", "rows.jsonl"]]
)
def test_a_command_says_what_to_install_before_it_asks(words: list[str]) -> None:
    helped = run(*words, "--help")
    assert helped.returncode == 0, helped.stderr
    done = run(*words)
    assert done.returncode == 2
    assert 'pip install "adjudge[stats]"' in " ".join(done.stderr.split())


def test_what_grading_loads_does_without() -> None:
    code = WITHOUT + "import adjudge.cli.grade, adjudge.graders, adjudge.trainers.trl"
    subprocess.run([sys.executable, "-c", code], check=True)


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

    with pytest.raises(ConfigError, match=r'need numpy, .* pip install "adjudge\[stats\]"'):
        _ = LazyLibrary(absent).array
