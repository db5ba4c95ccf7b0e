"""What a run keeps so that it can go on after a kill: rollouts played, judgements paid for."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.environments import Episode
from adjudge.errors import REDRAW_KINDS
from adjudge.rewards.batch import Judged
from adjudge.runner.journal import Journal, add_checksum, is_intact
from adjudge.training.rollouts import Batch, Rollout, Tokens
from adjudge.training.scaffold.hook import Revealed
from adjudge.types import GraderError, GraderResult, Provenance

__all__ = ["PromptJournal", "RolloutStore", "cut_after", "digest_of", "read_rows"]


_log = logging.getLogger("adjudge")


class _Kept(msgspec.Struct):
    version: int
    rollouts: list[_KeptRollout]


class _KeptRollout(msgspec.Struct):
    place: int
    group: str
    tokens: Tokens
    env_name: str
    seed: int
    messages: list[dict[str, Any]]
    rewards: list[float]
    done: bool
    info: dict[str, Any]
    achievements: list[int]
    columns: dict[str, Any]
    error: GraderError | None
    scaffold: Revealed | None = None


class _Said(msgspec.Struct):
    """What one call of the graders came to; ``keys`` name the samples."""

    keys: list[str]
    judged: list[Judged]


_decoder = msgspec.msgpack.Decoder(_Kept)
_said = msgspec.json.Decoder(_Said)
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)


class PromptJournal(Journal):
    """A journal whose answers are with the operating system before the next reply is read.

    A training run is killed without notice, and its judges' answers are few beside what they cost.
    A reply of no use was paid for, too: that there is no verdict in it is written down as well.
    """

    keeps = REDRAW_KINDS

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """As :meth:`Journal.put`, at once."""
        super().put(sample, grader, draw, result)
        self.flush()


class RolloutStore:
    """Steps that were played and whose policy is not saved yet: their rollouts, and what was said.

    Two files a step in ``folder``. What was said of a rollout is kept with its failures: they were
    paid for, too, and the policy has perhaps learned from what they left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, batch: Batch) -> None:
        """Keep a step's rollouts, before anything is learned from them."""
        kept = _Kept(batch.version, [_kept(one) for one in batch.rollouts])
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(batch.step)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.msgpack.encode(kept, enc_hook=str))
        os.replace(part, path)  # noqa: PTH105  (atomic)

    def load(self, step: int) -> tuple[int, list[Rollout]] | None:
        """The policy's version and the rollouts of ``step``, if they were played."""
        try:
            kept = _decoder.decode(self._path(step).read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return kept.version, [_rollout(one) for one in kept.rollouts]

    def keep(self, step: int, keys: Sequence[str | None], judged: Sequence[Judged]) -> None:
        """Keep what one call of the graders said; ``keys`` are the samples', by content.

        A sample without a key, or a result that JSON cannot hold, is asked about again.
        """
        named = [key for key in keys if key is not None]
        if len(named) < len(keys):
            return
        try:
            line = add_checksum(msgspec.json.encode(_Said(named, list(judged)))) + b"\n"
        except _UNWRITABLE:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._said_path(step).open("ab") as file:
            file.write(line)

    def said(self, step: int) -> dict[str, Judged]:
        """What was said of the samples of ``step`` before an interruption, by their keys."""
        path = self._said_path(step)
        found: dict[str, Judged] = {}
        data = path.read_bytes() if path.exists() else b""
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # the rest of a line would swallow the next one
            os.truncate(path, whole)
        for number, line in enumerate(data[:whole].split(b"\n")[:-1], start=1):
            try:
                call = _said.decode(line) if is_intact(line) else None
            except (msgspec.MsgspecError, UnicodeDecodeError):
                call = None
            if call is None or len(call.keys) != len(call.judged):
                _log.warning(
                    "%s:%d: the line is damaged; its samples are judged again", path, number
                )
                continue
            _share_provenance(call.judged)
            found.update(zip(call.keys, call.judged, strict=True))
        return found

    def forget(self, until: int) -> None:
        """Drop steps up to ``until``: the policy that learned from them is saved."""
        for path in self._folder.glob("step-*"):
            number = path.name.removeprefix("step-").split(".")[0]
            if number.isdecimal() and int(number) <= until:
                path.unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06}.msgpack"

    def _said_path(self, step: int) -> Path:
        return self._folder / f"step-{step:06}.judged.jsonl"


def _share_provenance(judged: Sequence[Judged]) -> None:
    """Make the provenance of a call about a whole group one object again: that is how it counts."""
    known: dict[bytes, Provenance] = {}
    for one in judged:
        parts = [one.outcome, *(one.events if isinstance(one.events, list) else ())]
        for part in parts:
            for name, result in part.items():
                if result.provenance is not None and result.provenance.source == "live":
                    key = msgspec.json.encode(result.provenance)
                    same = known.setdefault(key, result.provenance)
                    part[name] = msgspec.structs.replace(result, provenance=same)


def _kept(one: Rollout) -> _KeptRollout:
    episode = one.episode
    return _KeptRollout(
        one.place, one.group, one.tokens, episode.env_name, episode.seed, episode.messages,
        episode.rewards, episode.done, episode.info, episode.achievements, episode.columns,
        episode.error, one.scaffold,
    )  # fmt: skip


def _rollout(one: _KeptRollout) -> Rollout:
    episode = Episode(
        one.env_name, one.seed, one.messages, one.rewards, one.done, one.info,
        one.achievements, one.columns, one.error,
    )  # fmt: skip
    return Rollout(one.place, one.group, episode, one.tokens, scaffold=one.scaffold)


def digest_of(*files: Path | None) -> str:
    """What makes a run this run: the content of its files, and adjudge's version."""
    said = sha256(adjudge.__version__.encode())
    for path in files:
        said.update(b"\0" if path is None else path.read_bytes())
    return said.hexdigest()[:16]


class _Row(msgspec.Struct):
    step: int = 0


_row = msgspec.json.Decoder(_Row)


def cut_after(path: Path, step: int) -> None:
    """Cut a file of rows back to those of steps up to ``step``, and a torn last line off.

    A file that is not there is left alone.
    """
    end = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    keep = line.endswith(b"\n") and _row.decode(line).step <= step
                except msgspec.MsgspecError:
                    break
                if not keep:
                    break
                end += len(line)
        os.truncate(path, end)
    except FileNotFoundError:
        return


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file; none where there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for line in lines:
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError:
            break
    return rows
