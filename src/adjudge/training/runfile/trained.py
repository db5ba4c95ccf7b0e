"""A judge that ``adjudge train`` made, as the judge of a run: ``[judge] folder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adjudge.config import load_toml
from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec

if TYPE_CHECKING:
    from adjudge.training.runfile import RunFile

__all__ = ["check_trained", "trained_judge"]

_SPEC = "reward.toml"
_SAID_THERE = ("model", "base_url", "api_key_env", "rubric_id", "price", "mock")


def trained_judge(run: RunFile) -> dict[str, Any]:
    """``graders`` and ``judges`` of the spec in the judge's folder, its paths made absolute.

    Raises :class:`ConfigError` for a folder that is no trained judge's.
    """
    folder = run.folder / (run.judge.folder or "")
    if run.judge_card is None:
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
    if run.judge_card is not None:
        try:
            trained_judge(run)
        except ConfigError as error:
            raise ConfigError(f"{run.where}: judge.folder: {error}") from None
