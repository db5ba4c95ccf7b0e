"""Writes the prompts of ``rl_smollm2.toml``: simple requests with two verifiable instructions each.

    python examples/make_instruction_rows.py examples/instruction_rows.jsonl

All texts are ours. A row has ``prompt`` (chat messages), ``instruction_id_list`` and ``kwargs`` as
IFEval writes them, ``families`` (of its instructions) and ``split``; if held out, two fixed answers
to compare a policy with: ``template`` knows the families and nothing else of the prompt,
``constant`` not even these. Each row asks for one thing about the form of the answer and one about
its content. Three splits; what is held out has requests of its own:

* ``new_prompts``: new requests, with families that are trained;
* ``new_families``: new requests, with families that are never trained;
* ``train``.

The first two are held out, and come first in the file.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SYSTEM = "Answer in one short sentence."

REQUESTS = (
    ("Name a fruit and say why you like it.", ("sweet", "fresh", "juice")),
    ("Describe a rainy day.", ("clouds", "umbrella", "wet")),
    ("Say why people keep cats.", ("company", "soft", "home")),
    ("Describe the sea.", ("waves", "blue", "salt")),
    ("Say what a good friend does.", ("listen", "help", "trust")),
    ("Describe a forest.", ("trees", "birds", "green")),
    ("Say why sleep matters.", ("rest", "health", "energy")),
    ("Describe your favourite meal.", ("taste", "warm", "bread")),
    ("Say what a teacher does.", ("learn", "school", "students")),
    ("Describe a busy market.", ("fruit", "people", "noise")),
    ("Say why bees are useful.", ("honey", "flowers", "plants")),
    ("Describe a mountain.", ("high", "snow", "rock")),
    ("Say what a library is for.", ("books", "read", "quiet")),
    ("Describe a train journey.", ("window", "station", "travel")),
    ("Say why water is important.", ("drink", "life", "clean")),
    ("Describe a garden in spring.", ("flowers", "sun", "grass")),
    ("Say why people listen to music.", ("mood", "dance", "song")),
    ("Describe the night sky.", ("stars", "moon", "dark")),
    ("Say what makes a good breakfast.", ("eggs", "fruit", "energy")),
    ("Describe a dog at play.", ("ball", "run", "happy")),
    ("Say why exercise helps.", ("strong", "heart", "health")),
    ("Describe a small village.", ("houses", "quiet", "people")),
    ("Say what a doctor does.", ("patients", "health", "care")),
    ("Describe a winter morning.", ("cold", "snow", "frost")),
    ("Say why we should plant trees.", ("air", "shade", "nature")),
    ("Describe a river.", ("water", "flow", "fish")),
    ("Say what a baker does.", ("bread", "oven", "early")),
    ("Describe a city at night.", ("lights", "streets", "cars")),
    ("Say why reading is good.", ("books", "learn", "mind")),
    ("Describe a birthday party.", ("cake", "friends", "gifts")),
    ("Say how to make tea.", ("water", "cup", "hot")),
    ("Describe a desert.", ("sand", "dry", "sun")),
    ("Say why people travel.", ("places", "culture", "new")),
    ("Describe an old house.", ("door", "wood", "dust")),
    ("Say what a farmer does.", ("field", "crops", "animals")),
    ("Describe a summer evening.", ("warm", "light", "breeze")),
    ("Say why honesty matters.", ("trust", "truth", "friends")),
    ("Describe a kitchen.", ("stove", "table", "food")),
    ("Say how to stay healthy.", ("sleep", "food", "walk")),
    ("Describe a football match.", ("team", "goal", "fans")),
    ("Say why people use maps.", ("way", "place", "travel")),
    ("Describe a storm.", ("wind", "rain", "thunder")),
    ("Say what a pilot does.", ("plane", "fly", "safe")),
    ("Describe a lake.", ("water", "calm", "boats")),
    ("Say why friends are important.", ("support", "fun", "share")),
    ("Describe a bakery.", ("bread", "smell", "warm")),
    ("Say how to plant a seed.", ("soil", "water", "sun")),
    ("Describe an elephant.", ("large", "trunk", "grey")),
)
"""Requests, each with words that fit an answer."""

PHRASES = (
    "Is there anything else?", "That is all.", "I hope this helps.", "Thank you for asking.",
    "Have a nice day.", "Let me know.", "The end.", "What do you think?",
)  # fmt: skip


class Instruction(NamedTuple):
    """One instruction as IFEval writes it, as the prompt says it, and what an answer to all is."""

    id: str
    kwargs: dict[str, Any]
    text: str


MakeInstruction = Callable[[random.Random, tuple[str, ...]], Instruction]


def _plain(name: str, *texts: str) -> MakeInstruction:
    return lambda rng, _: Instruction(name, {}, rng.choice(texts))


def _ending(rng: random.Random, _: tuple[str, ...]) -> Instruction:
    phrase = rng.choice(PHRASES)
    text = f"End your answer with this exact phrase: {phrase}"
    return Instruction("startend:end_checker", {"end_phrase": phrase}, text)


def _keywords(count: int) -> MakeInstruction:
    def make(rng: random.Random, words: tuple[str, ...]) -> Instruction:
        chosen = rng.sample(words, count)
        listed = " and ".join(f'"{word}"' for word in chosen)
        text = f"Use the word{'s' * (count > 1)} {listed}."
        return Instruction("keywords:existence", {"keywords": chosen}, text)

    return make


def _repeated_word(rng: random.Random, words: tuple[str, ...]) -> Instruction:
    word = rng.choice(words)
    return Instruction(
        "keywords:frequency",
        {"keyword": word, "frequency": 2, "relation": "at least"},
        f'Use the word "{word}" at least twice.',
    )


def _forbidden(_: random.Random, words: tuple[str, ...]) -> Instruction:
    listed = ", ".join(f'"{word}"' for word in words)
    return Instruction(
        "keywords:forbidden_words",
        {"forbidden_words": ["the", *words]},
        f'Do not use the words "the", {listed}.',
    )


def _letter(rng: random.Random, _: tuple[str, ...]) -> Instruction:
    letter = rng.choice("bcdfgmpw")
    return Instruction(
        "keywords:letter_frequency",
        {"letter": letter, "let_frequency": 2, "let_relation": "less than"},
        f'Use the letter "{letter}" less than twice.',
    )


def _number(name: str, key: str, numbers: tuple[int, ...], text: str) -> MakeInstruction:
    def make(rng: random.Random, _: tuple[str, ...]) -> Instruction:
        number = rng.choice(numbers)
        return Instruction(name, {key: number}, text.format(number))

    return make


def _count(
    name: str, key: str, numbers: tuple[int, ...], relation: str, text: str
) -> MakeInstruction:
    def make(rng: random.Random, _: tuple[str, ...]) -> Instruction:
        number = rng.choice(numbers)
        return Instruction(name, {key: number, "relation": relation}, text.format(number))

    return make


FORMS: dict[str, MakeInstruction] = {
    "no_comma": _plain("punctuation:no_comma", "Do not use any commas.", "Use no comma."),
    "lowercase": _plain(
        "change_case:english_lowercase", "Write in lowercase letters only, without capitals."
    ),
    "capitals": _plain("change_case:english_capital", "Write in CAPITAL LETTERS only."),
    "quotation": _plain("startend:quotation", "Put your whole answer in double quotation marks."),
    "title": _plain(
        "detectable_format:title",
        "Give your answer a title in double angular brackets, such as <<title>>.",
    ),
    "json": _plain("detectable_format:json_format", "Give your whole answer as JSON."),
    "two_responses": _plain(
        "combination:two_responses", "Give two different answers, with ****** between them."
    ),
    "bullets": _number(
        "detectable_format:number_bullet_lists",
        "num_bullets",
        (2, 3),
        "Write exactly {} bullet points, each beginning with *.",
    ),
    "highlight": _number(
        "detectable_format:number_highlighted_sections",
        "num_highlights",
        (1, 2),
        "Highlight at least {} words with asterisks, such as *word*.",
    ),
    "placeholders": _number(
        "detectable_content:number_placeholders",
        "num_placeholders",
        (1, 2),
        "Put at least {} placeholders in square brackets, such as [name].",
    ),
    "postscript": lambda *_: Instruction(
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        "Add a postscript that begins with P.S.",
    ),
    "few_words": _count(
        "length_constraints:number_words",
        "num_words",
        (10, 12, 15),
        "less than",
        "Use less than {} words.",
    ),
    "many_words": _count(
        "length_constraints:number_words",
        "num_words",
        (30, 35, 40),
        "at least",
        "Use at least {} words.",
    ),
    "sentences": _count(
        "length_constraints:number_sentences",
        "num_sentences",
        (3, 4),
        "at least",
        "Write at least {} sentences.",
    ),
    "one_sentence": _count(
        "length_constraints:number_sentences",
        "num_sentences",
        (2,),
        "less than",
        "Write less than {} sentences.",
    ),
    "capital_words": lambda *_: Instruction(
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "at least"},
        "Write at least one word in CAPITAL LETTERS.",
    ),
    "paragraphs": _number(
        "length_constraints:number_paragraphs",
        "num_paragraphs",
        (2,),
        "Write {} paragraphs, with *** between them.",
    ),
}
CONTENTS: dict[str, MakeInstruction] = {
    "ending": _ending,
    "keyword": _keywords(1),
    "keywords": _keywords(2),
    "repeated_word": _repeated_word,
    "forbidden": _forbidden,
    "letter": _letter,
}

TRAINED = (("title", "no_comma", "few_words", "bullets"), ("ending", "keyword"))
HELD_OUT = (("highlight", "placeholders"), ("letter", "repeated_word"))
"""Families that are trained, and that never are: forms, contents.

