"""The commands of the page on evaluation that need servers, run as printed; and those refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.tests.unit.helpers.ifeval_files import GOOD, write_prompts
from tests.refusals import refuses
from tests.rows import read_jsonl
from tests.unit.helpers.mock_provider import start_mock_here
from typer.testing import CliRunner, Result

from adjudge.cli.main import command_line
from adjudge.errors import ConfigError
from adjudge_lab.evaluation.targets import find_shards, merge_checkpoint

pytestmark = pytest.mark.slow  # whole commands, one after the other

PAGE = (Path(__file__).parents[3] / "docs" / "eval.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- not run: [^>]*-->\n```sh\n(.*?)```", PAGE, re.DOTALL)
_, PIPELINE, CHECKPOINT, _, REPLAY = BLOCKS
JUDGE = '{"reason": "fair", "score": 4}'


@pytest.fixture(scope="module")
def policy() -> Iterator[str]:
    with start_mock_here(behaviour="fixed", reply=GOOD) as url:
        yield url


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with start_mock_here(behaviour="fixed", reply=JUDGE) as url:
        yield url


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(Path("input_data.jsonl"), 3)


def run(line: str) -> Result:
    _, *arguments = shlex.split(line)
    return CliRunner().invoke(command_line(), arguments)


PLAIN = "adjudge eval ifeval --data input_data.jsonl"


def write_specs(judge: str) -> None:
    [spec] = re.findall(r'```toml title="held_out.toml"\n(.*?)```', PAGE, re.DOTALL)
    for name, model in (("held_out", "JUDGE"), ("reward", "other")):
        text = spec.replace("http://HOST/v1", judge).replace("JUDGE", model)
        Path(f"{name}.toml").write_text(text)


def test_the_pipeline_of_the_page(policy: str, judge: str) -> None:
    write_specs(judge)
    stored = f"{PLAIN} --responses gen.parquet -o runs/ifeval"  # scored without generating
    for line in (*PIPELINE.splitlines(), stored):
        done = run(line.replace("http://HOST/v1", policy))
        assert done.exit_code == 0, (line, done.output)
    for folder in ("generated", "ifeval"):
        [model] = json.loads(Path("runs", folder, "summary.json").read_text())["models"]
        assert model["samples"] == [4, 4]
        assert model["strict"]["prompt"]["value"] == 1.0
    rows = read_jsonl(Path("runs/held-out/rewards.jsonl"))
    assert [row["group"] for row in rows] == [f"row {n // 4}" for n in range(12)]
    assert {row["reward"] for row in rows} == {0.75}
    table = json.loads(Path("runs/judges/summary.json").read_text())
    assert [one["name"] for one in table["judges"]] == ["training", "held-out"]
    assert [one["samples"] for one in table["judges"]] == [12, 12]


def test_the_replays_of_the_page(judge: str) -> None:
    write_specs(judge)
    dump = [{"prompt": f"Rate {n} from 1 to 5.", "response": JUDGE, "score": 4, "judge": "j",
             "id": f"i{n}"} for n in range(3)]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in dump) + '{"prompt": "cut'
    Path("scores.jsonl").write_text(text)
    for line in REPLAY.splitlines():
        done = run(line)
        assert done.exit_code == 0, (line, done.output)
        assert "line 4 of scores.jsonl: cut off" in done.stderr
        assert "0/3" in done.stdout
    noise = json.loads(Path("runs/noise/summary.json").read_text())
    assert (noise["asked"]["now"], noise["arms"][0]["parsed"]) == (15, 15)
    again = run(REPLAY.splitlines()[1])
    assert "0 asked now" in again.stdout


def test_replies_of_which_none_can_be_read_are_no_success(judge: str) -> None:
    Path("scores.jsonl").write_text('{"prompt": "Say [[1]] or [[0]]."}\n')
    done = run(f"adjudge study replay scores.jsonl --judge {judge}#m -o out")
    assert done.exit_code == 3
    assert "No reply could be read" in done.stderr


MERGER = """#!{python}
import sys
from pathlib import Path
assert sys.argv[1:6] == ["-m", "verl.model_merger", "merge", "--backend", "fsdp"], sys.argv
source, target = Path(sys.argv[7]), Path(sys.argv[9])
if "broken" in (source / "model_world_size_1_rank_0.pt").read_text():
    sys.exit("the shard is broken")
