"""Judges that write, trained by imitation and by GRPO with TRL: run by `make test-trl`."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import JudgementForm, read_card
from adjudge_lab.judge_training.grpo import GrpoCallbacks
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.judge_questions import FENCE_KEY_FILE
from adjudge_lab.judge_training.judgement_rewards import UNPARSABLE_REWARD
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.synthetic import SyntheticSettings, synthetic_comparisons, synthetic_ratings

SFT = """
kind = "judge"
method = "sft"
mode = "{mode}"
[model]
path = "tiny"
[data]
train = "rows.jsonl"
train_batch_size = 8
micro_batch_size = 8
max_length = 600
val_fraction = 0.1
[optim]
lr = 3e-3
[trainer]
total_epochs = {epochs}
eval_every = 1000
"""
GRPO = """
kind = "judge"
method = "grpo"
mode = "{mode}"
[model]
path = "{path}"
[data]
train_batch_size = 4
micro_batch_size = {micro}
max_length = 600
val_fraction = 0.2
synthetic = {{ n = {n}, seed = 5 }}
[optim]
lr = 1e-3
[grpo]
rollout_n = 2
kl_loss_coef = 0.1
max_response_length = 16
[trainer]
total_epochs = 1
eval_every = 2
"""
BOTH = {
    "train/reward_mean", "train/reward_std", "train/kl_divergence", "train/policy_loss",
    "train/unread", "train/response_length", "train/clipped", "grad_norm", "lr", "tokens",
}  # fmt: skip


class Stopped(Exception):
    """A run that is interrupted."""


def job(source: Path, folder: Path, **given: Any) -> JudgeJob:
    return JudgeJob(JudgeFile.load(source, environ={}), source, folder, **given)


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def grpo_file(folder: Path, mode: str, *, path: str, n: int = 15, micro: int = 8) -> Path:
    source = folder / "grpo.toml"
    source.write_text(GRPO.format(mode=mode, path=path, n=n, micro=micro))
    return source


@pytest.fixture(scope="module")
def beginners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By mode, a folder with a judge that has the form and little else, ``judge``."""
    found = {}
    settings = SyntheticSettings(n=130)
    for mode in ("pointwise", "pairwise"):
        folder = tmp_path_factory.mktemp(mode)
        if mode == "pointwise":
            made = [
                {"messages": one.messages, "label": one.label}
                for one in synthetic_ratings(settings).rows
            ]
        else:
            made = [
                {"prompt": one.prompt, "a": one.a, "b": one.b, "label": one.label}
                for one in synthetic_comparisons(settings).rows
            ]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, made)))
        epochs = 5 if mode == "pointwise" else 2
        (folder / "sft.toml").write_text(SFT.format(mode=mode, epochs=epochs))
        run_judge(job(folder / "sft.toml", folder / "judge"))
        found[mode] = folder
    return found


@pytest.mark.parametrize("mode", ["pointwise", "pairwise"])
def test_judgements_are_imitated(beginners: dict[str, Path], mode: str) -> None:
    folder = beginners[mode] / "judge"
    first, *later = rows(folder)
    last = later[-1]
    assert first["val/unread"] == 1.0
    assert first["val/reward_mean"] == UNPARSABLE_REWARD
    assert last["val/loss"] < first["val/loss"] / 3
    assert last["val/unread"] < 0.5
    right = [row["val/accuracy"] for row in later if "val/accuracy" in row]
    assert max(right) > 0  # of few, and threads add up in any order
    card = read_card(folder)
    tag = "score" if mode == "pointwise" else "better"
    assert (card.kind, card.mode, card.verdict) == ("generative", mode, tag)
    assert card.prompt is not None
    assert card.prompt["mode"] == mode
    assert card.validation["unread"] == pytest.approx(last["val/unread"])
    assert (folder / "reward.toml").exists()
    assert "Best constant reward" in (folder / "report.html").read_text()


