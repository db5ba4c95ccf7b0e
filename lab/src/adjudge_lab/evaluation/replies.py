"""Replies of one model to many prompts: asked for side by side, kept as they come.

The log has a line a reply, so that who was killed goes on with what is there. What failed is kept
beside the replies, and asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.engine.loop import run_all
from adjudge.errors import (
    PASSING_KINDS,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
)
from adjudge.files import JsonlLog
from adjudge.judges.base import ChatModel, Reply
from adjudge.text import replace_surrogates
from adjudge_lab.evaluation.responses import FileProblem, read_tolerant_rows

ReplyKey = tuple[str, int]
"""What stands for a prompt (its text, or a hash of it), and the number of the draw."""

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
        """Whether there is a reply; one that failed is none."""
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