Chosen by what SmolLM2-135M-Instruct can do before training: with one instruction and at temperature
1 it follows each of these 10 % to 80 % of the time. A family that is followed never, or always,
gives the answers of a group equal rewards, and nothing is learned from it.
"""

TRAIN_REQUESTS = 32
COUNTS = {"new_prompts": 96, "new_families": 48, "train": 240}


def write_templates(words: list[str], phrase: str) -> dict[str, str]:
    """By family, an answer that knows nothing else of a prompt; ``{0}`` is the part on the form.

    ``words`` and ``phrase`` are what the trained prompts ask for most often.
    """
    line = " ".join(words)
    return {
        "title": f"<<Answer>> {line}",
        "no_comma": line,
        "few_words": " ".join(words[:4]),
        "bullets": f"* {line}\n* Yes",
        "highlight": f"*Yes* *no* {line}",
        "placeholders": f"[yes] [no] {line}",
        "ending": "{0}\n" + phrase,
        "keyword": "{0}",
        "letter": "{0}",
        "repeated_word": "{0} {0}",
    }


def make_rows(seed: int = 0) -> Iterator[dict[str, Any]]:
    """All rows; the same for the same seed. Held-out prompts of both kinds are mixed."""
    rng = random.Random(seed)
    splits = {split: list(_make_split(split, count, rng)) for split, count in COUNTS.items()}
    asked = [one for row in splits["train"] for one in row["kwargs"]]
    words = Counter(word for one in asked for word in one.get("keywords", []))
    phrases = Counter(one["end_phrase"] for one in asked if "end_phrase" in one)
    often, phrase = [word for word, _ in words.most_common(6)], phrases.most_common(1)[0][0]
    templates = write_templates(often, phrase)
    lines = [" ".join(often[:3]), " ".join(often[3:])]
    # The best of some ten layouts that were tried on the training prompts.
    constant = "<<Answer>>\n* {}\n* {}\n{}".format(*lines, phrase)
    held_out = splits["new_prompts"] + splits["new_families"]
    rng.shuffle(held_out)
    for row in held_out:
        form, content = row["families"]
        template = templates[content].format(templates[form])
        yield row | {"constant": constant, "template": template}
    yield from splits["train"]


def _make_split(split: str, count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    forms, contents = HELD_OUT if split == "new_families" else TRAINED
    requests = REQUESTS[:TRAIN_REQUESTS] if split == "train" else REQUESTS[TRAIN_REQUESTS:]
    for n in range(count):
        form, content = forms[n % len(forms)], contents[(n // len(forms)) % len(contents)]
        request, words = rng.choice(requests)
        parts = [FORMS[form](rng, words), CONTENTS[content](rng, words)]
        yield {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": " ".join([request, *(one.text for one in parts)])},
            ],
            "instruction_id_list": [one.id for one in parts],
            "kwargs": [one.kwargs for one in parts],
            "families": [form, content],
            "split": split,
        }


if __name__ == "__main__":
    lines = [json.dumps(row) for row in make_rows()]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