@pytest.mark.parametrize("mode", ["pointwise", "pairwise"])
def test_a_judge_is_trained_by_its_rewards(
    beginners: dict[str, Path], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[tuple[int, bool]]] = []
    inner = GrpoCallbacks.rewards

    def seen(self: GrpoCallbacks, **given: Any) -> list[float]:
        asked = [self.questions[place] for place in given["place"]]
        batches.append([(one.row, one.swapped) for one in asked])
        return inner(self, **given)

    monkeypatch.setattr(GrpoCallbacks, "rewards", seen)
    folder = beginners[mode]
    summary = run_judge(job(grpo_file(folder, mode, path="judge", micro=4), folder / "grpo"))
    found = rows(folder / "grpo")
    assert [row["step"] for row in found] == list(range(summary["steps"] + 1))
    assert found[1].keys() >= BOTH
    assert found[1]["train/kl_divergence"] == pytest.approx(0.0, abs=1e-6)
    assert max(row["train/kl_divergence"] for row in found[2:]) > 1e-6
    pulled = 0.1 * found[2]["train/kl_divergence"]
    assert found[2]["train/policy_loss"] == pytest.approx(found[2]["train/loss"] - pulled)
    measured = "error" if mode == "pointwise" else "consistency"
    assert any(f"val/{measured}" in row for row in found)
    assert all(len(batch) == 8 for batch in batches)  # four prompts, two replies each
    for batch in batches:
        assert batch[::2] == batch[1::2]
        if mode == "pairwise":
            assert all((row, not swapped) in batch for row, swapped in batch)
    baselines = summary["baselines"]["val"]
    assert baselines["best_reward"] == max(baselines["by_answer"].values())
    chosen = "error_or_unread" if mode == "pointwise" else "both_right"
    values = {row["step"]: row[f"val/{chosen}"] for row in found[1:] if f"val/{chosen}" in row}
    best = min(values.values()) if mode == "pointwise" else max(values.values())
    assert values[summary["best_step"]] == best == pytest.approx(summary["validation"][chosen])
    assert "best constant answer" in (folder / "grpo" / "report.html").read_text()
    card = read_card(folder / "grpo")
    assert (card.method, card.mode, card.base["path"]) == ("grpo", mode, "judge")
    assert (card.rating_calibration is None) == (
        mode == "pairwise" or summary["validation"]["rows"] < 10
    )


def test_garbage_earns_the_minimum(tmp_path: Path) -> None:
    """A model that was never shown the form, whatever the labels are."""
    source = grpo_file(tmp_path, "pointwise", path="tiny", n=6)
    run_judge(job(source, tmp_path / "run"))
    found = rows(tmp_path / "run")
    assert [row["train/reward_mean"] for row in found[1:]] == [UNPARSABLE_REWARD]
    assert found[0]["val/reward_mean"] == UNPARSABLE_REWARD
    assert found[1]["train/unread"] == 1.0
    assert "train/accuracy" not in found[1]


def test_a_resumed_run_goes_on_as_if_nothing_had_been(
    beginners: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "judge").symlink_to(beginners["pairwise"] / "judge")
    source = grpo_file(tmp_path, "pairwise", path="judge", n=12)

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run_judge(job(source, tmp_path / "cut", on_row=stop))
    assert len(rows(tmp_path / "cut")) == 4
    key = (tmp_path / "cut" / FENCE_KEY_FILE).read_bytes()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / FENCE_KEY_FILE).write_bytes(key)
    plain = run_judge(job(source, tmp_path / "plain"))
    resumed = run_judge(job(source, tmp_path / "cut"))
    assert (tmp_path / "cut" / FENCE_KEY_FILE).read_bytes() == key
    assert resumed["resumed_from"] == 2
    for one, other in zip(rows(tmp_path / "plain"), rows(tmp_path / "cut"), strict=True):
        for name in ("train/reward_mean", "train/loss", "val/reward_mean", "val/both_right"):
            assert other.get(name) == pytest.approx(one.get(name), abs=1e-5), (one["step"], name)
    assert resumed["best_step"] == plain["best_step"]
    assert 0 < resumed["tokens"] < plain["tokens"]  # as its seconds are, those since it went on


def test_adapters_learn_from_rewards(beginners: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed here")
    (tmp_path / "judge").symlink_to(beginners["pairwise"] / "judge")
    source = grpo_file(tmp_path, "pairwise", path="judge", n=6)
    source.write_text(source.read_text() + "[lora]\nrank = 4\n")
    summary = run_judge(job(source, tmp_path / "run"))
    assert 0 < summary["weights"]["trainable"] < summary["weights"]["parameters"]
    assert rows(tmp_path / "run")[1]["train/kl_divergence"] == pytest.approx(0.0, abs=1e-6)


def test_a_question_is_never_cut(beginners: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "judge").symlink_to(beginners["pointwise"] / "judge")
    source = grpo_file(tmp_path, "pointwise", path="judge")
    source.write_text(source.read_text().replace("max_length = 600", "max_length = 300"))
    with pytest.raises(
        ConfigError, match=r"(?s)data\.train: 0 of 12 rows can be used.*at most 300"
    ):
        run_judge(job(source, tmp_path / "run"))
    assert JudgementForm(mode="pointwise").verdict == "score"
