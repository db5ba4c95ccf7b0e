"""Scalar judges trained with TRL, resumed and served: run by `make test-trl`."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge.datasets.rows import Preference
from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.llm.trained_judge_card import ScoreNormalisation, read_card
from adjudge.judges.models.local import LocalScalarModel
from adjudge.rewards.spec import RewardSpec
from adjudge.service.spec_backend import SpecBackend
from adjudge.wire import JudgeRequest
from adjudge_lab.judge_training.base_model import (
    add_lora,
    load_base_model,
    merge_lora,
    parameter_changes,
    weight_snapshot,
)
from adjudge_lab.judge_training.dataset import ConversationEncoder, encode_rows
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob, LoraTable
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.judge_training.supervised import score_pairs
from adjudge_lab.synthetic import SyntheticSettings, synthetic_preferences

EXAMPLE = Path(__file__).parents[3] / "examples" / "judge_bt_tiny.toml"
SMALL = """
kind = "judge"
method = "{method}"
[model]
path = "tiny"
[data]
train_batch_size = 32
micro_batch_size = 16
max_length = 128
{data}
[optim]
lr = 3e-3
[trainer]
total_epochs = 2
eval_every = 4
"""
QUESTION = "What is the capital of Peru?"
GOOD, BAD = "Sure, the capital of Peru is Lima.", "Well, the capital of it is Rome."


class Stopped(Exception):
    """A run that is interrupted."""


def write(folder: Path, data: str, method: str = "bradley_terry") -> Path:
    source = folder / "judge.toml"
    source.write_text(SMALL.format(method=method, data=data))
    return source


def job(source: Path, folder: Path, **given: Any) -> JudgeJob:
    return JudgeJob(JudgeFile.load(source, environ={}), source, folder, **given)


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The example's judge, and its summary."""
    folder = tmp_path_factory.mktemp("judge") / "run"
    return folder, run_judge(job(EXAMPLE, folder))