(target / "config.json").write_text("{{}}")
"""


@pytest.fixture
def checkpoint() -> Path:
    """One rank's, and a Python whose verl does as if."""
    place = Path("checkpoints/global_step_5/actor")
    (place / "huggingface").mkdir(parents=True)
    (place / "fsdp_config.json").write_text('{"world_size": 1}')
    (place / "model_world_size_1_rank_0.pt").write_text("weights")
    (place / "huggingface/config.json").write_text("{}")
    (place / "huggingface/tokenizer.json").write_text("{}")
    python = Path("verl/bin/python")
    python.parent.mkdir(parents=True)
    python.write_text(MERGER.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return place


def merged(folder: str = "checkpoints", target: str = "merged") -> list[str]:
    said: list[str] = []
    merge_checkpoint(Path(folder), Path(target), python="./verl/bin/python", say=said.append)
    return said


def test_a_checkpoint_is_merged_once(checkpoint: Path) -> None:
    assert merged() == [f"merging {checkpoint} into merged"]
    assert merged("checkpoints/global_step_5") == [f"merged: is merged from {checkpoint} already"]
    (checkpoint / "model_world_size_1_rank_0.pt").write_text("other weights")
    with refuses("--merge-target"):
        merged()
    assert merged(target="other") == [f"merging {checkpoint} into other"]
    with refuses("--ckpt-dir"):
        merged("other", "third")


def test_a_merge_into_where_a_link_leads(checkpoint: Path) -> None:
    Path("disk").mkdir()
    Path("merged").symlink_to("disk", target_is_directory=True)
    merged()
    assert Path("disk/config.json").is_file()
    assert merged() == [f"merged: is merged from {checkpoint} already"]


def test_the_folder_one_is_in_is_not_replaced(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = Path.cwd()
    Path("empty").mkdir()
    monkeypatch.chdir("empty")
    with refuses("--merge-target"):
        merge_checkpoint(top / "checkpoints", Path(), python=str(top / "verl/bin/python"))


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("fsdp_config.json", "fsdp_config.json: the file is missing"),
        ("model_world_size_1_rank_0.pt", "has no model_world_size_N_rank_K.pt"),
        ("huggingface/config.json", "config.json: the model's configuration is missing"),
        ("huggingface/tokenizer.json", "huggingface: has no tokenizer"),
    ],
)
def test_what_a_checkpoint_lacks_is_named(checkpoint: Path, gone: str, said: str) -> None:
    (checkpoint / gone).unlink()
    with pytest.raises(ConfigError, match=said):
        merged()
    assert not Path("merged").exists()


def test_the_newest_step_is_the_one_that_verl_names(checkpoint: Path) -> None:
    newer = Path("checkpoints/global_step_10/actor")
    shutil.copytree(checkpoint, newer)
    assert find_shards(Path("checkpoints")) == newer
    Path("checkpoints/latest_checkpointed_iteration.txt").write_text("5\n")
    assert find_shards(Path("checkpoints")) == checkpoint


def test_a_merge_that_fails_leaves_nothing(checkpoint: Path) -> None:
    (checkpoint / "model_world_size_1_rank_0.pt").write_text("broken")
    with pytest.raises(ConfigError, match=r"failed \(exit code 1\):\nthe shard is broken"):
        merged()
    assert not Path("merged").exists()


def refused(line: str) -> str:
    done = run(line)
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ckpt-dir checkpoints", "--ckpt-dir: needs --merge-target"),
        ("--merge-target merged", "--merge-target: needs --ckpt-dir"),
    ],
)
def test_options_of_a_merge_that_cannot_be_meant(options: str, said: str) -> None:
    assert said in refused(f"{PLAIN} {options}")


@pytest.mark.parametrize(
    ("target", "python", "said"),
    [
        ("input_data.jsonl", None, "is a file"),
        ("verl", None, "holds other files"),
        ("m", "no/such", "no such program"),
    ],
)
@pytest.mark.usefixtures("checkpoint")
def test_where_nothing_can_be_merged(target: str, python: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        merge_checkpoint(Path("checkpoints"), Path(target), python=python or "./verl/bin/python")


@pytest.mark.usefixtures("checkpoint")
def test_the_options_of_the_page_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every option has been read by then, and nothing was merged for it.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "need vLLM, which is not installed" in refused(CHECKPOINT)
    assert not Path("merged").exists()
