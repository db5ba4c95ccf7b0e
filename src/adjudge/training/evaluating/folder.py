"""The folder of an evaluation: every episode with its verdicts, kept as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adjudge.environments import Episode
from adjudge.errors import ErrorKind, RunFolderError
from adjudge.runs.lock import locking
from adjudge.runs.whole import write_json, write_whole
from adjudge.training.evaluating.evaluation import Evaluated
from adjudge.types import GraderError

__all__ = ["EvalFolder", "Known", "episode_of", "episode_row", "open_folder"]

EPISODES = "episodes.jsonl"
_MANIFEST = "run.json"
_SPENT = "spent.jsonl"
_OTHERS = ("summary.json", "metrics.jsonl", "rewards.jsonl", "rollouts.jsonl", EPISODES)
_SAME = {
    "models": "models",
    "seeds": "seeds",
    "judges": "judges (--no-judges or not)",
    "settings": "config",
}

Known = dict[tuple[str, int], dict[str, Any]]
"""Rows of ``episodes.jsonl`` by model and seed; a later one replaces an earlier one."""


class EvalFolder:
    """``path``, claimed for what ``manifest`` says, or gone on with if it says the same."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self._claim(manifest)
        _cut_torn(path / EPISODES)
        _cut_torn(path / _SPENT)

    def known(self) -> Known:
        """The episodes that are kept."""
        return {(row["model"], row["seed"]): row for row in _lines(self.path / EPISODES)}

    def keep(self, model: str, one: Evaluated) -> dict[str, Any]:
        """Append an episode; its row."""
        row = episode_row(model, one)
        self._append(EPISODES, row)
        decoded: dict[str, Any] = msgspec.json.decode(_encoded(row))
        return decoded

    def sort(self, models: Sequence[str], seeds: Sequence[int]) -> None:
        """Write the episodes again, one a model and seed, in this order."""
        known = self.known()
        places = [(model, seed) for model in models for seed in seeds]
        lines = [_encoded(known[place]) + b"\n" for place in places if place in known]
        self.write(EPISODES, b"".join(lines))

    def spend(self, model: str, usage: Mapping[str, Any]) -> None:
        """Note what a policy's replies consumed in this invocation."""
        self._append(_SPENT, {"model": model, **usage})

    def spent(self, model: str) -> dict[str, int]:
        """What a policy's replies consumed in all invocations; ``{}`` where nobody said."""
        total: dict[str, int] = {}
        for row in _lines(self.path / _SPENT):
            if row.pop("model") == model:
                for name, count in row.items():
                    total[name] = total.get(name, 0) + count
        return total

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole: readers see the old one or the new one."""
        write_whole(self.path / name, data)

    def write_json(self, name: str, value: Any) -> None:
        """Write ``value`` as indented JSON."""
        write_json(self.path / name, value)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with (self.path / name).open("ab") as file:
            file.write(_encoded(row) + b"\n")

    def _claim(self, manifest: Mapping[str, Any]) -> None:
        file = self.path / _MANIFEST
        if not file.exists():
            if taken := [name for name in _OTHERS if (self.path / name).exists()]:
                raise RunFolderError(
                    f"{self.path}: holds {taken[0]} of another run; give another output folder "
                    "with -o"
                )
            self.write_json(_MANIFEST, manifest)
            return
        try:
            found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise RunFolderError(f"{file}: is not a run of adjudge: {error}") from error
        if found.get("kind") != "eval":
            raise RunFolderError(f"{self.path}: holds another run; give another folder with -o")
        for key, words in _SAME.items():
            if found.get(key) != manifest[key]:
                raise RunFolderError(
                    f"{self.path}: holds an evaluation with other {words}; give another output "
                    "folder with -o"
                )


@contextmanager
def open_folder(path: Path, manifest: Mapping[str, Any]) -> Iterator[EvalFolder]:
    """The folder of one evaluation, for this process alone.

    Raises :class:`~adjudge.errors.RunFolderError` where it holds anything else, and where another
    process is writing to it.
    """
    with locking(path):
        yield EvalFolder(path, manifest)


def episode_row(model: str, one: Evaluated) -> dict[str, Any]:
    """The row of ``episodes.jsonl``: all of the episode, and all that was said of it."""
    episode, row = one.episode, one.row()
    del row["step"]
    return {
        "model": model,
        **row,
        "error": one.error and {"kind": str(one.error.kind), "message": one.error.error},
        "details": one.details,
        "usage": one.usage,
        "env_name": episode.env_name,
        "messages": episode.messages,
        "turn_rewards": episode.rewards,
        "done": episode.done,
        "info": episode.info,
        "columns": episode.columns,
    }


def episode_of(row: Mapping[str, Any]) -> Episode:
    """The episode in a row, to be judged again."""
    error = row["error"]
    return Episode(
        row["env_name"],
        row["seed"],
        row["messages"],
        rewards=row["turn_rewards"],
        done=row["done"],
        info=row["info"],
        columns=row["columns"],
        error=error and GraderError("rollout", ErrorKind(error["kind"]), error["message"]),
    )


def _encoded(row: Mapping[str, Any]) -> bytes:
    # An environment's info and a dataset's columns are whatever they are; a lone surrogate of a
    # reply has no UTF-8.
    try:
        return msgspec.json.encode(row, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(row, enc_hook=str)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_encodable(one) for one in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    return value


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.MsgspecError:
                continue  # cut by a crash: that episode is played again


def _cut_torn(path: Path) -> None:
    """End the file at its last whole line, so that appending starts on a line."""
    if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
