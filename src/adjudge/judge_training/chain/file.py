"""The file of a chain (``kind = "chain"``): stages in order, each an existing kind of run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from adjudge.config import load_toml, validate
from adjudge.errors import ConfigError
from adjudge.judge_training.benchmarks.items import Kind as Benchmarks
from adjudge.judge_training.chain.references import refers, resolved, say_which
from adjudge.judge_training.data.synthetic import preferences
from adjudge.judge_training.judge_tables import Synthetic
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.training.planning.honoured import check_honoured
from adjudge.training.runfile import RunFile

__all__ = ["ChainFile", "Check", "Kind", "Stage"]

Kind = Literal["judge", "evaluate", "run"]
KINDS: tuple[Kind, ...] = ("judge", "evaluate", "run")

_RESERVED = "config"
"""Its file would be the chain's own ``config.toml``."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}\Z")
_NOWHERE = Path("@")
"""Where stages lie as long as nobody said."""
_SEEDS: Mapping[Kind, str] = {"judge": "trainer", "run": "training"}
"""The tables with a stage's seed."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Check(_Table):
    """``[stages.evaluate]``: a trained ``judge`` on preferences that it has not seen.

    ``judge``: ``@STAGE``, or a trained judge's folder. ``synthetic``: made by these dials; or
    ``files`` of a ``benchmark`` (by default told from the columns). ``seed``: of the intervals.
    """

    judge: str
    synthetic: Synthetic | None = None
    files: list[str] = []
    benchmark: Benchmarks | None = None
    seed: int = Field(default=0, ge=0, lt=2**32)


class _Stage(_Table):
    name: str
    judge: dict[str, Any] | None = None
    evaluate: dict[str, Any] | None = None
    run: dict[str, Any] | None = None

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError(
                "a stage's name, which is its folder's, is letters in lower case, digits, '_', '-'"
            )
        if name == _RESERVED:
            raise ValueError(f"{name!r} is the chain's own file; choose another name")
        return name


@dataclass(frozen=True)
class Stage:
    """One stage, its references resolved.

    ``data`` is its table as plain data, ``file`` what that says; paths in it start at ``beside``.
    ``after`` names the stages that it refers to, ``folder`` is its own.
    """

    name: str
    kind: Kind
    where: str
    folder: Path
    beside: Path
    data: dict[str, Any]
    after: tuple[str, ...]
    file: JudgeFile | RunFile | Check


class ChainFile(BaseModel):
    """A whole chain; :meth:`load` reads one, :meth:`stages_in` says what it comes to.

    ``label`` is for reports.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    kind: Literal["chain"] = "chain"
    label: str = ""
    stages: list[_Stage] = Field(min_length=1, max_length=64)

    _where: str = PrivateAttr(default="chain file")
    _beside: Path = PrivateAttr(default=Path())
    _environ: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _seed: int = PrivateAttr(default=0)

    @classmethod
    def load(cls, path: Path | str, environ: Mapping[str, str] | None = None) -> ChainFile:
        """The chain in ``path``; raises :class:`ConfigError` naming file, stage, key and remedy.

        Variables of ``environ`` (the process's own) come before what judges' stages say, as they
        do in a judge's file; ``MODEL_PATH`` not before a reference to an earlier stage.
        """
        path = Path(path)
        return cls.from_dict(
            load_toml(path, keep_references=True),
            where=str(path),
            beside=path.parent,
            environ=environ,
        )

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        where: str = "chain file",
        beside: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> ChainFile:
        """A chain from plain data; ``where`` opens every complaint."""
        chain = validate(cls, dict(data), where)
        chain._where, chain._beside = where, beside or Path()  # noqa: SLF001  (its own)
        chain._environ = dict(os.environ if environ is None else environ)  # noqa: SLF001
        chain.stages_in(_NOWHERE)
        return chain

    def shifted(self, seed: int) -> ChainFile:
        """The same chain with ``seed`` added to the seed of every stage; made data stay."""
        other = self.model_copy()
        other._seed = seed  # noqa: SLF001  (its own)
        return other

    @property
    def seed(self) -> int:
        """What is added to every stage's seed."""
        return self._seed

    def stages_in(self, folder: Path) -> list[Stage]:
        """The stages, each in a folder of its name in ``folder``.

        Raises :class:`ConfigError` for a stage that is wrong, by its name.
        """
        found: dict[str, Stage] = {}
        for number, one in enumerate(self.stages, start=1):
            if one.name in found:
                self._refuse(f"stages.{one.name}", "there are two stages of this name")
            found[one.name] = self._stage(number, one, found, folder)
        return list(found.values())

    def _stage(
        self, number: int, given: _Stage, earlier: Mapping[str, Stage], folder: Path
    ) -> Stage:
        where = f"{self._where}: stages.{given.name}"
        kinds = [kind for kind in KINDS if getattr(given, kind) is not None]
        if len(kinds) != 1:
            said = ", ".join(f"[stages.{kind}]" for kind in kinds) or "none"
            raise ConfigError(f"{where}: stage {number} needs one of {say_which(KINDS)}: {said}")
        kind = kinds[0]
        places = {
            name: (str((folder / name).absolute()), _left(stage)) for name, stage in earlier.items()
        }
        later = [one.name for one in self.stages if one.name not in places]
        data, after = resolved(getattr(given, kind), kind, places, later, where)
        self._shift(data, kind)
        return Stage(
            given.name, kind, where, folder / given.name, self._beside, data, after,
            self._read(data, kind, where, own_base=not refers(given.judge, ("model", "path"))),
        )  # fmt: skip

    def _read(
        self, data: dict[str, Any], kind: Kind, where: str, *, own_base: bool
    ) -> JudgeFile | RunFile | Check:
        if kind == "judge":
            environ = dict(self._environ)
            if not own_base:
                environ.pop("MODEL_PATH", None)
            return JudgeFile.from_dict(data, where=where, folder=self._beside, environ=environ)
        if kind == "run":
            run = RunFile.from_dict(data, where=where, folder=self._beside)
            if run.backend != "trl":
                run.refuse("backend", f"is {run.backend!r}; a chain trains here, by 'trl'")
            check_honoured(run, approximate=False)
            return run
        check = validate(Check, data, where)
        if (check.synthetic is None) == (not check.files):
            raise ConfigError(f"{where}: give either files or a table [stages.evaluate.synthetic]")
        if check.benchmark is not None and not check.files:
            raise ConfigError(f"{where}: benchmark: says what files are; there are none")
        if check.synthetic is not None:
            _check_dials(check.synthetic, where)
        return check

    def _shift(self, data: dict[str, Any], kind: Kind) -> None:
        """Add the chain's seed to the stage's; what is no number is left for validation."""
        name = _SEEDS.get(kind)
        if name is None or not self._seed:
            return
        table = data.get(name, {})
        if isinstance(table, dict) and isinstance(table.get("seed", 0), int):
            data[name] = {**table, "seed": table.get("seed", 0) + self._seed}

    def _refuse(self, key: str, message: str) -> NoReturn:
        raise ConfigError(f"{self._where}: {key}: {message}")


def _check_dials(dials: Synthetic, where: str) -> None:
    """That preferences can be made by them; one is told now, not after hours of training."""
    try:
        preferences(msgspec.structs.replace(dials.settings(), n=1))
    except ConfigError as error:
        raise ConfigError(f"{where}: synthetic: {error}") from None


def _left(stage: Stage) -> str:
    """What a stage leaves, as references know it."""
    judge = stage.file
    if not isinstance(judge, JudgeFile):
        return stage.kind
    if judge.is_scalar:
        return "scalar"
    return "answers" if judge.method == "sft" and judge.mode is None else "generative"
