"""What SFT of a judge learns from a row, how it is validated, and checkpointed activations."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch

from adjudge.datasets.rows import Demonstration
from adjudge.errors import ConfigError
from adjudge_lab.judge_training.base_model import load_base_model
from adjudge_lab.judge_training.dataset import (
    ConversationEncoder,
    EncodedRows,
    encode_rows,
    load_demonstrations,
    load_preferences,
)
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.supervised import (
    IGNORED_LABEL,
    _sft_dataset,
    token_labels,
    train_bradley_terry,
    train_sft,
)
from adjudge_lab.judge_training.trl_trainers import TrainerContext

TURNS = [
    {"role": "user", "content": "What is the capital of Peru?"},
    {"role": "assistant", "content": "It is Lima."},
    {"role": "user", "content": "And of Chile?"},
    {"role": "assistant", "content": "That is Santiago, on the Mapocho."},
]
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
PLAIN += "{% if add_generation_prompt %}<|assistant|>{% endif %}"


def judge_of(method: str, micro: int = 8, **changed: dict[str, Any]) -> JudgeFile:
    tables: dict[str, dict[str, Any]] = {
        "model": {"path": "tiny"},
        "data": {
            "train_batch_size": 16,
            "micro_batch_size": micro,
            "max_length": 128,
            "synthetic": {"n": 48, "seed": 5},
        },
        "optim": {"lr": 3e-3},
        "trainer": {"total_epochs": 1, "eval_every": 2},
    }
    for name, table in changed.items():
        tables[name] = {**tables[name], **table}
    return JudgeFile.from_dict({"kind": "judge", "method": method, **tables}, environ={})


def tokenizer_of(judge: JudgeFile) -> Any:
    _, tokenizer = load_base_model(judge, [str(turn["content"]) for turn in TURNS])
    return tokenizer


def trained(judge: JudgeFile, folder: Path) -> tuple[Any, list[dict[str, float]]]:
    """The model, and its rows of metrics."""
    told: list[dict[str, float]] = []
    material: Any = (load_preferences if judge.is_scalar else load_demonstrations)(judge)
    model, tokenizer = load_base_model(judge, ["Sure, the capital of Peru is Lima."])
    encoder = ConversationEncoder(tokenizer)
    learn: Any = train_bradley_terry if judge.is_scalar else train_sft
    found = learn(
        model,
        tokenizer,
        encode_rows(material.train, encoder, judge, "data.train"),
        encode_rows(material.val, encoder, judge, "data.val"),
        judge,
        TrainerContext(folder, None, lambda _, row: told.append(row)),
    )
    return found["model"], told


def learned(tokenizer: Any, labels: list[int]) -> str:
    return str(tokenizer.decode([label for label in labels if label != IGNORED_LABEL]))


def test_the_assistants_turns_are_learned() -> None:
    tokenizer = tokenizer_of(judge_of("sft"))
    encoder = ConversationEncoder(tokenizer)
    labels = token_labels(tokenizer, encoder.clean_messages(TURNS))
    assert len(labels) == len(encoder(TURNS))
    said = learned(tokenizer, labels)
    assert "It is Lima." in said
    assert "Santiago, on the Mapocho." in said
    assert "capital" not in said
    assert "Chile" not in said


def test_without_marks_the_last_turn_is_learned() -> None:
    tokenizer = tokenizer_of(judge_of("sft"))
    tokenizer.chat_template = PLAIN
    labels = token_labels(tokenizer, TURNS)
    assert learned(tokenizer, labels) == "That is Santiago, on the Mapocho.\n"
    assert len(labels) == len(ConversationEncoder(tokenizer)(TURNS))


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("truncation", "share"), [("left", 0.4), ("right", 0.9)])
def test_ids_and_labels_are_cut_alike(truncation: str, share: float, bos: bool) -> None:
    tokenizer = tokenizer_of(judge_of("sft"))
    if bos:
        first = ConversationEncoder(tokenizer)(TURNS)[0]
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(first)
    encoder = ConversationEncoder(tokenizer)
    ids, labels = encoder(TURNS), token_labels(tokenizer, encoder.clean_messages(TURNS))
    most = round(share * len(ids))
    judge = judge_of("sft", data={"truncation": truncation, "max_length": most})
    rows = encode_rows([Demonstration(messages=TURNS)], encoder, judge, "data.train")
    assert rows.truncated == 1
    (row,) = _sft_dataset(rows, tokenizer, judge)
    said = learned(tokenizer, row["labels"])
    if truncation == "right":
        assert (row["input_ids"], row["labels"]) == (ids[:most], labels[:most])
        assert "Lima" in said
        assert "Mapocho" not in said
    else:
        head = int(bos)
        assert row["input_ids"] == ids[:head] + ids[head - most :]
        assert row["labels"] == labels[:head] + labels[head - most :]
        assert "Mapocho" in said
        assert "Lima" not in said
    pairs = zip(row["input_ids"], row["labels"], strict=True)
    assert all(label in (token, IGNORED_LABEL) for token, label in pairs)


def test_a_row_with_nothing_to_learn_is_refused() -> None:
    judge = judge_of("sft", data={"max_length": 4})
    tokenizer = tokenizer_of(judge)
    ids = ConversationEncoder(tokenizer)(TURNS)
    row = Demonstration(messages=TURNS, where="rows.jsonl:7")
    with pytest.raises(ConfigError, match=r"data\.max_length: rows\.jsonl:7: its 4 tokens"):
        _sft_dataset(EncodedRows([row], [[ids[:4]]]), tokenizer, judge)


def test_validation_is_over_all_tokens_however_they_are_batched(tmp_path: Path) -> None:
    judge = judge_of("sft", optim={"lr": 1e-12})
    model, told = trained(judge, tmp_path)
    tokenizer = load_base_model(judge, ["Sure, the capital of Peru is Lima."])[1]
    encoder = ConversationEncoder(tokenizer)
    loss, right, count = 0.0, 0, 0
    for row in load_demonstrations(judge).val:
        ids = torch.tensor([encoder(row.messages)])
        labels = torch.tensor(token_labels(tokenizer, encoder.clean_messages(row.messages)))[1:]
        with torch.no_grad():
            logits = model.eval()(input_ids=ids).logits[0, :-1]
        keep = labels != IGNORED_LABEL
        loss += float(
            torch.nn.functional.cross_entropy(logits[keep], labels[keep], reduction="sum")
        )
        right += int((logits[keep].argmax(-1) == labels[keep]).sum())
        count += int(keep.sum())
    assert told[-1]["val/loss"] == pytest.approx(loss / count, abs=1e-5)
    assert told[-1]["val/token_accuracy"] == pytest.approx(right / count)
    assert 0 <= told[1]["train/padding_frac"] < 0.5
    other = trained(judge_of("sft", micro=4, optim={"lr": 1e-12}), tmp_path / "other")[1]
    assert other[-1]["val/loss"] == pytest.approx(told[-1]["val/loss"], abs=1e-5)


@pytest.mark.parametrize("method", ["bradley_terry", "sft"])
def test_activations_computed_twice_give_the_same_weights(tmp_path: Path, method: str) -> None:
    plain, _ = trained(judge_of(method), tmp_path / "plain")
    judge = judge_of(method, trainer={"enable_gradient_checkpointing": True})
    again, _ = trained(judge, tmp_path / "again")
    assert [plain.is_activation_checkpointing, again.is_activation_checkpointing] == [False, True]
    first, second = dict(plain.named_parameters()), dict(again.named_parameters())
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, atol=1e-6, rtol=0)
    assert all(weight.dtype == torch.float32 for weight in second.values())