def test_a_separable_set_is_learned(judge: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = judge
    assert summary["first"]["accuracy"] < 0.7
    assert summary["validation"]["accuracy"] >= 0.99
    assert summary["validation"]["bayes_accuracy"] == 1.0
    assert summary["validation"]["rows"] == 400
    assert abs(summary["validation"]["length_corr"]) < 0.3
    found = rows(folder)
    assert [row["step"] for row in found] == list(range(summary["steps"] + 1))
    assert {"train/loss", "train/accuracy", "train/margin", "lr"} <= found[-1].keys()
    assert {"val/loss", "val/accuracy", "val/margin", "val/calibration_error"} <= found[-1].keys()
    best = max(row["val/accuracy"] for row in found if "val/accuracy" in row)
    kept = next(row for row in found if row["step"] == summary["best_step"])
    assert kept["val/accuracy"] == best == pytest.approx(summary["validation"]["accuracy"])
    assert max(row.get("train/padding_frac", 0) for row in found) < 0.25
    html = (folder / "report.html").read_text()
    assert "<script" not in html
    assert "Length correlation" in html


def test_the_card_says_what_it_is(judge: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = judge
    card = read_card(folder)
    assert (card.kind, card.method, card.base["path"]) == ("scalar", "bradley_terry", "tiny")
    assert card.data["train_rows"]["rows"] == 3600
    assert card.config["optim"]["lr"] == 3e-3
    assert card.validation == summary["validation"]
    assert isinstance(card.normalisation, ScoreNormalisation)
    scores = asyncio.run(served(folder))
    assert 0.0 <= card.normalisation(scores[1]) < 0.5 < card.normalisation(scores[0]) <= 1.0


async def served(folder: Path) -> list[float]:
    """What the folder's judge says of the good and the bad answer."""
    model = LocalScalarModel(folder)
    found = [await model.ascore(QUESTION, text) for text in (GOOD, BAD)]
    await model.aclose()
    return found


def test_a_served_folder_gives_the_scores_of_training(judge: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = judge
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = ConversationEncoder(tokenizer)
    made = synthetic_preferences(SyntheticSettings(n=30, seed=7)).rows
    ids = [[encoder(row.chosen), encoder(row.rejected)] for row in made]
    trained = score_pairs(model, tokenizer.pad_token_id, ids, 8, nullcontext)
    said = asyncio.run(_asked(folder, made))
    assert said == [pytest.approx(pair, abs=1e-5) for pair in trained]
    assert sum(chosen > rejected for chosen, rejected in said) >= 28


async def _asked(folder: Path, made: list[Preference]) -> list[tuple[float, float]]:
    model = LocalScalarModel(folder, batch_size=4)
    texts = [
        (row.chosen[0]["content"], side[-1]["content"])
        for row in made
        for side in (row.chosen, row.rejected)
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(model.ascore(*text)) for text in texts]
    found = [task.result() for task in tasks]
    await model.aclose()
    return list(zip(found[::2], found[1::2], strict=True))


def test_the_service_asks_it_by_the_spec_in_the_folder(judge: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = judge

    async def asked() -> list[Any]:
        backend = SpecBackend(RewardSpec.load(folder / "reward.toml"))
        await backend.start()
        found = [await backend.score([JudgeRequest(QUESTION, text)]) for text in (GOOD, BAD)]
        await backend.aclose()
        return [one[0] for one in found]

    good, bad = asyncio.run(asked())
    normalise = read_card(folder).normalisation
    assert normalise is not None
    raw = asyncio.run(served(folder))
    assert [good.score, bad.score] == pytest.approx([normalise(one) for one in raw], abs=1e-5)
    assert 0.0 <= bad.score < 0.5 < good.score <= 1.0


def test_a_resumed_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    source = write(tmp_path, "synthetic = { n = 300 }")

    def stop(step: int, _: dict[str, float]) -> None:
        if step == 11:
            raise Stopped

    plain = run_judge(job(source, tmp_path / "plain"))
    with pytest.raises(Stopped):
        run_judge(job(source, tmp_path / "cut", on_row=stop))
    (tmp_path / "cut").rename(tmp_path / "moved")
    resumed = run_judge(job(source, tmp_path / "moved"))
    assert resumed["resumed_from"] == 8
    assert [row["step"] for row in rows(tmp_path / "moved")] == list(range(plain["steps"] + 1))
    for one, other in zip(rows(tmp_path / "plain"), rows(tmp_path / "moved"), strict=True):
        for name in ("train/loss", "train/accuracy", "val/loss", "val/accuracy", "lr"):
            assert other.get(name) == pytest.approx(one.get(name), abs=1e-6), (one["step"], name)
    for name in ("best_step", "validation"):
        assert resumed[name] == plain[name]
    with pytest.raises(RunFolderError, match="is complete"):
        run_judge(job(source, tmp_path / "moved"))


def test_rows_from_files_are_counted_and_cut(tmp_path: Path) -> None:
    lines = []
    for number in range(60):
        asked = {"role": "user", "content": f"Question {number % 20}?"}
        better, worse = (
            [asked, {"role": "assistant", "content": f"{word} {number}"}] for word in ("yes", "no")
        )
        lines.append({"chosen": better, "rejected": json.dumps(worse), "margin": 0.5})
    lines.append(lines[0])
    lines.append({"chosen": lines[1]["chosen"], "rejected": "[]"})
    long = [{"role": "user", "content": "q " * 300}, {"role": "assistant", "content": "good"}]
    lines.append({"chosen": long, "rejected": [long[0], {"role": "assistant", "content": "bad"}]})
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = 'train = "pairs.jsonl"\nuse_margin = true\n'
    with pytest.raises(ConfigError, match=r"(?s)data\.train: 62 of 63 rows.*pairs\.jsonl:62"):
        run_judge(job(write(tmp_path, files), tmp_path / "strict"))
    files += "val_fraction = 0.2\nallow_unusable = 0.1\n"
    summary = run_judge(job(write(tmp_path, files), tmp_path / "run"))
    data = summary["data"]
    assert data["unreadable"]["rows"] == 1
    assert data["duplicates"] == {"rows": 1, "contradicting": 0}
    assert data["val_seen_in_training"] == 0
    assert data["train_rows"]["rows"] + data["val_rows"]["rows"] == 61
    assert data["train_rows"]["truncated"] + data["val_rows"]["truncated"] == 1
    assert len(data["train"][0]["sha256"]) == 64


def test_sides_that_read_the_same_are_unusable(tmp_path: Path) -> None:
    wanted = JudgeFile.load(
        write(tmp_path, "synthetic = { n = 20 }\nallow_unusable = 0.5"), environ={}
    )
    made = synthetic_preferences(SyntheticSettings(n=3)).rows
    _, tokenizer = load_base_model(wanted, ["a few words"])
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}
    other = {**call, "tool_calls": [{"id": "b"}]}
    row = Preference(chosen=[made[0].chosen[0], call], rejected=[made[0].chosen[0], other])
    found = encode_rows([*made, row], ConversationEncoder(tokenizer), wanted, "data.train")
    assert (len(found.rows), found.problems.count) == (3, 1)


def test_adapters_are_trained_and_merged(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed here")
    source = write(tmp_path, "synthetic = { n = 300 }")
    source.write_text(source.read_text() + "[lora]\nrank = 4\n")
    summary = run_judge(job(source, tmp_path / "run"))
    assert 0 < summary["weights"]["trainable"] < summary["weights"]["parameters"] / 2
    assert summary["weights"]["tensors_changed"] == summary["weights"]["tensors"]
    said = asyncio.run(served(tmp_path / "run"))
    assert all(isinstance(one, float) for one in said)


def test_a_run_whose_weights_stand_still_is_refused(tmp_path: Path) -> None:
    wanted = JudgeFile.load(write(tmp_path, "synthetic = { n = 20 }"), environ={})
    model, _ = load_base_model(wanted, ["a few words"])
    assert add_lora(model, None, scalar=True) is model
    assert merge_lora(model, None) is model
    with pytest.raises(ConfigError, match=r"no weight changed in training"):
        parameter_changes(model, weight_snapshot(model), lora=False)
    before = weight_snapshot(model)
    model.score.weight.data += 1
    assert parameter_changes(model, before, lora=False)["tensors_changed"] == 1
    with pytest.raises(ConfigError, match="no adapter changed"):
        parameter_changes(model, before, lora=True)
    assert LoraTable().rank == 16


def test_conversations_are_learned_and_then_judged_from(tmp_path: Path) -> None:
    """SFT, and Bradley-Terry that begins with its folder."""
    source = write(tmp_path, "synthetic = { n = 900 }", "sft")
    summary = run_judge(job(source, tmp_path / "sft"))
    assert summary["learned"] == "all turns"
    assert summary["validation"]["loss"] < summary["first"]["loss"] / 2
    card = read_card(tmp_path / "sft")
    assert (card.kind, card.normalisation) == ("generative", None)
    text = SMALL.format(method="bradley_terry", data="synthetic = { n = 100 }")
    source.write_text(
        text.replace('"tiny"', '"sft"').replace("total_epochs = 2", "total_epochs = 1")
    )
    summary = run_judge(job(source, tmp_path / "bt"))
    assert read_card(tmp_path / "bt").base["digest"]
    assert len(asyncio.run(served(tmp_path / "bt"))) == 2
