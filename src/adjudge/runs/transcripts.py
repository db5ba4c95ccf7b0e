"""What a run's judges were shown and said, kept by content in the run folder.

``transcripts.sqlite`` has the rollouts themselves and every judge call: the exact prompt, the
schema, the raw replies with those that could not be read, tokens, seconds, cost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from adjudge.errors import RunFolderError
from adjudge.types import Sample, Usage

FILE = "transcripts.sqlite"
_SCHEMA = ""


class JudgeCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a judge as it was made: what was sent, and what came back.

    ``part`` says which of a grader's questions it was (an order of a pair, a chunk of a rubric, a
    judge of several, a vote), empty where it has one. ``repair``: the second ask after a reply that
    could not be read. ``reply`` is ``None`` where none came, ``kind`` and ``error`` say why;
    ``unread`` says why no verdict could be read from the reply. ``source`` is ``live``, ``shared``,
    ``cache`` or ``cassette``.
    """

    messages: Sequence[Mapping[str, Any]]
    schema: Mapping[str, Any] | None = None
    choices: Sequence[str] | None = None
    draw: int = 0
    part: str = ""
    repair: bool = False
    reply: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    unread: str = ""
    kind: str = ""
    error: str = ""
    source: str | None = None
    model: str | None = None
    attempts: int | None = None
    latency_s: float | None = None
    usage: Usage | None = None


class TranscriptStore:
    """The transcripts of the run in ``folder``; a context manager.

    Texts are kept once by their content, compressed. One process writes, others may read meanwhile.
    Raises :class:`~adjudge.errors.RunFolderError` for a file that is no store.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            self._database = sqlite3.connect(self.path)
            self._database.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise RunFolderError(f"{self.path}: cannot be used: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left."""
        self._database.commit()
        self._database.close()

    def add_sample(self, index: int, sample: Sample) -> None:
        """Keep the rollout of the sample at ``index``."""
        raise NotImplementedError

    def read_sample(self, index: int) -> Sample | None:
        """The rollout of a sample; ``None`` where it is not kept."""
        raise NotImplementedError

    def add_calls(self, index: int, grader: str, calls: Sequence[JudgeCall]) -> None:
        """Keep the calls that ``grader`` made about the sample at ``index``."""
        raise NotImplementedError

    def read_calls(self, index: int) -> dict[str, list[JudgeCall]]:
        """The calls about a sample by grader, in the order in which they ended."""
        raise NotImplementedError
