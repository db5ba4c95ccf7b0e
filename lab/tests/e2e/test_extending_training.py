"""The page about extensions: an environment and a sink in a run file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.helpers.command import run_process
from tests.e2e.helpers.example_package import ExamplePackage, install_example

pytestmark = pytest.mark.slow  # whole programs, each of which imports both packages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed."""
    found = tmp_path_factory.mktemp("site")
    install_example(tmp_path_factory.mktemp("source"), found)
    return found


@pytest.fixture(params=["beside", "installed"])
def example(request: pytest.FixtureRequest, tmp_path: Path, site: Path) -> ExamplePackage:
    return training_example(tmp_path, site if request.param == "installed" else None)


RUN = """
[model]
base = "tiny"

[rollout]
env_name = "{environment}"
max_turns = 4
env_config = {{ highest = 10 }}

[training]
num_epochs = 1
iterations_per_epoch = 2
batch_size = 8
group_size = 4
warm_start_iterations = 0

[logging]
to = "{sink}"
"""


def training_example(folder: Path, site: Path | None) -> ExamplePackage:
    """The page's package, and a run file that names its environment and its sink."""
    found = ExamplePackage(folder, site)
    environment = found.names["acme.environments:GuessingGame"]
    text = RUN.format(environment=environment, sink=found.names["acme.sinks:CsvSink"])
    (folder / "run.toml").write_text(text)
    return found


PROGRAM = """
import asyncio
from pathlib import Path
from adjudge_lab.rl.sinks import check_sink, open_sink
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.runfile_checks import load_run_file

run = load_run_file("run.toml")
replies = iter(["one", "9", "5"])
episode = asyncio.run(build_task(run, None).play(4, lambda messages: next(replies)))
print(episode.rewards, episode.done)
check_sink(run.logging.to, beside=run.folder)
sink = open_sink(run.logging.to, Path(), label="tiny", config={}, beside=run.folder)
sink.log(1, {"reward": 0.5})
sink.close()
print(Path("metrics.csv").read_text())
"""


def test_they_are_used(example: ExamplePackage) -> None:
    assert example.python("-c", PROGRAM) == "[0.0, 0.0, 1.0] True\n1,reward,0.5\n\n"


def test_a_run_with_an_environment_and_a_sink(example: ExamplePackage) -> None:
    shown = example.adjudge("train", "run.toml", "--dry-run").stdout
    assert f"{example.names['acme.environments:GuessingGame']}, at most 4 turns" in shown


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("env_name", "gess", "rollout.env_name: the environment is unknown; did you mean 'guess'?"),
        ("to", "csw", "logging.to: the sink is unknown; did you mean 'csv'?"),
    ],
)
def test_a_name_that_is_misspelt(
    tmp_path: Path, site: Path, key: str, value: str, message: str
) -> None:
    example = training_example(tmp_path, site)
    file = example.folder / "run.toml"
    names = {"env_name": "guess", "to": "csv"}
    file.write_text(file.read_text().replace(f'{key} = "{names[key]}"', f'{key} = "{value}"'))
    done = run_process("train", "run.toml", folder=example.folder, **example.environment())
    assert done.returncode == 2
    assert f"run.toml: {message} (found {value!r}; allowed: " in done.stderr
