"""The file of a chain (``kind = "chain"``): stages in order, each an existing kind of run.

A stage takes from an earlier one: ``@NAME`` is its folder, ``@NAME/PATH`` a part of it.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator

from adjudge.config import suggest_name
from adjudge.config_tables import ConfigFile, ConfigTable, validate_model
from adjudge.errors import ConfigError
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.rl.backend_checks import check_backend_support, check_trains_here
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.synthetic import SyntheticSettings, synthetic_preferences

_OUTPUT_NAMES: Mapping[str, str] = {
    "scalar": "a scalar judge",
    "generative": "a generative judge",
    "answers": "a model taught to answer",
    "evaluate": "an evaluation, no model",
    "run": "a run (its policy is @{}/model)",
}

_REFERENCE_KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "judge": (("model", "path"), ("data", "train"), ("data", "val")),
    "evaluate": (("judge",), ("files",)),
    "run": (("model", "base"), ("judge", "folder"), ("rollout", "dataset")),
}
"""By kind of stage the keys that may refer; elsewhere an @ is an @."""

_ACCEPTED_OUTPUTS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("model", "path"): ("scalar", "generative", "answers"),
    ("model", "base"): ("generative", "answers"),
    ("judge",): ("scalar", "generative"),
    ("judge", "folder"): ("scalar", "generative"),
}
"""What a key takes where it refers to a whole stage; the others take files."""


def resolve_references(
    data: Mapping[str, Any],
    kind: str,
    earlier: Mapping[str, ResolvedStage],
    later: Sequence[str],
    where: str,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A stage's table with paths instead of references, and the stages that it refers to.

    Raises :class:`ConfigError` for a stage that is not among ``earlier``, or leaves something else
    than is needed.
    """
    filled = copy.deepcopy(dict(data))
    after: list[str] = []

    def path(text: Any, key: tuple[str, ...]) -> Any:
        if not isinstance(text, str) or not text.startswith("@"):
            return text
        name, _, rest = text[1:].partition("/")
        complaint = f"{where}: {'.'.join(key)}: "
        if name not in earlier:
            why = "comes later" if name in later else f"does not exist{suggest_name(name, earlier)}"
            known = ", ".join(f"@{one}" for one in earlier) or "none"
            raise ConfigError(f"{complaint}stage @{name} {why} (before this one: {known})")
        what = _stage_output(earlier[name])
        if not rest and key not in _ACCEPTED_OUTPUTS:
            raise ConfigError(
                f"{complaint}stage @{name} is a folder. Name a file in it, as in "
                f"'@{name}/rows.jsonl'."
            )
        if not rest and what not in _ACCEPTED_OUTPUTS[key]:
            wanted = " or ".join(_OUTPUT_NAMES[one] for one in _ACCEPTED_OUTPUTS[key])
            left = _OUTPUT_NAMES[what].format(name)
            raise ConfigError(
                f"{complaint}stage @{name} leaves {left}, but this key takes {wanted}"
            )
        after.append(name)
        folder = str(earlier[name].folder.absolute())
        return f"{folder}/{rest}" if rest else folder

    for key in _REFERENCE_KEYS[kind]:
        table = _table_of(filled, key)
        if table is None or key[-1] not in table:
            continue
        value = table[key[-1]]
        table[key[-1]] = (
            [path(one, key) for one in value] if isinstance(value, list) else path(value, key)
        )
    return filled, tuple(dict.fromkeys(after))


def _table_of(data: Any, key: tuple[str, ...]) -> dict[str, Any] | None:
    """The table that has the last part of ``key``."""
    for part in key[:-1]:
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


StageKind = Literal["judge", "evaluate", "run"]
STAGE_KINDS: tuple[StageKind, ...] = ("judge", "evaluate", "run")

_RESERVED_NAME = "config"
"""Its file would be the chain's own ``config.toml``."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}\Z")
_PLACEHOLDER_FOLDER = Path("@")
"""Where stages lie as long as nobody said."""
_SEED_TABLES: Mapping[StageKind, str] = {"judge": "trainer", "run": "training"}
"""The tables with a stage's seed."""


class EvaluateStage(ConfigTable):
    """``[stages.evaluate]``: a trained ``judge`` on preferences that it has not seen.

    ``judge``: ``@STAGE``, or a trained judge's folder. ``synthetic``: made by these dials; or
    ``files``, whose benchmark is recognised by the columns.
    """

    judge: str
    synthetic: SyntheticSettings | None = None
    files: list[str] = Field(default=[])


class _StageTable(ConfigTable):
    name: str
    judge: dict[str, Any] | None = None
    evaluate: dict[str, Any] | None = None
    run: dict[str, Any] | None = None

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError(
                "a stage's name, which is its folder's, must be lower-case letters, digits, '_', "
                "'-'"
            )
        if name == _RESERVED_NAME:
            raise ValueError(f"{name!r} is the chain's own file. Choose another name.")
        return name


