"""What the tests of TRL share: a tiny policy, a judge that fails, a spec, a run of the trainer.

The policy knows a few words and learns in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

GROUP = 8
PAD, END, USER, POLICY = SPECIAL = ["<pad>", "<end>", "<user>", "<policy>"]
KIND = ["kind", "warm", "soft", "calm"]
WORDS = [*KIND, "cold", "hard", "loud", "sharp", "dull", "grey", "late", "far", "thin", "dry"]
TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m.role == 'user' else '<policy>' }} {{ m.content }} "
    "{% endfor %}{% if add_generation_prompt %}<policy> {% endif %}"
)
JUDGE = '''
"""A judge that counts kind words, and fails for a tenth of the responses, always the same."""
from itertools import pairwise
from zlib import crc32

from adjudge.errors import ErrorKind

KIND = {"kind", "warm", "soft", "calm"}


def fails(text):
    return crc32(text.encode()) % 10 == 3


def kindness(messages):
    lines = messages[-1]["content"].split("\\n")
    text = next(after for line, after in pairwise(lines) if line.startswith("<response"))
    if fails(text):
        return ErrorKind.TIMEOUT if len(text) % 2 else ErrorKind.REFUSED
    return {"score": sum(word in KIND for word in text.split()) / 8, "reason": "counted"}
'''
SPEC = """
[[graders]]
name = "kindness"
type = "llm"
template = "{response}"
score_range = [0.0, 1.0]

[judges.main]
type = "scripted"
function = "kind_judge:kindness"

[reward]
group = "GROUP"

[missing]
patience_s = 0.0
"""


@dataclass
class Policy:
    """A model and its tokenizer; ``save`` writes both."""

    model: Any
    tokenizer: Any

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def new_policy() -> Policy:
    """The same untrained policy every time."""
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizers = import_module("tokenizers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=PAD))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=END, pad_token=PAD, padding_side="left"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [USER, POLICY]})
    tokenizer.chat_template = TEMPLATE
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Policy(transformers.Qwen3ForCausalLM(config), tokenizer)


def spec_file(folder: Path, group: str = "none") -> Path:
    """A spec with the failing judge beside it, and a group step."""
    (folder / "kind_judge.py").write_text(JUDGE)
    path = folder / f"{group}.toml"
    path.write_text(SPEC.replace("GROUP", group))
    return path


def train(
    policy: Any,
    folder: Path,
    reward_funcs: Any,
    *,
    steps: int = 1,
    conversational: bool = True,
    trainer_class: Any = None,
    algorithm: str = "GRPO",
    **settings: Any,
) -> Any:
    """Train ``policy`` and return the trainer; ``batch`` completions per process and step."""
    trl, datasets = import_module("trl"), import_module("datasets")
    prompts = [[{"role": "user", "content": word}] for word in ("cold", "hard", "sharp", "grey")]
    rows = [
        {"prompt": prompt if conversational else prompt[0]["content"], "answer": "kind"}
        for prompt in prompts * 16
    ]
    arguments = getattr(trl, f"{algorithm}Config")(
        output_dir=str(folder),
        per_device_train_batch_size=settings.pop("batch", 8 * GROUP),
        num_generations=GROUP,
        max_completion_length=8,
        max_steps=steps,
        learning_rate=3e-3,
        beta=0.0,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
        **settings,
    )
    trainer = (trainer_class or getattr(trl, f"{algorithm}Trainer"))(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=reward_funcs,
        train_dataset=datasets.Dataset.from_list(rows),
        args=arguments,
    )
    trainer.train()
    return trainer
