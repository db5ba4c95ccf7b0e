"""The folder of a chain: claimed for one file and seed, a folder a stage."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import RunFolderError
from adjudge.judge_training.chain.file import ChainFile, Stage
from adjudge.runs.lock import locked
from adjudge.runs.whole import write_json, write_whole
from adjudge.training.served import toml_text

__all__ = ["ChainFolder", "summary_of"]

_CONFIG, _RUN, _SUMMARY = "config.toml", "run.json", "summary.json"
_OF_OTHERS = ("metrics.jsonl", "judge.json", _SUMMARY)


class ChainFolder:
    """``path``, claimed for ``chain`` (read from ``source``), or taken up again where it stopped.

    Locked until :meth:`close`. Raises :class:`~adjudge.errors.RunFolderError` for the folder of
    another chain or run, for one whose chain is over, and for one that is being written to.
    """

    def __init__(self, path: Path, chain: ChainFile, source: Path) -> None:
        self.path = path
        self._lock = locked(path)
        try:
            self.resumed = self._claim(chain, source.read_bytes())
        except BaseException:
            os.close(self._lock)
            raise

    def stage_file(self, stage: Stage) -> Path:
        """The stage's own file beside its folder: what the chain's says, references resolved."""
        path = self.path / f"{stage.name}.toml"
        kind = {"judge": {"kind": "judge"}, "run": {"kind": "rl"}}.get(stage.kind, {})
        self.write(path.name, toml_text({**kind, **stage.data}).encode())
        return path

    def write_json(self, name: str, value: Any) -> None:
        """A file of its own, in one piece."""
        write_json(self.path / name, value)

    def write(self, name: str, data: bytes) -> None:
        """A file of its own, in one piece."""
        write_whole(self.path / name, data)

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)

    def _claim(self, chain: ChainFile, text: bytes) -> bool:
        """Whether a chain is gone on with."""
        config, elsewhere = self.path / _CONFIG, "give another output folder with -o"
        if not config.exists():
            if taken := [name for name in _OF_OTHERS if (self.path / name).exists()]:
                raise RunFolderError(
                    f"{self.path}: holds {taken[0]} of something else; {elsewhere}"
                )
            for stage in chain.stages:  # its summary would be taken for the stage's
                if (self.path / stage.name / _SUMMARY).exists():
                    raise RunFolderError(
                        f"{self.path / stage.name}: holds {_SUMMARY} of something else; {elsewhere}"
                    )
            created = datetime.now(UTC).isoformat(timespec="seconds")
            facts = {"kind": "chain", "created": created, "label": chain.label}
            self.write_json(_RUN, {**facts, "seed": chain.seed, "pid": os.getpid()})
            self.write(_CONFIG, text)  # with this the folder is the chain's
            return False
        known = summary_of(self.path / _RUN)
        if config.read_bytes() != text or (known or {}).get("seed") != chain.seed:
            raise RunFolderError(
                f"{self.path}: holds another run (its file or seed differs); {elsewhere}"
            )
        if (self.path / _SUMMARY).exists():
            raise RunFolderError(f"{self.path}: its chain is over; {elsewhere}")
        self.write_json(_RUN, {**(known or {}), "pid": os.getpid()})
        return True


def summary_of(path: Path) -> dict[str, Any] | None:
    """A JSON object that a run left; ``None`` where there is none.

    Raises :class:`~adjudge.errors.RunFolderError` for a file that is broken.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from None
