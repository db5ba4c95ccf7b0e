"""Arms that are given as whole run files, the form in which existing experiments come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.config import load_toml
from adjudge.errors import ConfigError
from adjudge.studies.matrix.keys import merged
from adjudge.studies.matrix.tables import NONE, GivenArm
from adjudge.training.runfile import RunFile

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["Given", "counts", "read_given"]

_PATHS = (
    ("rollout", "dataset"),
    ("judge", "rubric_dir"),
    ("judge", "folder"),
    ("model", "base"),
    ("model", "custom_chat_template"),
)


@dataclass(frozen=True)
class Given:
    """An arm's run file as it is.

    Arms whose reward is the same have one ``judge``, called as the first of them, and the others'
    ``mitigation`` is their own name.
    """

    table: GivenArm
    data: dict[str, Any]
    run: RunFile
    judge: str
    mitigation: str


def read_given(study: StudyFile) -> dict[str, Given]:
    """The given arms by name; raises :class:`~adjudge.errors.ConfigError` naming the file."""
    found: dict[str, Given] = {}
    judges: dict[bytes, str] = {}
    for table in study.given:
        if table.name in found:
            study.refuse(f"arms.{table.name}", "there are two arms of this name")
        path = study.folder / table.file
        try:
            run = RunFile.load(path)
        except ConfigError as error:
            raise ConfigError(f"{study.where}: arms.{table.name}: {error}") from None
        judge = judges.setdefault(_reward(run), table.name)
        mitigation = NONE if judge == table.name else table.name
        data = _placed(load_toml(path, keep_references=True), run)
        found[table.name] = Given(table, data, run, judge, mitigation)
    return found


def _placed(data: dict[str, Any], run: RunFile) -> dict[str, Any]:
    """The paths that a file's tables name, so that they lead there from the study's folder."""
    named: dict[str, Any] = {}
    for table, key in _PATHS:
        value = data.get(table, {}).get(key)
        places = [value] if isinstance(value, str) else value or []
        if key == "rubric_dir" and run.rubric_file is not None:
            places = [run.judge.rubric_dir]
        if places and all((run.folder / one).exists() for one in places):
            found = [str((run.folder / one).absolute()) for one in places]
            named = merged(named, {table: {key: found if isinstance(value, list) else found[0]}})
    return merged(data, named)


def counts(grader: Any) -> bool:
    """Whether an entry of ``[[graders]]`` is more than watched."""
    return not isinstance(grader, dict) or grader.get("weight", 1.0) != 0


def _reward(run: RunFile) -> bytes:
    """What makes a run's reward, the policy apart."""
    graders = [one for one in run.graders if counts(one)]
    said = [str(run.folder.resolve()), run.judge.model_dump(), graders, run.services.judge_url]
    return msgspec.json.encode(said, order="deterministic", enc_hook=str)
