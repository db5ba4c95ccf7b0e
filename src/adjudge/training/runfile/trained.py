"""Judges that ``adjudge train`` made, as the judge of a run: ``[judge] folder``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.config import load_toml
from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec, is_trained_judge

if TYPE_CHECKING:
    from adjudge.training.runfile import RunFile

__all__ = ["check_trained", "trained_judge"]

_SPEC = "reward.toml"
_SAID_THERE = ("model", "base_url", "api_key_env", "rubric_id", "price", "mock")
_NOT_IN_NAMES = re.compile(r"[^\w.-]", re.ASCII)


def trained_judge(run: RunFile) -> dict[str, Any]:
    """``graders`` and ``judges`` of the spec in the judge's folder, its paths made absolute.

    Of a list of folders, all of theirs, called by the folders' names. Raises :class:`ConfigError`
    for a folder that is no trained judge's.
    """
    folders = [run.folder / folder for folder in run.judge.folders]
    if isinstance(run.judge.folder, str):
        return _spec_in(run, folders[0])
    graders: list[dict[str, Any]] = []
    judges: dict[str, Any] = {}
    for name, folder in zip(_names(folders), folders, strict=True):
        spec = _spec_in(run, folder)
        own = spec["judges"]
        graders += _called(name, spec)
        judges |= {_within(name, one, own): table for one, table in own.items()}
    return {"graders": graders, "judges": judges}


def _spec_in(run: RunFile, folder: Path) -> dict[str, Any]:
    if not is_trained_judge(folder):
        run.refuse("judge.folder", f"{folder} holds no judge.json: no trained judge's folder")
    path = folder / _SPEC
    if not path.is_file():
        run.refuse("judge.folder", f"{folder} holds no {_SPEC}, which says how it is asked")
    data = load_toml(path)
    RewardSpec.from_dict(data, where=str(path), folder=folder)
    judges = {
        name: {**table, "model": str(folder.resolve() / str(table["model"]))}
        if table.get("type") == "local"
        else table
        for name, table in data.get("judges", {}).items()
    }
    return {"graders": data["graders"], "judges": judges}


def _names(folders: list[Path]) -> list[str]:
    """What the members of a panel are called: by their folders, numbered where those are alike."""
    names: list[str] = []
    for folder in folders:
        plain = _NOT_IN_NAMES.sub("_", folder.resolve().name)
        if not plain[:1].isalpha() and plain[:1] != "_":
            plain = f"judge_{plain}"
        tries = (plain if n == 1 else f"{plain}_{n}" for n in range(1, len(folders) + 1))
        names.append(next(name for name in tries if name not in names))
    return names


def _called(name: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The graders of a member, each with the judges that it asks there."""
    own, judges = spec["graders"], spec["judges"]
    made = []
    for grader in own:
        asked = grader.get("judge", list(judges))
        asked = [asked] if isinstance(asked, str) else asked
        places = [_within(name, one, judges) for one in asked]
        told = {"judge": places[0] if len(places) == 1 else places} if places else {}
        made.append({**grader, "name": _within(name, grader["name"], own), **told})
    return made


def _within(name: str, part: str, among: Any) -> str:
    """What a part of a member is called: by the member, if it is the only one."""
    return name if len(among) == 1 else f"{name}.{part}"


def check_trained(run: RunFile) -> None:
    """Raise :class:`ConfigError` for what does not go with ``judge.folder``."""
    judge = run.judge
    given = [name for name in _SAID_THERE if getattr(judge, name) not in (None, "")]
    if given:
        run.refuse(f"judge.{given[0]}", "is said by the judge's folder; leave it out")
    if judge.event_weight:
        run.refuse("judge.event_weight", "is not 0; a trained judge judges whole answers")
    if asking := [one.get("name") for one in run.graders if run.asks_judge(one)]:
        run.refuse(f"graders.{asking[0]}", "asks a judge, and judge.folder brings its own graders")
    if not run.awaits_judge:
        try:
            trained_judge(run)
        except ConfigError as error:
            raise ConfigError(f"{run.where}: judge.folder: {error}") from None
