"""Responses to prompts: files of them read and joined, and those of one model asked for and kept.

A model or judge may stop in the middle of a line, so a broken line is reported and reading goes on.
The log of one model's replies has one line a reply, so that a killed run goes on with the replies
it has. A failure is kept beside the replies, and asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.datasets.files import check_files, is_parquet, parse_row, read_rows
from adjudge.datasets.sources import decode_line
from adjudge.engine.loop import run_all
from adjudge.errors import (
    PASSING_KINDS,
    ConfigError,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
    RolloutError,
)
from adjudge.files import JsonlLog
from adjudge.judges.base import ChatModel, Reply
from adjudge.rollouts.columns import find_response_list
from adjudge.text import replace_surrogates

JoinBy = Literal["prompt", "key"]
"""What responses are joined to prompts by."""

JoinKey = str | int
"""What prompts and responses are joined by: the prompt's text, or its key."""


class FileProblem(msgspec.Struct, frozen=True):
    """A line of a file that is not used, or was mended, and why."""

    file: str
    line: int
    reason: str


def read_tolerant_rows(
    path: Path, problems: list[FileProblem]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The good rows of a file with their lines; what is wrong with the others goes to ``problems``.

    A crash leaves a line cut off, NUL bytes in its place, or NUL bytes before a whole line: such a
    line is passed over, or read without them, and reading goes on. Raises :class:`ConfigError` for
    a file that is not there or is of no known kind.
    """
    check_files([path])
    if is_parquet(path):
        for number, (_, columns) in enumerate(read_rows([path]), 1):
            if isinstance(columns, dict):
                yield number, columns
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row, reason = _parse_line(line, f"{path}:{number}")
            if reason:
                problems.append(FileProblem(str(path), number, reason))
            if row is not None:
                yield number, row


def _parse_line(line: bytes, where: str) -> tuple[dict[str, Any] | None, str]:
    """A line's row, where it has one, and what is wrong with it."""
    nuls = line.count(b"\0")
    text = decode_line(line.rstrip(b"\0 \t\r\n"))
    if not text:
        return None, f"{nuls:,} NUL bytes and nothing else" if nuls else ""
    _, row = parse_row(text, where)
    if isinstance(row, RolloutError):
        reason = str(row).removeprefix(f"{where}: ")
        torn = "" if line.endswith(b"\n") else "cut off (no line end): "
        return None, f"{torn}{reason}" + (f"; {nuls:,} NUL bytes" if nuls else "")
    return row, f"read without its {nuls:,} NUL bytes" if nuls else ""


MOST_LINES, MOST_NAMED = 10, 20
"""Problems that are shown, and keys that a summary names."""


def problem_lines(problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first problems of a summary, a line each, and how many there are besides."""
    lines = [f"{p['file']}:{p['line']}: {p['reason']}" for p in problems[:MOST_LINES]]
    left = len(problems) - MOST_LINES
    return lines + ([f"and {left:,} more lines (summary.json)"] if left > 0 else [])


def plural(number: int, what: str) -> str:
    """So many of them, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def count_and_first(values: Sequence[Any]) -> dict[str, Any]:
    """How many there are, and the first of them."""
    return {"count": len(values), "first": list(values[:MOST_NAMED])}


def first_problem_text(problems: Sequence[FileProblem]) -> str:
    """What was wrong first, in brackets; empty where nothing was."""
    return f" (line {problems[0].line}: {problems[0].reason})" if problems else ""


def unjoined_error(where: object, data: Path, by: JoinBy) -> ConfigError:
    """What is said where no response belongs to a prompt."""
    other = "key" if by == "prompt" else "prompt"
    return ConfigError(
        f"{where}: no response belongs to a prompt of {data} by {by}. Use --by {other} to join by "
        "the other column."
    )


class PromptResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One response to the prompt at ``place``.

    ``text`` is whatever the file has there; ``failure`` the kind of what kept it from being made
    (``text`` is ``None`` then); ``cut``: it ended by its length limit.
    """

    place: JoinKey
    sample: int
    text: Any
    line: int
    cut: bool = False
    failure: str = ""


def read_responses(
    path: Path,
    by: str,
    find_place: Callable[[Mapping[str, Any]], JoinKey | None],
    *,
    texts_only: bool = False,
) -> tuple[list[PromptResponse], list[FileProblem]]:
    """The responses of a file, and what was wrong with its other lines.

    ``response`` a row, or ``error`` with the ``kind`` of what kept it from being made, or a list
    ``responses`` as verl's generation writes it, in which a null could not be made (``unknown``).
    ``find_place`` says to which prompt a row belongs, ``by`` how that is called. Several to one
    prompt are its samples: numbered by ``sample`` where rows have it (of equal numbers the later
    row holds), else in the order of the file, as those of a list always are. With ``texts_only``
    any other response is a problem of its line. Raises :class:`ConfigError` for a file without any.
    """
    problems: list[FileProblem] = []
    found: dict[tuple[JoinKey, int], PromptResponse] = {}
    counted: dict[JoinKey, int] = {}
    for line, row in read_tolerant_rows(path, problems):
        place = find_place(row)
        if place is None:
            problems.append(FileProblem(str(path), line, f"has no {by!r} to join by"))
            continue
        given = list(_texts_or_failures(row))
        if not given or (texts_only and not all(isinstance(t, str) or kind for t, kind in given)):
            which = " that is text" if texts_only else ""
            problems.append(FileProblem(str(path), line, f"has no 'response'{which}"))
            continue
        for text, failure in given:
            sample = row.get("sample")
            if type(sample) is not int or find_response_list(row) is not None:
                sample = counted.get(place, 0)
                counted[place] = sample + 1
            found[place, sample] = PromptResponse(
                place=place,
                sample=sample,
                text=text,
                line=line,
                cut=row.get("finish_reason") == "length",
                failure=failure,
            )
    if not found:
        raise ConfigError(f"{path}: has no responses{first_problem_text(problems)}")
    return list(found.values()), problems


def _texts_or_failures(row: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """The responses of a row, or the kind of failure where a response is missing."""
    error = row.get("error")
    if isinstance(error, Mapping):
        yield None, str(error.get("kind", "unknown"))[:40]
    elif (responses := find_response_list(row)) is not None:
        for text in row[responses]:
            yield text, "" if text is not None else "unknown"
    elif "response" in row:
        yield row["response"], ""


ReplyKey = tuple[str, int]
"""The name of a prompt (its text, or a hash of it), and the number of the draw."""

ReplyColumns = tuple[str, str, str]
"""What a log calls the prompt, the number of the draw, and the reply's text."""

OnReply = Callable[[ReplyKey, Reply | GradingFailure], None]
"""Hears of each reply as it comes, also of one that failed."""

_MAX_FIRST_FAILURES = 16
"""So many passing failures and no reply: the server is away."""


class ReplyLog:
    """``path``, where replies are kept, a line each; of several about one prompt the last counts.

    Lines that a crash left are passed over and named in ``problems``: their replies are asked for
    again.
    """

    def __init__(self, path: Path, columns: ReplyColumns) -> None:
        self.path = path
        self.problems: list[FileProblem] = []
        self._prompt, self._draw, self._text = columns
        self._rows: dict[ReplyKey, dict[str, Any]] = {}
        for line, row in read_tolerant_rows(path, self.problems) if path.exists() else ():
            self._check(line, row)
            prompt, draw = row.get(self._prompt), row.get(self._draw)
            if isinstance(prompt, str) and type(draw) is int:
                self._rows[prompt, draw] = row
        self._log = JsonlLog(path)

    def _check(self, line: int, row: Mapping[str, Any]) -> None:
        """Raise where a row is not one of this log's."""

    def has(self, wanted: ReplyKey) -> bool:
        """Whether there is a reply; a failed one does not count."""
        return isinstance(self.find(wanted).get(self._text), str)

    def find(self, wanted: ReplyKey) -> dict[str, Any]:
        """The row: the text and ``finish_reason``, or ``error``; empty for what was not asked."""
        return self._rows.get(wanted, {})

    def append(
        self,
        wanted: ReplyKey,
        reply: Reply | GradingFailure,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a reply, or what kept it from coming, with columns before and after its own."""
        row: dict[str, Any] = {**(before or {}), self._prompt: wanted[0], self._draw: wanted[1]}
        if isinstance(reply, GradingFailure):
            row["error"] = {"kind": reply.kind.value, "message": str(reply)}
        else:
            text = replace_surrogates(reply.text)
            row |= {self._text: text, "finish_reason": reply.finish_reason}
        row |= after or {}
        self._rows[wanted] = row
        self._log.append(row)

    def sort(self, order: Iterable[ReplyKey]) -> None:
        """Write the log again, whole: ``order`` first, then whatever else it has."""
        places = dict.fromkeys([*order, *self._rows])
        self._log.rewrite(self._rows[one] for one in places if one in self._rows)

    def failures(self, wanted: Iterable[ReplyKey]) -> list[Mapping[str, Any]]:
        """The errors of those that could not be made."""
        return [row["error"] for one in wanted if "error" in (row := self.find(one))]


async def ask_model(
    model: ChatModel,
    wanted: Sequence[ReplyKey],
    prompt: Callable[[ReplyKey], tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]],
    keep: OnReply,
    *,
    in_flight: int,
) -> None:
    """Ask for the ``wanted`` replies, ``in_flight`` at a time; ``keep`` hears of each as it comes.

    ``prompt`` gives a wanted reply's messages and sampling. Raises
    :class:`~adjudge.errors.JudgeAuthError` for a refused key, and
    :class:`~adjudge.errors.JudgeUnavailable` for a server that answers nothing from the start;
    every other failure goes to ``keep``.
    """
    waiting, silent = iter(wanted), 0

    async def worker() -> None:
        nonlocal silent
        for one in waiting:
            messages, sampling = prompt(one)
            reply: Reply | GradingFailure
            try:
                reply = await model.achat(messages, draw=one[1], **sampling)
            except GradingFailure as failure:
                reply = failure
            keep(one, reply)
            if not isinstance(reply, GradingFailure):
                silent = -1
            elif reply.kind is ErrorKind.AUTH:
                raise JudgeAuthError(str(reply))
            elif reply.kind in PASSING_KINDS and silent >= 0:
                silent += 1
                if silent >= _MAX_FIRST_FAILURES:
                    raise JudgeUnavailable(f"no reply, {silent} failures: {reply}")

    await run_all(worker() for _ in range(min(in_flight, len(wanted))))
