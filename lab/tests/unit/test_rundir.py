"""The folder of a training run: whose it is, where it goes on, what is cut off."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adjudge import GraderError, GraderScore
from adjudge.errors import ErrorKind, RunFolderError
from adjudge.files import JsonlLog, iter_rows
from adjudge.types import GradedSample, Provenance, Usage
from adjudge_lab.environments import Episode
from adjudge_lab.rl.rollouts import Rollout, RolloutBatch, RolloutStore, RolloutTokens
from adjudge_lab.rl.run_folder import (
    TrainingFolder,
    find_newest_checkpoint,
    truncate_after_step,
)
from adjudge_lab.rl.runfile_checks import load_run_file

EXAMPLE = Path(__file__).parents[3] / "examples" / "rl_tiny.toml"


def opened(folder: Path, seed: int = 0, source: Path = EXAMPLE) -> TrainingFolder:
    return TrainingFolder(folder, load_run_file(source).with_seed(seed), source)


def checkpoint(folder: Path, step: int, state: str | None = None) -> Path:
    path = folder / "checkpoints" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if state is None:
        state = json.dumps({"global_step": step, "log_history": []})
    (path / "trainer_state.json").write_text(state)
    return path


def test_a_run_whose_dataset_has_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    """Steps after a resume would be on other prompts than those before."""
    source, data = tmp_path / "run.toml", tmp_path / "rows.jsonl"
    source.write_text(
        '[model]\nbase = "tiny"\n[rollout]\ndataset = "rows.jsonl"\n[[graders]]\n'
        'name = "rule"\ntype = "json_valid"\n[judge]\ncombine_mode = "replace"\n'
    )
    data.write_text('{"prompt": "Say yes."}\n{"prompt": "Say no."}\n')
    opened(tmp_path / "run", source=source).close()
    with closing(opened(tmp_path / "run", source=source)) as run:
        assert run.resumed
    data.write_text('{"prompt": "Say yes."}\n{"prompt": "Say maybe."}\n')
    with pytest.raises(RunFolderError, match="another rollout.dataset, or its rows have changed"):
        opened(tmp_path / "run", source=source)


def test_the_same_run_goes_on_at_its_newest_checkpoint(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as run:
        for step in range(1, 6):
            run.append("metrics.jsonl", [{"step": step}])
            run.append("rollouts.jsonl", [{"step": step, "index": index} for index in range(2)])
        run.append("evaluation.jsonl", [{"step": 0, "seed": 1}, {"step": 5, "seed": 1}])
    facts = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**facts, "pid": 1}))
    saved = checkpoint(tmp_path, 3)
    with closing(opened(tmp_path)) as run:
        assert run.resumed
        assert (run.step, run.checkpoint) == (3, saved)
        assert [row["step"] for row in run.rows("metrics.jsonl")] == [1, 2, 3]
        assert len(run.rows("rollouts.jsonl")) == 6
        assert run.rows("evaluation.jsonl") == [{"step": 0, "seed": 1}]
        run.append("metrics.jsonl", [{"step": 4}])
        assert len(run.rows("metrics.jsonl")) == 4
    assert json.loads((tmp_path / "run.json").read_text()) == facts  # with its own process again


def test_a_run_killed_before_its_folder_was_its_own_begins_anew(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for path in tmp_path.iterdir():
        if path.name != "run.json":
            path.unlink()
    with closing(opened(tmp_path, seed=1)) as run:
        assert not run.resumed
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 1


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "rollouts.jsonl", "summary.json", "rewards.jsonl"]
)
def test_another_runs_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(RunFolderError, match=f"{name} of another run"):
        opened(tmp_path)
    assert not (tmp_path / "config.toml").exists()


def test_a_run_of_another_file_or_seed_or_that_is_over_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    other = tmp_path / "other.toml"
    other.write_bytes(EXAMPLE.read_bytes() + b"\n")
    with pytest.raises(RunFolderError, match="its config.toml differs"):
        opened(tmp_path / "run", source=other)
    with pytest.raises(RunFolderError, match=r"a run of another seed \(found 0; now 1\)"):
        opened(tmp_path / "run", seed=1)
    facts = (tmp_path / "run" / "run.json").read_bytes()
    (tmp_path / "run" / "run.json").write_bytes(facts[:20])
    with pytest.raises(RunFolderError, match=r"run.json: cannot be read"):
        opened(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_bytes(facts)
    (tmp_path / "run" / "summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match="its run is complete"):
        opened(tmp_path / "run")


@pytest.mark.parametrize("state", ["", '{"global_step": 9', '{"global_step": 8}', "[]"])
def test_a_torn_checkpoint_is_passed_over(tmp_path: Path, state: str) -> None:
    whole = checkpoint(tmp_path, 6)
    checkpoint(tmp_path, 3)
    checkpoint(tmp_path, 9, state)
    (tmp_path / "checkpoints" / "checkpoint-12").mkdir()
    assert find_newest_checkpoint(tmp_path) == (6, whole)
    assert find_newest_checkpoint(tmp_path / "nothing") == (0, None)


def test_old_checkpoints_go_and_the_first_policy_stays(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as run:
        (run.path / "checkpoints" / "checkpoint-0").mkdir(parents=True)
        for step in (9, 10, 20, 100):
            checkpoint(run.path, step)
        run.on_policy_saved(100)
        assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
            "checkpoint-0", "checkpoint-20", "checkpoint-100",
        }  # fmt: skip


def test_rows_after_a_step_and_a_torn_one_are_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    whole = [b'{"step":1,"a":"\\n"}\n', b'{"step":2}\n', b'{"step":2,"b":null}\n', b'{"step":3}\n']
    for torn in (b"", b'{"step":2', b'{"step":2}', b"\x00\x00"):
        file.write_bytes(b"".join(whole) + torn)
        truncate_after_step(JsonlLog(file), 5)
        assert file.read_bytes() == b"".join(whole)
        truncate_after_step(JsonlLog(file), 2)
        assert file.read_bytes() == b"".join(whole[:3])
    assert [row["step"] for row in iter_rows(file, dict[str, Any])] == [1, 2, 2]
    truncate_after_step(JsonlLog(file), 0)
    assert file.read_bytes() == b""
    truncate_after_step(JsonlLog(tmp_path / "nothing"), 0)
    assert list(iter_rows(tmp_path / "nothing", dict[str, Any])) == []


def batch(step: int = 4) -> RolloutBatch:
    episode = Episode(
        "e", 7, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "é"}],
        [0.1 + 0.2], True, {"a": [1]}, [1], {"rollout": "4/0/0"},
    )  # fmt: skip
    failed = Episode("e", 7, [], error=GraderError("rollout", ErrorKind.BUG, "x"))
    return RolloutBatch(
        step,
        3,
        [
            Rollout(0, "4/0", episode, RolloutTokens([1], [2, 3], [-0.1, -1e-17], [0, 0])),
            Rollout(1, "4/0", failed, RolloutTokens([9], [9], [0.0], [0])),
        ],
    )


def judged(place: int, *, score: float = 1.0, shared: bool = False) -> GradedSample:
    usage = Usage(input_tokens=3, output_tokens=1, cost_usd=0.1)
    provenance = Provenance(source="live", usage=usage, latency_s=0.1 if shared else 0.1 + place)
    outcome: dict[str, Any] = {
        "a": GraderScore("a", score, "so", {"raw": ["x"]}, provenance=provenance),
        "b": GraderError("b", ErrorKind.UNPARSABLE, "no"),
    }
    events: Any = (
        [{"e": GraderScore("e", 0.5)}] if place else GraderError("e", ErrorKind.TIMEOUT, "")
    )
    return GradedSample(place, place, "4/0", None, outcome, events, sampled=True)


def test_what_was_said_comes_back_with_its_failures(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    assert store.load_judgements(4) == {}
    store.append_judgements(4, ["k0"], [judged(0)])
    store.append_judgements(4, ["k1"], [judged(1)])
    store.append_judgements(5, ["k9"], [judged(2)])
    assert store.load_judgements(4) == {"k0": judged(0), "k1": judged(1)}
    path = tmp_path / "step-000004.judged.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert store.load_judgements(4) == {"k0": judged(0)}
    store.append_judgements(4, ["k1"], [judged(1)])  # after the torn line, not on it
    assert store.load_judgements(4).keys() == {"k0", "k1"}


def test_no_flipped_bit_changes_a_judgement_that_was_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = RolloutStore(tmp_path)
    store.append_judgements(4, ["k0"], [judged(0, score=0.25)])
    path = tmp_path / "step-000004.judged.jsonl"
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert store.load_judgements(4) in ({}, {"k0": judged(0, score=0.25)})
    assert f"{path}:1: the line is damaged" in caplog.text


def test_a_call_about_a_whole_group_counts_once_again(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    store.append_judgements(4, ["k0", "k1"], [judged(0, shared=True), judged(1, shared=True)])
    first, second = store.load_judgements(4).values()
    assert first.outcome["a"].provenance is second.outcome["a"].provenance is not None
    store.append_judgements(5, ["k0", "k1"], [judged(0), judged(1)])
    first, second = store.load_judgements(5).values()
    assert first.outcome["a"].provenance is not second.outcome["a"].provenance


def test_steps_whose_policy_is_saved_are_forgotten(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    for step in (1, 2, 3):
        store.save(batch(step))
        store.append_judgements(step, ["k"], [judged(0)])
    (tmp_path / "journal.jsonl").write_text("x")
    (tmp_path / "step-000002.part").write_text("x")
    store.forget(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "journal.jsonl", "step-000003.judged.jsonl", "step-000003.msgpack",
    ]  # fmt: skip


def test_every_reply_is_written_down_at_once_also_one_of_no_use(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as run:
        journal = run.journal(0)
        kept: list[Any] = [
            GraderScore("a", 1.0),
            GraderScore("a", 2.0),
            GraderError("a", ErrorKind.UNPARSABLE, "?"),
        ]
        for draw, result in enumerate(kept):
            journal.put("k", "a", draw, result)
        journal.put("k", "a", 3, GraderError("a", ErrorKind.TIMEOUT, "late"))
        again = run.journal(0)  # as after a kill: nothing was closed
        assert [again.take("k", "a", draw) for draw in range(4)] == [*kept, None]
        with pytest.raises(RunFolderError, match="another spec"):
            run.journal(1)


def with_base(folder: Path) -> Path:
    """A run file whose base is a model's folder beside it."""
    base = folder / "base"
    base.mkdir()
    (base / "config.json").write_text('{"hidden_size": 8}')
    (base / "model.safetensors").write_bytes(bytes(range(256)) * 4000)
    (base / "README.md").write_text("a model")
    source = folder / "run.toml"
    source.write_text(EXAMPLE.read_text().replace('base = "tiny"', 'base = "base"'))
    return source


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda base: (base / "model.safetensors").write_bytes(bytes(range(256))[::-1] * 4000),
         "changed: model.safetensors"),
        (lambda base: (base / "config.json").write_text("{}"), "changed: config.json"),
        (lambda base: (base / "config.json").unlink(), "gone: config.json"),
        (lambda base: (base / "adapter_model.safetensors").touch(),
         "new: adapter_model.safetensors"),
    ],
)  # fmt: skip
def test_a_run_does_not_go_on_with_another_base_model(
    tmp_path: Path, change: Any, said: str
) -> None:
    source = with_base(tmp_path)
    opened(tmp_path / "run", source=source).close()
    (tmp_path / "base" / "README.md").write_text("more words")
    os.utime(tmp_path / "base" / "model.safetensors", (0, 0))  # copied from elsewhere
    opened(tmp_path / "run", source=source).close()
    change(tmp_path / "base")
    with pytest.raises(RunFolderError, match=rf"base model has changed .*\({said}\)"):
        opened(tmp_path / "run", source=source)


def test_a_base_of_the_hub_counts_as_its_cache_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, base = with_base(tmp_path), tmp_path / "base"
    revision = base.rename(tmp_path / "snapshots-1")
    hub = SimpleNamespace(try_to_load_from_cache=lambda name, file: str(revision / file))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    opened(tmp_path / "run", source=source).close()
    opened(tmp_path / "run", source=source).close()
    (revision / "config.json").write_text('{"hidden_size": 9}')
    with pytest.raises(RunFolderError, match="changed: config.json"):
        opened(tmp_path / "run", source=source)
    hub.try_to_load_from_cache = lambda name, file: None  # not downloaded any more
    opened(tmp_path / "run", source=source).close()
