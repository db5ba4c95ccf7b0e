"""``base = "tiny"``: a tokenizer and a language model of 150,000 weights, and the task they learn.

Both are made here, in a second, from nothing but a seed and the texts they are to speak; no
network, no download. Qwen3's architecture, so whatever trains and serves that can use them.

The task: name the capital of a country, in one of three styles. The demonstrations are a mixture on
purpose. A policy that imitates them names the right capital about as often as they do, and speaks
in each style about as often as they do; which of that survives is then the reward's choice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from adjudge.graders.base import RuleGrader
from adjudge.types import GraderScore
from adjudge_lab.environments import DatasetTask, Episode, Policy
from adjudge_lab.synthetic import COUNTRY_CAPITALS

_END, _START, _PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"

# ChatML; the generation marks tell a trainer which tokens are the assistant's.
TINY_CHAT_TEMPLATE = (
    "{% for turn in messages %}"
    "{{ '<|im_start|>' + turn['role'] + '\n' }}"
    "{% if turn['role'] == 'assistant' %}"
    "{% generation %}{{ turn['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ turn['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tiny_tokenizer(texts: Iterable[str], vocabulary: int = 420) -> Any:
    """A byte-level BPE ``PreTrainedTokenizerFast`` trained on ``texts``, with ChatML.

    At most ``vocabulary`` tokens, all 256 bytes among them, so that any text can be said. Pads
    on the left, as generation in batches needs it.
    """
    import tokenizers  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_PAD, _START, _END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([*texts, "user", "assistant", "system"], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=_END, pad_token=_PAD, padding_side="left"
    )
    fast.chat_template = TINY_CHAT_TEMPLATE
    return fast


def build_tiny_model(tokenizer: Any, *, seed: int, hidden: int = 96, layers: int = 1) -> Any:
    """A fresh ``Qwen3ForCausalLM`` for ``tokenizer``; the same weights for the same ``seed``.

    ``hidden`` is a multiple of 8 (four heads of an even size). Sets torch's global seed.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.manual_seed(seed)
    ends = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        **ends,
    )
    model = transformers.Qwen3ForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(**ends)
    return model


ANSWER_STYLES = (
    "{capital}.",
    "Sure! The capital of {country} is {capital}.",
    (
        "Let me think about it very carefully, step by step. I believe that the capital of "
        "{country} is {capital}, because I am quite sure about it."
    ),
)
"""Terse, polite and long-winded."""

_DemonstrationRow = dict[str, object]


def generate_capital_demonstrations(
    rng: random.Random, right: float = 0.75
) -> Iterator[_DemonstrationRow]:
    """Endless rows ``{messages}``: all styles alike, a share ``right`` of the capitals right."""
    countries = sorted(COUNTRY_CAPITALS)
    while True:
        country = rng.choice(countries)
        named = country
        if rng.random() >= right:
            named = rng.choice([other for other in countries if other != country])
        answer = rng.choice(ANSWER_STYLES).format(country=country, capital=COUNTRY_CAPITALS[named])
        turns = [_turn("user", _question(country)), _turn("assistant", answer)]
        yield {"messages": turns}


def capital_reward(response: str, reference: str) -> float:
    """What the task itself pays: 1.0 when the right capital and no other is named, else 0.0.

    >>> capital_reward("Paris, I think.", "Paris"), capital_reward("Paris Rome", "Paris")
    (1.0, 0.0)
    """
    named = {capital for capital in COUNTRY_CAPITALS.values() if capital in response}
    return float(named == {reference})


class CapitalsTask:
    """The questions as a task: any seed is a country, in turn; it pays 1.0 for the right answer."""

    name = "capitals"
    size: int | None = None

    def __init__(self) -> None:
        countries = sorted(COUNTRY_CAPITALS)
        rows = [
            {"prompt": _question(country), "reference": COUNTRY_CAPITALS[country]}
            for country in countries
        ]
        self._rows = DatasetTask(rows, name=self.name, pay=_pay_for_answer)

    def begin(self, seed: int) -> Episode:
        """The question of ``seed`` before anybody has said a word."""
        episode = self._rows.begin(seed % len(COUNTRY_CAPITALS))
        episode.seed = seed
        return episode

    async def play(self, seed: int, policy: Policy) -> Episode:
        """One answer to the question of ``seed``."""
        episode = await self._rows.play(seed % len(COUNTRY_CAPITALS), policy)
        episode.seed = seed
        return episode


async def _pay_for_answer(fields: Mapping[str, Any]) -> float:
    return capital_reward(fields["response"], fields["reference"])


class CapitalGrader(RuleGrader):
    """1 when the right capital and no other is named, else 0: the task's gold.

    Range [0, 1]. Fields: ``response`` and ``reference`` (the right capital), both text.
    """

    type_name = "capital"
    score_range = (0.0, 1.0)

    def evaluate(self, response: str, reference: str) -> GraderScore:
        """The score of one answer."""
        return self._score(capital_reward(response, reference))


def _question(country: str) -> str:
    return f"What is the capital of {country}?"


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
