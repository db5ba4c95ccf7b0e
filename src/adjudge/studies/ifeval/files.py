"""IFEval's prompts, and files of responses: the latter read as far as they are good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.graders.instructions.report import JoinBy
from adjudge.rollouts.guess import conversation
from adjudge.rollouts.lists import LIST, is_listed, last_question
from adjudge.rollouts.rows import check_files, is_parquet, line_text, read_rows, row_from_text

__all__ = ["Problem", "Response", "read_prompts", "read_responses", "tolerant_rows"]

Place = str | int
"""What prompts and responses are joined by: the prompt's text, or its key."""


class Problem(msgspec.Struct, frozen=True):
    """A line of a file that is not used, or was mended, and why."""

    file: str
    line: int
    reason: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One response to the prompt at ``place``.

    ``text`` is whatever the file has there; ``failure`` the kind of what kept it from being made
    (``text`` is ``None`` then); ``cut``: it ended by its length limit.
    """

    place: Place
    sample: int
    text: Any
    line: int
    cut: bool = False
    failure: str = ""


def read_prompts(path: Path, by: JoinBy) -> list[dict[str, Any]]:
    """IFEval's own file: ``key``, ``prompt``, ``instruction_id_list``, ``kwargs`` a row.

    Raises :class:`ConfigError` for a row that is broken or has no text as ``prompt``, for two rows
    with the same prompt (or the same key, where ``by`` says so), and for an empty file: prompts
    are the benchmark, so none is left out in silence.
    """
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[str, Place], str] = {}
    for where, row in read_rows([path]):
        if isinstance(row, RolloutError):
            raise ConfigError(str(row))
        if not isinstance(row.get("prompt"), str) or "instruction_id_list" not in row:
            raise ConfigError(
                f"{where}: is no prompt of IFEval: needs key, prompt, instruction_id_list, kwargs; "
                f"found {', '.join(map(repr, list(row)[:8])) or 'nothing'}"
            )
        for column in dict.fromkeys(("prompt", by)):
            place = row.get(column)
            if not isinstance(place, str | int):
                raise ConfigError(f"{where}: has no {column!r} to join by")
            if (first := seen.setdefault((column, place), where)) != where:
                raise ConfigError(f"{where}: the same {column} as {first}; keep one")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path}: has no prompts")
    return rows


def tolerant_rows(path: Path, problems: list[Problem]) -> Iterator[tuple[int, dict[str, Any]]]:
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
            row, reason = _row(line, f"{path}:{number}")
            if reason:
                problems.append(Problem(str(path), number, reason))
            if row is not None:
                yield number, row


def _row(line: bytes, where: str) -> tuple[dict[str, Any] | None, str]:
    """A line's row, where it has one, and what is wrong with it."""
    nuls = line.count(b"\0")
    text = line_text(line.rstrip(b"\0 \t\r\n"))
    if not text:
        return None, f"{nuls:,} NUL bytes and nothing else" if nuls else ""
    _, row = row_from_text(text, where)
    if isinstance(row, RolloutError):
        reason = str(row).removeprefix(f"{where}: ")
        torn = "" if line.endswith(b"\n") else "cut off (no line end): "
        return None, f"{torn}{reason}" + (f"; {nuls:,} NUL bytes" if nuls else "")
    return row, f"read without its {nuls:,} NUL bytes" if nuls else ""


def read_responses(path: Path, by: JoinBy) -> tuple[list[Response], list[Problem]]:
    """Responses of a file, ``prompt`` (or ``key``) and ``response`` a row, and what was wrong.

    Several to one prompt are its samples: numbered by ``sample`` where rows have it (of equal
    numbers the later row holds), else in the order of the file. A row with a list ``responses``, as
    verl's generation writes it, has one sample in each place of it; a null there is one that could
    not be made (``unknown``). A prompt in chat form is its last user message.
    """
    problems: list[Problem] = []
    found: dict[tuple[Place, int], Response] = {}
    counted: dict[Place, int] = {}
    for line, row in _single(tolerant_rows(path, problems)):
        place = row.get(by)
        if not isinstance(place, str | int) or isinstance(place, bool):
            problems.append(Problem(str(path), line, f"has no {by!r} to join by"))
            continue
        if not _is_response(row):
            problems.append(Problem(str(path), line, "has no 'response'"))
            continue
        sample = row.get("sample")
        if type(sample) is not int:
            sample = counted.get(place, 0)
            counted[place] = sample + 1
        found[place, sample] = _response(row, place, sample, line)
    if not found:
        raise ConfigError(f"{path}: has no responses{_first(problems)}")
    return list(found.values()), problems


def _single(rows: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows with a text as prompt, and one response each."""
    for line, row in rows:
        chat = conversation(row.get("prompt")) if isinstance(row.get("prompt"), list) else None
        whole = row if chat is None else {**row, "prompt": last_question(chat)}
        if not is_listed(row):
            yield line, whole
            continue
        inside = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
        for text in row[LIST]:
            one = {"key": inside.get("key"), **whole, "response": text}
            yield line, one if text is not None else {**one, "error": {"kind": "unknown"}}


def _is_response(row: dict[str, Any]) -> bool:
    return "response" in row or isinstance(row.get("error"), dict)


def _response(row: dict[str, Any], place: Place, sample: int, line: int) -> Response:
    error = row.get("error")
    failure = str(error.get("kind", "unknown")) if isinstance(error, dict) else ""
    return Response(
        place=place,
        sample=sample,
        text=None if failure else row.get("response"),
        line=line,
        cut=row.get("finish_reason") == "length",
        failure=failure,
    )


def _first(problems: Sequence[Problem]) -> str:
    return f" (line {problems[0].line}: {problems[0].reason})" if problems else ""
