"""Rollouts, and what a sample of each must be, whatever door it comes through."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import msgspec
import pytest

from adjudge.intake.rollouts import compute_prompt_key
from adjudge.messages import content_text
from adjudge.rewards import RewardSpec
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.text import final_text
from adjudge.trainers.scoring import Scorer
from adjudge.types import Sample

Talk = list[dict[str, Any]]
LIMIT = 160
"""Tokens that a response may have; one that was cut has as many."""


@dataclass
class Rollout:
    """What the policy ``said`` after what is ``before`` it, and what a sample of it must be.

    ``written``: its only turn as its tokens say it, without the token ``end``. ``late_prompt``: the
    prompt where only the conversation is known. ``opens``: the chat template opens the thinking.
    ``special``: the thinking tags are special tokens.
    """

    stratum: str
    before: Talk
    said: Talk
    prompt: str | None
    response: str
    ending: str = "text"
    written: str | None = None
    late_prompt: str | None = None
    columns: dict[str, Any] = field(default_factory=lambda: {"answer": "7"})
    reference: Any = "7"
    opens: bool = False
    special: bool = False
    is_rendered: bool = False
    end: str = "<|im_end|>"
    finish: str = "stop"

    def __post_init__(self) -> None:
        self.talk = [*self.before, *self.said]
        self.text = f"{self.written}{self.end}"
        self.rendered = render(self.before, self.opens)
        self.shown: Any = self.rendered if self.is_rendered else self.before
        self.posted: Any = self.rendered if self.opens else self.shown
        # What doors may ask for: one turn of words; thinking that messages show; turns that no
        # tool said; an end that the tokens show.
        self.is_text = self.written is not None
        self.is_plain = not self.opens and not self.special
        self.has_no_tool = all(turn["role"] != "tool" for turn in self.said)
        self.shows_end = bool(self.end) or self.finish == "length"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def policy(content: Any, *calls: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": content}
    return {**turn, "tool_calls": list(calls)} if calls else turn


def call(name: str, argument: str, number: int = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": msgspec.json.encode({"of": argument}).decode()}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def dump_message(turn: dict[str, Any]) -> dict[str, Any]:
    """A message as LangChain writes it."""
    kind = {"user": "human", "assistant": "ai"}.get(turn["role"], turn["role"])
    return {"type": kind, "data": {key: one or "" for key, one in turn.items() if key != "role"}}


def render(messages: Talk, opens: bool = False) -> str:
    """A prompt as ChatML, at whose end the template may open the thinking."""
    said = [(one["role"], content_text(one["content"])) for one in messages]
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
    return f"{turns}<|im_start|>assistant\n" + ("<think>\n" if opens else "")


# --- the table ------------------------------------------------------------------------------------


def _once(stratum: str, before: Talk, response: str, **more: Any) -> Rollout:
    """One turn of words; ``written`` is the response where nothing else is said."""
    asked = [content_text(one["content"]) for one in before if one["role"] == "user"]
    last = asked[-1] if asked else None
    more = {"written": response, "late_prompt": last, **more}
    return Rollout(stratum, before, [policy(response)], last, response, **more)


def _many(
    stratum: str, before: Talk, said: Talk, response: str, ending: str = "text", late: str = ""
) -> Rollout:
    asked = before[-1]["content"]
    if any("tool_calls" in turn for turn in said):  # an agent's, whose first turn begins it
        late = ""
    return Rollout(stratum, before, said, asked, response, ending, late_prompt=late or asked)


_TOPICS = [
    *(
        ("Which river flows through Cairo?", "The Nile"),
        ("Which river flows through Cairo?", "Nile."),
    ),
    *(("What is 6 times 7?", "42"), ("Wer schrieb den Faust?", "Goethe")),
]
"""The first two are answers to the same question."""
_SYSTEM = {"role": "system", "content": "Answer in few words."}
_SHOTS = [user("Is ice cold?"), policy("Yes."), user("Is tea dry?"), policy("No.")]
_LANDS = [("Italy", "Rome"), ("Italy", "Milan"), ("Spain", "Madrid"), ("Peru", "Lima")]
_GUESS = "Perhaps \\boxed{7}, or is that too small? " * 9
_TAGGED = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
_MENTION = f"<think>I will not write {_TAGGED}.</think>7"
_PICTURE = "data:image/png;base64,iVBORw0KGgo{}="
_SEVERAL: list[tuple[dict[str, Any], Any]] = [
    *[({"answer": "4", "solution": "2 + 2 = 4"}, "4")] * 2,
    ({"answer": None, "solution": "y = 3"}, "y = 3"),
    ({"ground_truth": "Oslo", "answer": math.nan, "solution": "the capital"}, "Oslo"),
]
_KINDS: list[tuple[Any, Any]] = [
    *[(["four", "4"], ["four", "4"])] * 2, ({"x": 1, "y": [2]}, {"x": 1, "y": [2]}),
    *((math.nan, None), ("", None), ([], None)),
]  # fmt: skip


def _make_table() -> Iterator[Rollout]:
    for place, (question, answer) in enumerate(_TOPICS):
        asked = [user(question)]
        thought = f"So it is {answer.lower()}, I think.</think>{answer}"
        yield _once("prefilled think", asked, f"<think>\n{thought}", written=thought, opens=True)
        yield _once("special think", asked, f"<think>{thought}", special=True)
        opens = place != 2  # there the policy opens the thinking
        guess = _GUESS[:LIMIT] if opens else f"<think>{_GUESS}"[:LIMIT]
        shown, cut = "<think>\n" * opens + guess, {"end": "", "finish": "length"}
        yield _once("cut thinking", asked, shown, written=guess, opens=opens, **cut)
        said = [policy("Let me look it up.", call("search", question))]
        if place > 1:
            said += [result("Try another word."), policy(None, call("read", answer, 1))]
        yield _many("tool call last", [_SYSTEM, *asked], said, "", "ended_in_tool_call")
        ends = [policy("I look.", call("look", "x")), result("Nothing here."), policy("")]
        if place < 2:
            yield _once("empty last turn", asked, "", ending="empty")
        elif place == 2:
            yield _many("empty last turn", asked, ends, "", "empty")
        else:
            ends[:2] = [policy("One moment."), user("Still there?")]
            yield _many("empty last turn", asked, ends, "", "empty", "Still there?")
        yield _once("few-shot", [*_SHOTS[: 4 if place < 3 else 2], *asked], answer)
        said = [policy(answer), user("Are you sure?"), policy(f"Yes: {answer}")]
        yield _many("simulated user", asked, said, f"Yes: {answer}", late="Are you sure?")
        land, town = _LANDS[place]
        yield _once(
            "shared opening", [user("France?"), policy("Paris."), user(f"And {land}?")], town
        )
        said = [policy("I book."), {"role": "tool", "content": "ok"}, policy(answer)]
        written = msgspec.json.encode(said if place % 2 else said[-1]).decode()
        yield _once("JSON answer", asked, written)
        alone = {"role": "system", "content": f"You greet sailors. {question}"}
        yield _once("system only", [alone], f"Ahoy, {answer}!")
        picture = {"type": "image_url", "image_url": {"url": _PICTURE.format("AABC"[place])}}
        seen = [{"type": "text", "text": "What is it?"}, picture]
        yield _once("images", [user(seen)], f"A {answer.lower()}.")
        columns, reference = _SEVERAL[place]
        yield _once("several columns", asked, answer, columns=columns, reference=reference)
        end = ["<|im_end|>", "<end_of_turn>", "", ""][place]
        more = cut if place == 3 else {"end": end}
        yield _once("end token", asked, _GUESS[:LIMIT] if place == 3 else answer, **more)
        told = [_SYSTEM, *asked] if place < 3 else [*_SHOTS[:2], *asked]
        yield _once("rendered ChatML", told, answer, is_rendered=True)
    asked = [user("Which number is it?")]
    for text in (f"<think>So.</think>\n{_TAGGED}", f"{_TAGGED}\nSo 7", _MENTION):
        yield _once("tags of calls", asked, text)
    looked = [policy("I look.", call("look", "it")), result("7"), policy(_MENTION)]
    yield _many("tags of calls", asked, looked, _MENTION)
    for place, (value, reference) in enumerate(_KINDS):
        asked = [user(f"Which number is {'ab' * (place // 2)}four?")]
        yield _once("reference", asked, "4", columns={"answer": value}, reference=reference)


TABLE: dict[str, list[Rollout]] = {}
for _one in _make_table():
    TABLE.setdefault(_one.stratum, []).append(_one)

_NO_IDS = {
    "prefilled think": "nothing here says what the chat template opened",
    "special think": "nothing here has the tokens that decoding left out",
}
_WORDS = {"tool call last": "a text has no calls", "simulated user": "a text is the policy's alone"}
_TEXT = {**_WORDS, "images": "a text has none"}
_ONE = {"several columns": "its label is the one column"}
_CHAT = {"rendered ChatML": "its prompts are messages"}
_BLIND = {"images": "the policy that stands in sees none"}
_BARE = "prompts are decoded without the special tokens that say whose turn each is"
_UNREADABLE = ("few-shot", "shared opening", "system only", "rendered ChatML")

CELLS_THAT_CANNOT_BE: dict[str, dict[str, str]] = {
    "rows with a prompt": _NO_IDS,
    "rows with a rendered prompt": _TEXT,
    "rows with opening_turns": _NO_IDS | _CHAT,
    "rows with messages": _NO_IDS | _CHAT,
    "a file": _NO_IDS | _CHAT,
    "make_reward": _NO_IDS,
    "TRL, texts": _TEXT,
    "TRL, messages of rollout_func": _NO_IDS,
    "TRL, tool_mask": {"tool call last": "a mask has the text of a call, and no call"},
    "GRPOTrainer, chats": _WORDS | _BLIND,
    "GRPOTrainer, texts": _TEXT,
    "GRPOTrainer, rollout_func": _NO_IDS | _BLIND,
    "verl, chats": _CHAT,
    "verl, tokens": _TEXT,
    "verifiers": _NO_IDS | _CHAT,
    "the service": _NO_IDS,
    "the service, LangChain's messages": _NO_IDS,
    "the service, /slime": _ONE | _WORDS,
    "the service, /get_reward": _ONE | _TEXT,
    "slime": _TEXT,
    "OpenRLHF": _ONE | _TEXT,
    "AReaL": _WORDS,
    "ms-swift": _NO_IDS | _WORDS | _CHAT,
    "SkyRL": _NO_IDS | _WORDS | _CHAT,
    "rLLM": _NO_IDS | _CHAT,
    "ROLL": _TEXT | dict.fromkeys(("special think", *_UNREADABLE), _BARE),
    "tinker-cookbook": _NO_IDS,
}
"""For each door the strata that cannot come through it, and why."""


# --- tokens ---------------------------------------------------------------------------------------

SPECIAL = ("<pad>", "<eos>", "<|im_start|>", "<|im_end|>", "<end_of_turn>")
THINK = ("<think>", "</think>")


class Characters:
    """A tokenizer whose tokens are characters and special tokens."""

    chat_template, pad_token_id, eos_token_id = "ChatML", 0, 1

    def __init__(self, special: bool = False, opens: bool = False) -> None:
        self.all_special_tokens, self._opens = [*SPECIAL, *(THINK if special else ())], opens
        names = map(re.escape, self.all_special_tokens)
        self._pattern = re.compile("|".join([*names, "."]), re.DOTALL)

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.all_special_tokens.index(token)

    def encode(self, text: str) -> list[int]:
        found, names = self._pattern.findall(text), self.all_special_tokens
        return [names.index(one) if one in names else 100 + ord(one) for one in found]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        names = [""] * 99 if skip_special_tokens else self.all_special_tokens
        return "".join(chr(one - 100) if one >= 100 else names[one] for one in ids)

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return render(messages, self._opens)


_TEMPLATE = (
    "{{% for m in messages %}}<|im_start|>{{{{ m['role'] }}}}\n{{{{ m['content'] }}}}<|im_end|>\n"
    "{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant\n{}{{% endif %}}"
)


def make_tokenizer(special: bool = False, opens: bool = False) -> Any:
    """A fast tokenizer of transformers whose tokens are bytes and special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIAL, *(THINK if special else ())]
    tokens = [*names, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={one: n for n, one in enumerate(tokens)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left",
        additional_special_tokens=names[2:], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = _TEMPLATE.format("<think>\n" if opens else "")
    return fast


def encode_verl(one: Rollout, tokenizer: Any) -> tuple[list[int], list[int], list[int]]:
    """The tokens of a prompt and of a response, and the mask of the policy's own."""
    ids, mask = list[int](), list[int]()
    turns = [one.text] if one.is_text else map(_write_turn, one.said)
    for turn, text in zip(one.said, turns, strict=True):
        found = tokenizer.encode(text)
        ids += found
        mask += [int(turn["role"] == "assistant")] * len(found)
    return tokenizer.encode(one.rendered), ids, mask


def _write_turn(turn: dict[str, Any]) -> str:
    """A turn as verl's tool loop and Qwen's template write it."""
    text = turn["content"] or ""
    if turn["role"] != "assistant":
        text = f"<tool_response>\n{text}\n</tool_response>" if turn["role"] == "tool" else text
        return f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    for made in turn.get("tool_calls", ()):
        name, given = made["function"].values()
        text += f'\n<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>'
    return f"{text}<|im_end|>"


def list_verl_columns(one: Rollout, chat: bool) -> dict[str, Any]:
    """A row's columns beside its tensors; ``chat``: with ``data.return_raw_chat``."""
    truth = {"ground_truth": one.columns["answer"]} if one.columns.keys() == {"answer"} else {}
    found = {"data_source": "x", "uid": str(one.before), "__num_turns__": 1 + len(one.said)}
    tools = {"tools_kwargs": {"search": {"create_kwargs": {"pages": 1}}}}
    found |= {
        "reward_model": {"style": "rule", **truth},
        "extra_info": tools if "tool" in one.ending else {} if truth else one.columns,
        "messages": [*one.before, policy("The dataset says \\boxed{0}.")],
    }
    return found | {"raw_prompt": one.before} if chat else found


# --- doors ----------------------------------------------------------------------------------------

SPEC_TEXT = '[[graders]]\nname = "look"\ntype = "tests.doors:look"\nscore_range = [0.0, 1.0]\n'
SPEC = RewardSpec.from_dict(
    {"graders": [{"name": "look", "type": "tests.doors:look", "score_range": [0, 1]}]}
)
ANSWER = RewardSpec.from_dict({"graders": [{"name": "right", "type": "answer"}]})
_seen: list[dict[str, Any]] = []


def look(**fields: Any) -> float:
    """A user's grader that keeps the fields that it was given."""
    _seen.append(fields)
    return 1.0


@contextmanager
def looking() -> Iterator[list[Sample]]:
    """The samples that are graded meanwhile, whose fields the grader was given."""
    found: list[Sample] = []
    grade = BatchGrader.grade

    async def keep(self: Any, samples: Any, *given: Any, **more: Any) -> Any:
        found.extend(samples)
        return await grade(self, samples, *given, **more)

    _seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchGrader, "grade", keep)
        yield found
    assert all(sample.is_lost or _shown(sample) in _seen for sample in found)


def _shown(sample: Sample) -> dict[str, Any]:
    """The fields that a grader is given: the gap of a table, NaN, is null."""
    return {name: None if value != value else value for name, value in sample.fields().items()}


Give = Callable[[list[Rollout]], list[Sample]]


@dataclass(frozen=True)
class Door:
    """``give`` puts rollouts through, of those that have all attributes that ``only`` names.

    ``finish``: whether it says how a turn ended; ``knows_opening``: what is before the policy.
    """

    name: str
    give: Give
    only: str = ""
    finish: bool = False
    knows_opening: bool = True

    def find_rollouts(self, stratum: str) -> list[Rollout]:
        """Those that can come through; none of a stratum that cannot be there."""
        listed = stratum in CELLS_THAT_CANNOT_BE.get(self.name, {})
        names = self.only.split()
        found = [one for one in TABLE[stratum] if all(getattr(one, name) for name in names)]
        return [] if listed else found


def list_cells(doors: Sequence[Door]) -> list[Any]:
    """Each door with each stratum that can come through it."""
    return [
        pytest.param(door, name, id=f"{door.name}: {name}")
        for door in doors
        for name in TABLE
        if door.find_rollouts(name)
    ]


def columns_of(rollouts: list[Rollout]) -> dict[str, list[Any]]:
    """The dataset's columns, null where a row has none, as a table has them."""
    names = dict.fromkeys(name for one in rollouts for name in one.columns)
    return {name: [one.columns.get(name) for one in rollouts] for name in names}


def by_template(give: Give) -> Give:
    """One call for the rollouts whose template opens the thinking, and one for the others."""

    def both(rollouts: list[Rollout]) -> list[Sample]:
        parts = [[one for one in rollouts if one.opens is opens] for opens in (False, True)]
        samples = [iter(give(part) if part else []) for part in parts]
        return [next(samples[one.opens]) for one in rollouts]

    return both


def check_cells(doors: Sequence[Door]) -> None:
    """Every stratum is tested in every door, or listed with a reason."""
    for door in doors:
        listed = CELLS_THAT_CANNOT_BE.get(door.name, {}).keys()
        assert {name for name in TABLE if not door.find_rollouts(name)} == listed, door.name


def check_cell(door: Door, stratum: str) -> None:
    """Each sample is what its rollout says, and its group is that of what is before the policy."""
    rollouts = door.find_rollouts(stratum)
    samples = door.give(rollouts)
    for rollout, sample in zip(rollouts, samples, strict=True):
        assert not sample.is_lost, sample.problem
        prompt = rollout.prompt if door.knows_opening else rollout.late_prompt
        assert (sample.prompt, sample.response) == (prompt, rollout.response)
        assert (sample.ending, sample.reference) == (rollout.ending, rollout.reference)
        said = [(one["role"], content_text(one.get("content"))) for one in sample.messages or ()]
        assert said == [(one["role"], content_text(one["content"])) for one in rollout.talk]
        if door.finish:
            assert sample.fields()["finish_reason"] == rollout.finish
    if stratum == "cut thinking":
        assert all(final_text(sample.response or "") is None for sample in samples)
        assert Scorer(ANSWER).score(samples, ["0"] * len(samples)).rewards == [0.0] * len(samples)
    openings = [one.before if door.knows_opening else _first(one.before) for one in rollouts]
    keys = list(map(compute_prompt_key, samples))
    for one, other in combinations(range(len(keys)), 2):
        assert (openings[one] == openings[other]) == (keys[one] == keys[other])


def _first(turns: Talk) -> Talk:
    """What certainly is before the policy where the opening is not known."""
    roles = [one["role"] for one in turns]
    return turns[: roles.index("assistant")] if "assistant" in roles else turns
