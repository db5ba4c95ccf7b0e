"""The training file of a judge (``kind = "judge"``): one TOML file that says how it is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, PrivateAttr

from adjudge.config import load_toml, validate
from adjudge.errors import ConfigError
from adjudge.judge_training.data.hub import data_file, is_on_hub
from adjudge.judge_training.judge_tables import (
    TINY,
    VARIABLES,
    Data,
    Grpo,
    Lora,
    Method,
    ModelTable,
    Optim,
    TrainerTable,
    with_defaults,
)

__all__ = ["JudgeFile"]


class JudgeFile(BaseModel):
    """A whole training file; :meth:`load` reads one.

    Keys that the file leaves out have the defaults of its ``method``. ``mode`` says how a judge
    that writes is asked; SFT without one imitates conversations as they are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    kind: Literal["judge"] = "judge"
    method: Method
    mode: Literal["pointwise", "pairwise"] | None = None
    backend: Literal["trl", "verl"] = "trl"
    model: ModelTable = ModelTable()
    data: Data = Data()
    optim: Optim = Optim()
    trainer: TrainerTable = TrainerTable()
    lora: Lora | None = None
    grpo: Grpo = Grpo()

    _where: str = PrivateAttr(default="training file")
    _folder: Path | None = PrivateAttr(default=None)
    _overrides: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path | str, environ: Mapping[str, str] | None = None) -> JudgeFile:
        """The run in ``path``; raises :class:`ConfigError` naming file, key and remedy.

        Variables of ``environ`` (the process's own) come before the file; ``overrides`` has those
        that did.
        """
        path = Path(path)
        return cls.from_dict(load_toml(path), where=str(path), folder=path.parent, environ=environ)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        where: str = "training file",
        folder: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> JudgeFile:
        """A run from plain data; ``where`` opens every complaint."""
        filled, overrides = _overridden(data, os.environ if environ is None else environ, where)
        try:
            judge = validate(cls, with_defaults(filled), where)
            judge._where, judge._folder = where, folder  # noqa: SLF001  (its own)
            judge._overrides = overrides  # noqa: SLF001
            _check(judge, data)
        except ConfigError as error:
            raise ConfigError(f"{error}{_blamed(overrides, str(error))}") from None
        return judge

    def with_seed(self, seed: int) -> JudgeFile:
        """The same run from another seed."""
        trainer = TrainerTable.model_validate({**self.trainer.model_dump(), "seed": seed})
        return self.model_copy(update={"trainer": trainer})

    @property
    def where(self) -> str:
        """The file the run came from, for messages."""
        return self._where

    @property
    def folder(self) -> Path:
        """What the file's relative paths start from."""
        return self._folder or Path()

    @property
    def overrides(self) -> dict[str, str]:
        """Environment variables that came before the file, with their texts."""
        return dict(self._overrides)

    @property
    def base(self) -> str:
        """The model to begin with: a folder, a name on the hub, or ``tiny``."""
        beside = self.folder / self.model.path
        is_beside = self.model.path != TINY and beside.is_dir()
        return str(beside) if is_beside else self.model.path

    @property
    def needs_hub(self) -> bool:
        """Whether model or data are named, not lying here."""
        names = [*self.data.train, *self.data.val]
        here = self.model.path == TINY or Path(self.base).is_dir()
        return not here or any(map(is_on_hub, names))

    @property
    def is_scalar(self) -> bool:
        """Whether the judge has one output (else it writes)."""
        return self.method == "bradley_terry"

    def files(self, names: list[str]) -> list[Path]:
        """Data files: those beside the training file by their places, fetched ones in the cache."""
        return [data_file(name, self.folder) for name in names]

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raise :class:`ConfigError` about one key of the file."""
        raise ConfigError(f"{self._where}: {key}: {message}")


def _overridden(
    data: Mapping[str, Any], environ: Mapping[str, str], where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """``data`` under what the environment says, and which variables did say something."""
    filled, overrides = dict(data), {}
    for variable, (table, key, kind) in VARIABLES.items():
        text = environ.get(variable, "").strip()
        if not text or (table == "grpo" and data.get("method") != "grpo"):
            continue
        try:
            value = kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(
                f"{where}: environment variable {variable}: found {text[:40]!r}, must be {wanted}; "
                f"it comes before {table}.{key} of the file"
            ) from None
        given = filled.get(table, {})
        if not isinstance(given, Mapping):
            continue  # validation says so
        filled[table] = {**given, key: value}
        overrides[variable] = text
    return filled, overrides


def _blamed(overrides: Mapping[str, str], complaint: str) -> str:
    """Which variables a complaint may be about: their values stand in no file."""
    tables = {name: VARIABLES[name][0] for name in overrides}
    names = [name for name, table in tables.items() if f" {table}" in complaint]
    if not names:
        return ""
    return f"\n(from the environment, before the file: {', '.join(names)})"


def _check(judge: JudgeFile, given: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for the first thing that does not fit; no file is read."""
    data = judge.data
    if data.synthetic is None and not data.train:
        judge.refuse("data.train", "is required (files), or a table [data.synthetic]")
    if data.synthetic is not None and (data.train or data.val):
        judge.refuse("data.synthetic", "and files (train, val) are two sources; give one")
    _check_dials(judge)
    _check_batches(judge)
    if judge.mode is not None and judge.is_scalar:
        judge.refuse("mode", f"is for judges that write; {judge.method!r} has none: leave it out")
    if "grpo" in given and judge.method != "grpo":
        judge.refuse("grpo", f"is for method = 'grpo', not {judge.method!r}: leave it out")
    if "@" in judge.grpo.ray_address:
        judge.refuse(
            "grpo.ray_address",
            "(or RAY_ADDRESS) has a name or password in it, which the run's files would show; give "
            "it by --ray",
        )
    if data.use_margin and judge.method != "bradley_terry":
        judge.refuse("data.use_margin", "is for method = 'bradley_terry'")


def _check_dials(judge: JudgeFile) -> None:
    """That no dial of ``[data.synthetic]`` is turned that would turn nothing."""
    made = judge.data.synthetic
    if made is None:
        return
    made.settings()
    for name in ("ties", "position_bias"):
        if getattr(made, name) and judge.mode != "pairwise":
            judge.refuse(f"data.synthetic.{name}", "is for mode = 'pairwise': leave it out")
    if judge.method == "sft" and judge.mode is None:
        for name in ("length_bias", "family_offset", "elsewhere"):
            if getattr(made, name):
                judge.refuse(
                    f"data.synthetic.{name}",
                    "does nothing here: demonstrations have no labels; leave it out",
                )


def _check_batches(judge: JudgeFile) -> None:
    """That whole micro batches make a batch, and in GRPO whole comparisons, too."""
    size, micro = judge.data.train_batch_size, judge.data.micro_batch_size
    if judge.method != "grpo":
        if size % micro:
            judge.refuse(
                "data.train_batch_size",
                f"is {size}, must be a multiple of micro_batch_size ({micro})",
            )
        return
    if judge.mode == "pairwise" and size % 2:
        judge.refuse(
            "data.train_batch_size",
            f"is {size}, must be even: a comparison is two prompts, one for each order",
        )
    replies = size * judge.grpo.rollout_n
    if replies % micro:
        judge.refuse(
            "data.micro_batch_size",
            f"is {micro}, must divide train_batch_size × grpo.rollout_n ({replies} replies)",
        )
