"""What the name of a model means, and what is kept of an evaluation."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, RunFolderError
from adjudge.judges.models.model_files import MODEL_FILES, fetched_path
from adjudge.types import GraderError
from adjudge_lab.environments import Episode
from adjudge_lab.evaluation.run import EvaluationFolder, read_episode
from adjudge_lab.evaluation.targets import build_player, find_policy_target
from adjudge_lab.rl.held_out import EvaluatedEpisode
from adjudge_lab.rl.runfile_checks import resolve_run_file

MANIFEST: dict[str, Any] = {
    "kind": "eval", "models": [["a", "a"]], "seeds": [1], "judges": True, "settings": "x",
}  # fmt: skip


def model_in(folder: Path, *, whole: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if whole:
        step = folder.name.rpartition("-")[2]
        (folder / "trainer_state.json").write_text(
            json.dumps({"global_step": int(step) if step.isdigit() else 0})
        )
    return folder


def test_a_model_that_llama_cpp_serves_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with refuses("--model"):
        find_policy_target("smollm2")
    file = fetched_path(MODEL_FILES["smollm2"])
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    for name in ("smollm2", str(file)):
        found = find_policy_target(name)
        assert (found.name, found.kind, found.place) == (name, "embedded", str(file))
    with refuses("--model"):
        find_policy_target(str(tmp_path / "nowhere.gguf"))
    monkeypatch.chdir(tmp_path)
    model_in(Path("smollm2"))
    assert find_policy_target("smollm2").kind == "folder"  # what the user has at hand comes first


@pytest.mark.parametrize(("most", "slots"), [(256, 8), (3, 3)])
def test_a_model_file_has_no_slot_for_every_episode(tmp_path: Path, most: int, slots: int) -> None:
    """A slot takes memory for a whole conversation; the other episodes wait."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    rollout = {"env_name": "capitals", "max_concurrent_rollouts": most, "max_tokens": 3000}
    run = resolve_run_file({"model": {"base": "tiny"}, "rollout": rollout})
    player: Any = build_player(find_policy_target(str(tmp_path / "m.gguf")), run, [1])
    settings = player._model.server_settings
    assert settings.slots == slots
    assert settings.context >= 2048 + 3000


def test_what_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    model_in(tmp_path / "checkpoints" / "checkpoint-5")
    with pytest.raises(ConfigError, match=r"no model of step 7 in it .*of the steps 5"):
        find_policy_target(f"{tmp_path}@7")
    with pytest.raises(ConfigError, match="no model/ and no checkpoints"):
        find_policy_target(str(tmp_path / "checkpoints"))
    with pytest.raises(ConfigError, match="neither a folder nor the name of a model"):
        find_policy_target(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="neither a folder nor the name"):
        find_policy_target("ft:a model:checkpoint-100")


def test_a_misspelt_run_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_policy_target("runs/frist").kind == "hub"
    model_in(Path("runs/first/model"))
    Path("runs/first/run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"'runs/frist': no such run; did you mean 'runs/first'"):
        find_policy_target("runs/frist")
    with pytest.raises(ConfigError, match=r"no such run \(runs has: first\)"):
        find_policy_target("runs/zzz")


def test_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    one = find_policy_target("http://localhost:8000/v1#m/n", api_key_env="KEY")
    assert (one.kind, one.place, one.model) == ("endpoint", "http://localhost:8000/v1", "m/n")
    assert one.api_key_env == "KEY"
    with refuses("--model"):
        find_policy_target("http://localhost:8000/v1")
    with pytest.raises(ConfigError) as secret:
        find_policy_target("http://me:hush@localhost/v1")
    assert "hush" not in str(secret.value)
    with refuses("--api-key-env"):
        find_policy_target("org/name", api_key_env="KEY")


def evaluated(said: str = "hi", **given: Any) -> EvaluatedEpisode:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": said}]
    episode = Episode("env", 1, turns, rewards=[1.0], info={"x": {1}}, columns={"reference": "r"})
    return EvaluatedEpisode(
        episode, 0.5, None, {"g_score": 0.5}, {"g": {"score": 0.5, "reason": "ok"}}
    )


def test_an_episode_comes_back_as_it_was(tmp_path: Path) -> None:
    with EvaluationFolder(tmp_path / "e", MANIFEST) as folder:
        row = folder.append_episode("a", evaluated("a lone \ud800"))
        assert folder.load_rows() == {("a", 1): row}
        episode = read_episode(row)
    assert episode.messages[1]["content"] == "a lone ?"
    assert (episode.rewards, episode.seed, episode.columns) == ([1.0], 1, {"reference": "r"})


def test_a_torn_line_and_a_later_row(tmp_path: Path) -> None:
    with EvaluationFolder(tmp_path, MANIFEST) as folder:
        folder.append_episode("a", evaluated("old"))
        folder.append_episode("a", evaluated("new"))
        folder.append_usage("a", {"calls": 2})
    with (tmp_path / "episodes.jsonl").open("ab") as file:
        file.write(b'{"model": "a", "se')
    with EvaluationFolder(tmp_path, MANIFEST) as folder:
        folder.append_usage("a", {"calls": 3})
        assert folder.load_rows()["a", 1]["messages"][1]["content"] == "new"
        assert folder.total_usage("a") == {"calls": 5}
        folder.sort(["a"], [1])
    (line,) = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert json.loads(line)["reward"] == 0.5


@pytest.mark.parametrize("key", ["models", "seeds", "judges", "settings"])
def test_another_evaluation_is_refused(tmp_path: Path, key: str) -> None:
    with EvaluationFolder(tmp_path, MANIFEST):
        pass
    other = {**MANIFEST, key: "other"}
    with (
        pytest.raises(RunFolderError, match="Give another output folder"),
        EvaluationFolder(tmp_path, other),
    ):
        pass


def test_missing_rewards_say_why() -> None:
    gone = GraderError("judge", ErrorKind.TIMEOUT, "too late")
    row = EvaluatedEpisode(evaluated().episode, None, gone).row()
    assert row["missing"] == {"kind": "timeout", "message": "too late"}
