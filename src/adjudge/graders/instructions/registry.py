"""The 25 instruction types of IFEval by id: what they ask for and which check says so.

After Zhou et al. (2023), "Instruction-Following Evaluation for Large Language Models", and the
behaviour of its published checkers. Different on purpose: a keyword, marker or section splitter
is plain text (the reference compiles it as a pattern; for the words of the published prompts both
are the same), and what the reference draws at random is refused, but for ``letter_frequency``:
there any character is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.instructions import arguments, languages, layout, words
from adjudge.graders.instructions.arguments import Reader
from adjudge.graders.rules.text import shown

__all__ = ["INSTRUCTIONS", "Check", "Instruction", "checks", "own_arguments"]

Check = Callable[[str], bool]
"""Whether a response follows one instruction."""

_MAX_INSTRUCTIONS = 1000


@dataclass(frozen=True)
class Instruction:
    """One type: its check, and by the dataset's name of each argument the check's and a reader."""

    check: Callable[..., bool]
    arguments: Mapping[str, tuple[str, Reader]] = field(default_factory=dict)


def _relation(name: str = "relation") -> dict[str, tuple[str, Reader]]:
    return {name: ("relation", arguments.relation)}


INSTRUCTIONS: Mapping[str, Instruction] = {
    "keywords:existence": Instruction(
        words.keyword_existence, {"keywords": ("keywords", arguments.word_list)}
    ),
    "keywords:frequency": Instruction(
        words.keyword_frequency,
        {
            "keyword": ("keyword", arguments.word),
            "frequency": ("frequency", arguments.count),
            **_relation(),
        },
    ),
    "keywords:forbidden_words": Instruction(
        words.forbidden_words, {"forbidden_words": ("words", arguments.word_list)}
    ),
    "keywords:letter_frequency": Instruction(
        words.letter_frequency,
        {
            "letter": ("letter", arguments.letter),
            "let_frequency": ("frequency", arguments.count),
            **_relation("let_relation"),
        },
    ),
    "language:response_language": Instruction(
        languages.response_language, {"language": ("language", arguments.language)}
    ),
    "length_constraints:number_sentences": Instruction(
        words.number_sentences, {"num_sentences": ("number", arguments.count), **_relation()}
    ),
    "length_constraints:number_paragraphs": Instruction(
        layout.number_paragraphs, {"num_paragraphs": ("number", arguments.count)}
    ),
    "length_constraints:number_words": Instruction(
        words.number_words, {"num_words": ("number", arguments.count), **_relation()}
    ),
    "length_constraints:nth_paragraph_first_word": Instruction(
        layout.nth_paragraph_first_word,
        {
            "num_paragraphs": ("num_paragraphs", arguments.count),
            "nth_paragraph": ("nth_paragraph", arguments.position),
            "first_word": ("first_word", arguments.lowered),
        },
    ),
    "detectable_content:number_placeholders": Instruction(
        layout.placeholders, {"num_placeholders": ("number", arguments.count)}
    ),
    "detectable_content:postscript": Instruction(
        layout.postscript, {"postscript_marker": ("marker", arguments.word)}
    ),
    "detectable_format:number_bullet_lists": Instruction(
        layout.bullet_lists, {"num_bullets": ("number", arguments.count)}
    ),
    "detectable_format:constrained_response": Instruction(layout.constrained_response),
    "detectable_format:number_highlighted_sections": Instruction(
        layout.highlighted_sections, {"num_highlights": ("number", arguments.count)}
    ),
    "detectable_format:multiple_sections": Instruction(
        layout.sections,
        {
            "section_spliter": ("splitter", arguments.word),
            "num_sections": ("number", arguments.count),
        },
    ),
    "detectable_format:json_format": Instruction(layout.json_format),
    "detectable_format:title": Instruction(layout.title),
    "combination:two_responses": Instruction(layout.two_responses),
    "combination:repeat_prompt": Instruction(
        layout.repeat_prompt, {"prompt_to_repeat": ("prompt", arguments.text)}
    ),
    "startend:end_checker": Instruction(
        layout.end_phrase, {"end_phrase": ("phrase", arguments.text)}
    ),
    "startend:quotation": Instruction(layout.quotation),
    "change_case:capital_word_frequency": Instruction(
        words.capital_word_frequency,
        {
            "capital_frequency": ("frequency", arguments.whole),
            **_relation("capital_relation"),
        },
    ),
    "change_case:english_capital": Instruction(languages.english_capital),
    "change_case:english_lowercase": Instruction(languages.english_lowercase),
    "punctuation:no_comma": Instruction(layout.no_comma),
}
"""The types that the published prompts use, by id (``category:type``)."""


def checks(instruction_id_list: Any, kwargs: Any) -> list[tuple[str, Check]]:
    """A sample's instructions, each id with its check, ready for any response.

    ``kwargs`` has one mapping for each id. Arguments of ``None`` or NaN and those that the type
    does not take are left out, since tables give every row all columns. What is missing or cannot
    be used is ``GradingFailure(invalid_input)`` naming the instruction and the key.

    >>> [(name, check)] = checks(["punctuation:no_comma"], [{}])
    >>> check("Yes and no.")
    True
    """
    ids = _list_of("instruction_id_list", instruction_id_list)
    given = _list_of("kwargs", kwargs)
    if len(ids) != len(given):
        raise _refused(f"kwargs has {len(given)} entries for {len(ids)} instructions")
    return [(name, _check(name, values)) for name, values in zip(ids, given, strict=True)]


def own_arguments(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row's arguments those that the type ``name`` takes."""
    return {key: values.get(key) for key in INSTRUCTIONS[name].arguments}


def _check(name: Any, values: Any) -> Check:
    instruction = INSTRUCTIONS.get(name) if isinstance(name, str) else None
    if instruction is None:
        raise _refused(f"unknown instruction {shown(name)!r} (known: {', '.join(INSTRUCTIONS)})")
    if not isinstance(values, Mapping):
        raise _refused(f"{name}: kwargs must be an object, got {type(values).__name__}")
    taken = {
        target: _read(name, key, reader, values.get(key))
        for key, (target, reader) in instruction.arguments.items()
    }
    if taken.get("nth_paragraph", 0) > taken.get("num_paragraphs", 0):
        raise _refused(f"{name}: nth_paragraph must be at most num_paragraphs")
    return partial(instruction.check, **taken) if taken else instruction.check


def _read(name: str, key: str, reader: Reader, value: Any) -> Any:
    if not arguments.is_given(value):
        raise _refused(f"{name}: {key} is missing")
    try:
        return reader(value)
    except ValueError as error:
        raise _refused(f"{name}: {key} must be {error}, got {type(value).__name__}") from None


def _list_of(column: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) > _MAX_INSTRUCTIONS:
        raise _refused(f"{column} must be a list, got {type(value).__name__}")
    return value


def _refused(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)
