"""Broken up text and real tokenizers: no special token may be left; run by `make test-serving`."""

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="not installed here; run `make test-serving`")

import tokenizers
import transformers

from adjudge.errors import ConfigError
from adjudge.judges.models.local import LocalChatModel
from adjudge.judges.models.local_loading import (
    get_control_tokens,
    get_special_tokens,
    read_control_tokens,
)
from adjudge.prompts import clean_text
from adjudge.prompts.control_tokens import break_control_tokens

SPECIAL = ["<|im_start|>", "<|im_end|>", "]~b]", "aba", "<|im_", "@@a b@@", "\ue000", "Ω1"]
ADDED = ["<think>", "<tool_call>", "<|im_end|>x"]
MARKUP = ["<table>", "\n\n", "ü"]
_SIGNS = ["<", "|", ">", "[", "]", "|>", "~b", "a", "b", "ab", " ", "\n", "é", "＜", "｜", "\u200b"]
_WORDS = ["im_", "end", "THINK", "𝐭hink", "<|im_<|im_end|>end|>", "@@A", "Lyon."]
JUNK = _SIGNS + _WORDS


def token(text: str, *, special: bool, **how: Any) -> Any:
    return tokenizers.AddedToken(text, special=special, **how)


def tokenizer_with(normalizer: Any, *, normalized: bool, **how: Any) -> Any:
    """Byte-level BPE without merges, and all the tokens above."""
    bpe = tokenizers.Tokenizer(
        tokenizers.models.BPE({sign: place for place, sign in enumerate(
            sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}, [])
    )  # fmt: skip
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    if normalizer is not None:
        bpe.normalizer = normalizer
    bpe.add_special_tokens(
        [token(one, special=True, normalized=normalized, **how) for one in SPECIAL]
    )
    bpe.add_tokens([token(one, special=False, normalized=normalized, **how) for one in ADDED])
    bpe.add_tokens([token(one, special=False, normalized=False) for one in MARKUP])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>")


def normalizers() -> dict[str, Any]:
    known = tokenizers.normalizers
    return {
        "none": None,
        "nfc": known.NFC(),
        "nfkc, lower case": known.Sequence([known.NFKC(), known.Lowercase()]),
        "sentencepiece": known.Replace(" ", "▁"),
    }


@pytest.mark.parametrize("how", [{}, {"lstrip": True, "rstrip": True}, {"single_word": True}])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", list(normalizers()))
def test_no_control_token_is_left(name: str, normalized: bool, how: dict[str, Any]) -> None:
    tokenizer = tokenizer_with(normalizers()[name], normalized=normalized, **how)
    control = {tokenizer.convert_tokens_to_ids(one) for one in [*SPECIAL, *ADDED]}
    tokens = get_control_tokens(tokenizer)
    assert tokens == {*SPECIAL, *ADDED}
    rng, hit = random.Random(f"{name} {normalized}"), 0
    for _ in range(3000):
        text = "".join(rng.choices([*SPECIAL, *ADDED, *MARKUP, *JUNK], k=rng.randint(1, 9)))
        hit += not control.isdisjoint(tokenizer.encode(text, add_special_tokens=False))
        for safe in (break_control_tokens(text, tokens), clean_text(text, tokens)):
            ids = tokenizer.encode(safe, add_special_tokens=False)
            assert control.isdisjoint(ids), (text, safe)
    assert hit > 1000


def test_special_and_added_tokens_are_told_apart() -> None:
    tokenizer = tokenizer_with(None, normalized=False)
    assert get_special_tokens(tokenizer) == set(SPECIAL)
    assert get_control_tokens(tokenizer) == {*SPECIAL, *ADDED}


def test_files_say_what_the_tokenizer_says(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(None, normalized=False)
    tokenizer.save_pretrained(tmp_path)
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        assert read_control_tokens(str(place)) == get_control_tokens(tokenizer)
    assert LocalChatModel(tmp_path).control_tokens == get_control_tokens(tokenizer)


def test_what_cannot_be_loaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for place in (str(tmp_path), str(tmp_path / "none"), "no/such-name"):
        with pytest.raises(ConfigError, match=r"^tokenizer: .*: cannot be loaded"):
            read_control_tokens(place)