@dataclass(frozen=True)
class ResolvedStage:
    """One stage, its references resolved.

    ``data`` is its table as plain data, ``file`` what that says; paths in it start at ``beside``.
    ``after`` names the stages that it refers to, ``folder`` is its own.
    """

    name: str
    kind: StageKind
    where: str
    folder: Path
    beside: Path
    data: dict[str, Any]
    after: tuple[str, ...]
    file: JudgeFile | RunFile | EvaluateStage


class ChainFile(ConfigFile):
    """A whole chain; :meth:`load` reads one, :meth:`stages_in` resolves its stages.

    ``label`` is for reports.
    """

    unnamed: ClassVar[str] = "chain file"
    keeps_references: ClassVar[bool] = True

    version: Literal[1] = 1
    kind: Literal["chain"] = "chain"
    label: str = ""
    stages: list[_StageTable] = Field(min_length=1, max_length=64)

    _environ: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _seed: int = PrivateAttr(default=0)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        where: str = "",
        folder: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """A chain from plain data; ``where`` opens every complaint.

        Variables of ``environ`` (the process's own) come before what judges' stages say, as they
        do in a judge's file; ``MODEL_PATH`` not before a reference to an earlier stage. Raises
        :class:`ConfigError`.
        """
        chain = cls.read_tables(data, where, folder)
        chain._environ = dict(os.environ if environ is None else environ)  # noqa: SLF001  # noqa: SLF001
        chain.stages_in(_PLACEHOLDER_FOLDER)
        return chain

    def with_seed_offset(self, seed: int) -> ChainFile:
        """The same chain with ``seed`` added to the seed of every stage; made data stay."""
        other = self.model_copy()
        other._seed = seed  # noqa: SLF001  (its own)  # noqa: SLF001  (its own)
        return other

    @property
    def seed(self) -> int:
        """What is added to every stage's seed."""
        return self._seed

    def stages_in(self, folder: Path) -> list[ResolvedStage]:
        """The stages, each in a folder of its name in ``folder``.

        Raises :class:`ConfigError` for a stage that is wrong, by its name.
        """
        found: dict[str, ResolvedStage] = {}
        for number, one in enumerate(self.stages, start=1):
            if one.name in found:
                self.refuse(f"stages.{one.name}", "there are two stages of this name")
            found[one.name] = self._stage(number, one, found, folder)
        return list(found.values())

    def _stage(
        self, number: int, given: _StageTable, earlier: Mapping[str, ResolvedStage], folder: Path
    ) -> ResolvedStage:
        where = f"{self.where}: stages.{given.name}"
        kinds = [kind for kind in STAGE_KINDS if getattr(given, kind) is not None]
        if len(kinds) != 1:
            wanted, said = (
                ", ".join(f"[stages.{kind}]" for kind in named) for named in (STAGE_KINDS, kinds)
            )
            raise ConfigError(
                f"{where}: stage {number} needs exactly one of {wanted} (found {said or 'none'})"
            )
        kind = kinds[0]
        later = [one.name for one in self.stages if one.name not in earlier]
        table = getattr(given, kind)
        data, after = resolve_references(table, kind, earlier, later, where)
        self._shift(data, kind)
        own_base = data.get("model") == table.get("model")
        return ResolvedStage(
            given.name, kind, where, folder / given.name, self.folder, data, after,
            self._read(data, kind, where, own_base=own_base),
        )  # fmt: skip

    def _read(
        self, data: dict[str, Any], kind: StageKind, where: str, *, own_base: bool
    ) -> JudgeFile | RunFile | EvaluateStage:
        if kind == "judge":
            environ = dict(self._environ)
            if not own_base:
                environ.pop("MODEL_PATH", None)
            return JudgeFile.from_dict(data, where=where, folder=self.folder, environ=environ)
        if kind == "run":
            run = resolve_run_file(data, where=where, folder=self.folder)
            check_trains_here(run, run.backend, "chain")
            check_backend_support(run, approximate=False)
            return run
        check = validate_model(EvaluateStage, data, where)
        if (check.synthetic is None) == (not check.files):
            raise ConfigError(f"{where}: needs either files or a table [stages.evaluate.synthetic]")
        if check.synthetic is not None:
            _check_dials(check.synthetic, where)
        return check

    def _shift(self, data: dict[str, Any], kind: StageKind) -> None:
        """Add the chain's seed to the stage's; what is no number is left for validation."""
        name = _SEED_TABLES.get(kind)
        if name is None or not self._seed:
            return
        table = data.get(name, {})
        if isinstance(table, dict) and isinstance(table.get("seed", 0), int):
            data[name] = {**table, "seed": table.get("seed", 0) + self._seed}


def _check_dials(dials: SyntheticSettings, where: str) -> None:
    """That preferences can be made by them: now, not after hours of training."""
    try:
        synthetic_preferences(dials.model_copy(update={"n": 2}))
    except ConfigError as error:
        raise ConfigError(f"{where}: synthetic: {error}") from None


def _stage_output(stage: ResolvedStage) -> str:
    """What a stage leaves, as references know it."""
    judge = stage.file
    if not isinstance(judge, JudgeFile):
        return stage.kind
    if judge.is_scalar:
        return "scalar"
    return "answers" if judge.method == "sft" and judge.mode is None else "generative"
