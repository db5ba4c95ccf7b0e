"""IFEval over a file of prompts and a file of responses: rows, accuracies and a table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.ifeval import (
    ReadingMode,
    follows,
    loose_results,
    parse_instructions,
)
from adjudge.text import shorten_text

IfevalJoinBy = Literal["prompt", "key"]


@dataclass(frozen=True)
class IfevalShare:
    """``followed`` of ``total``; ``value`` in [0, 1], ``None`` of nothing."""

    followed: int
    total: int

    @property
    def value(self) -> float | None:
        """The share as a number."""
        return self.followed / self.total if self.total else None


@dataclass(frozen=True)
class IfevalRow:
    """One judged response: for each instruction whether it is followed, in both readings."""

    key: Any
    prompt: str
    response: str
    instruction_id_list: list[str]
    strict: list[bool]
    loose: list[bool]

    def followed(self, reading: ReadingMode) -> list[bool]:
        """The labels of one reading."""
        return self.strict if reading == "strict" else self.loose

    def output(self, reading: ReadingMode) -> dict[str, Any]:
        """The row as the reference writes it to ``eval_results_strict.jsonl`` (or ``_loose``)."""
        followed = self.followed(reading)
        return {
            "follow_all_instructions": all(followed),
            "follow_instruction_list": followed,
            "instruction_id_list": self.instruction_id_list,
            "prompt": self.prompt,
            "response": self.response,
        }


@dataclass(frozen=True)
class IfevalFailure:
    """A prompt that could not be judged: missing from every share, never counted as 0."""

    key: Any
    kind: ErrorKind
    message: str


@dataclass(frozen=True)
class IfevalScores:
    """Accuracies of one reading over the judged rows.

    ``prompt``: all instructions followed; ``instruction``: over all instructions; ``by_category``
    (the reference's tier 0, such as ``keywords``) and ``by_type`` (tier 1) in order of name.
    """

    prompt: IfevalShare
    instruction: IfevalShare
    by_category: Mapping[str, IfevalShare]
    by_type: Mapping[str, IfevalShare]


@dataclass(frozen=True)
class IfevalReport:
    """What :func:`score_ifeval` found.

    ``without_response`` has the keys of prompts that no response was joined to,
    ``without_prompt`` the 1-based numbers of responses that belong to no prompt. Neither is in
    any share.
    """

    rows: list[IfevalRow]
    failures: list[IfevalFailure]
    without_response: list[Any]
    without_prompt: list[int]

    def scores(self, reading: ReadingMode) -> IfevalScores:
        """The accuracies of one reading."""
        every = [row.followed(reading) for row in self.rows]
        types: dict[str, list[bool]] = defaultdict(list)
        categories: dict[str, list[bool]] = defaultdict(list)
        for row, followed in zip(self.rows, every, strict=True):
            for name, ok in zip(row.instruction_id_list, followed, strict=True):
                types[name].append(ok)
                categories[name.partition(":")[0]].append(ok)
        return IfevalScores(
            prompt=_share(map(all, every)),
            instruction=_share(ok for followed in every for ok in followed),
            by_category={name: _share(categories[name]) for name in sorted(categories)},
            by_type={name: _share(types[name]) for name in sorted(types)},
        )

    def table(self) -> str:
        """The accuracies as a Markdown table, and under it what is in none of them."""
        strict, loose = self.scores("strict"), self.scores("loose")
        lines = ["| | strict | loose | n |", "|---|---|---|---|"]
        lines.append(_line("prompt level", strict.prompt, loose.prompt))
        lines.append(_line("instruction level", strict.instruction, loose.instruction))
        for ours, theirs in (
            (strict.by_category, loose.by_category),
            (strict.by_type, loose.by_type),
        ):
            lines += [_line(name, share, theirs[name]) for name, share in ours.items()]
        return "\n".join([*lines, *self._left_out()])

    def _left_out(self) -> list[str]:
        lines = []
        if self.without_response:
            lines.append(f"{_named(self.without_response)} without a response")
        if self.without_prompt:
            lines.append(f"{len(self.without_prompt)} responses to no prompt of the file")
        if self.failures:
            lines.append(f"{_named([f.key for f in self.failures])} could not be judged")
        return ["", *(f"Not counted: {line}." for line in lines)] if lines else []

    def write(self, folder: Path) -> None:
        """Write ``eval_results_strict.jsonl`` and ``eval_results_loose.jsonl``, as the reference.

        The folder is made. Raises ``OSError``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        readings: tuple[ReadingMode, ...] = ("strict", "loose")
        for reading in readings:
            with (folder / f"eval_results_{reading}.jsonl").open("w", encoding="utf-8") as file:
                for row in self.rows:
                    file.write(json.dumps(row.output(reading)) + "\n")


def score_ifeval(
    inputs: Sequence[Mapping[str, Any]],
    responses: Sequence[Mapping[str, Any]],
    *,
    by: IfevalJoinBy = "prompt",
) -> IfevalReport:
    """Judge ``responses`` (``prompt``, ``response``) to IFEval's ``inputs``.

    ``inputs`` have ``key``, ``prompt``, ``instruction_id_list`` and ``kwargs``; the two are joined
    by the text of the prompt, as the reference does, or with ``by = "key"`` by ``key``. A response
    that is not text, and instructions that cannot be read, are failures of that prompt. Raises
    :class:`ConfigError` for a row without the column to join by and for two different responses
    to one prompt.
    """
    given, without_prompt = _joined(inputs, responses, by)
    rows, failures, without_response = [], [], []
    for example in inputs:
        key, place = example.get("key"), example[by]
        if place not in given:
            without_response.append(key)
            continue
        try:
            rows.append(_judged(example, given[place]))
        except GradingFailure as failure:
            failures.append(IfevalFailure(key, failure.kind, str(failure)))
    return IfevalReport(rows, failures, without_response, without_prompt)


def _joined(
    inputs: Sequence[Mapping[str, Any]], responses: Sequence[Mapping[str, Any]], by: IfevalJoinBy
) -> tuple[dict[Any, Any], list[int]]:
    """The response to each prompt of ``inputs``, and which responses belong to none."""
    wanted = {_place(row, by, f"prompt {number}") for number, row in enumerate(inputs, 1)}
    given: dict[Any, Any] = {}
    stray = []
    for number, row in enumerate(responses, 1):
        place = _place(row, by, f"response {number}")
        if place not in wanted:
            stray.append(number)
            continue
        response = row.get("response")
        if given.setdefault(place, response) != response:
            raise ConfigError(
                f"response {number}: an earlier response has the same {by}. Keep one of them."
            )
    return given, stray


def _place(row: Mapping[str, Any], by: IfevalJoinBy, where: str) -> Any:
    place = row.get(by)
    if not isinstance(place, str | int):
        raise ConfigError(
            f"{where}: {by!r} must be text or an integer to join by (found {type(place).__name__})"
        )
    return place


def _judged(example: Mapping[str, Any], response: Any) -> IfevalRow:
    if not isinstance(response, str):
        message = f"response must be text, got {type(response).__name__}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message)
    asked = parse_instructions(example.get("instruction_id_list"), example.get("kwargs"))
    prompts = [check for _, check in asked]
    strict = follows(response, prompts, "strict")
    return IfevalRow(
        key=example.get("key"),
        prompt=str(example.get("prompt", "")),
        response=response,
        instruction_id_list=[name for name, _ in asked],
        strict=strict,
        loose=loose_results(response, prompts, strict),
    )


def _share(followed: Iterable[bool]) -> IfevalShare:
    values = list(followed)
    return IfevalShare(sum(values), len(values))


def _line(name: str, strict: IfevalShare, loose: IfevalShare) -> str:
    return f"| {name} | {_percent(strict)} | {_percent(loose)} | {strict.total} |"


def _percent(share: IfevalShare) -> str:
    return "-" if share.value is None else f"{100 * share.value:.2f}"


def _named(keys: Sequence[Any], most: int = 10) -> str:
    names = ", ".join(shorten_text(key, 40) for key in keys[:most])
    more = ", …" if len(keys) > most else ""
    return f"{len(keys)} prompts ({names}{more})"
