"""Builds a tiny random chat model in a folder: `python tiny_model.py FOLDER [HEAD_DIM]`.

Under a megabyte of weights (Qwen2 architecture, float32), a byte-level BPE tokenizer trained on a
few sentences in place, and a ChatML template. It talks nonsense in printable ASCII, the same
nonsense every time: weights come from a fixed seed. `HEAD_DIM` 64 suits vLLM's attention on a CPU.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

REASON = "not installed here; run `make test-serving`"
torch: Any = pytest.importorskip("torch", reason=f"torch is {REASON}")
tokenizers: Any = pytest.importorskip("tokenizers", reason=f"tokenizers is {REASON}")
transformers: Any = pytest.importorskip("transformers", reason=f"transformers is {REASON}")

SENTENCES = [
    'the judge scores the answer 0 1 2 3 4 5 {"score": 1, "reason": "ok"}',
    "yes no good bad better worse the same",
]
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: Path, head_dim: int = 16) -> None:
    """Write model, tokenizer and chat template into ``folder``."""
    tokenizer = _tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=2 * head_dim,
            intermediate_size=4 * head_dim,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=2048,
            # Wide and untied, or it would say its last token for ever.
            initializer_range=0.5,
            tie_word_embeddings=False,
            bos_token_id=None,
            **ends,
        )
    )
    with torch.no_grad():
        model.lm_head.weight[_unspoken(tokenizer)] = 0.0
    model.generation_config = transformers.GenerationConfig(max_new_tokens=16, **ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unspoken(tokenizer: Any) -> list[int]:
    """The tokens that are not printable ASCII: halves of characters, control characters."""
    silent = set(tokenizer.all_special_ids) - {tokenizer.eos_token_id}
    for number in range(len(tokenizer)):
        text = tokenizer.decode([number])
        if not (text.isascii() and text.isprintable()):
            silent.add(number)
    return sorted(silent)


def _tokenizer() -> Any:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[PAD, START, END],
        # All bytes, so that any text can be said and read.
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(SENTENCES * 50, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
    )
    fast.chat_template = CHATML
    return fast


if __name__ == "__main__":
    build(Path(sys.argv[1]), *map(int, sys.argv[2:]))
