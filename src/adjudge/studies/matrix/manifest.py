"""What a study's folder says of how its arms were made, and whether a file still means the same."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from adjudge.errors import RunFolderError
from adjudge.judge_training.data.hub import is_on_hub
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.validating.materials import file_facts
from adjudge.judges.presets import PRESETS
from adjudge.studies.matrix.arms import Arm
from adjudge.studies.matrix.identity import resolved
from adjudge.studies.matrix.keys import covers
from adjudge.studies.matrix.trained import judge_folder
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import MOCK

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["check_manifest", "make_manifest"]

_VERSION = 1
_LIBRARIES = ("adjudge", "torch", "trl", "transformers")
_MOST_SHOWN = 8
_ELSEWHERE = "give another output folder with -o"
_Facts = dict[str, Any]
T = TypeVar("T")


def make_manifest(study: StudyFile, arms: Sequence[Arm], folder: Path) -> _Facts:
    """The manifest of a study in ``folder``, as JSON has it.

    Hashes are of what a file comes to with every default in its place, so that comments and the
    order of keys count for nothing; ``shared`` is the hash of all that arms of a seed have in
    common. Of a judge that is asked over a network there are host and model, never a key. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    runs = {arm.name: arm.run(f"{study.where}: arm {arm.name}") for arm in arms}
    keys = {name: resolved(run, folder) for name, run in runs.items()}
    free = sorted({key for arm in arms for key in arm.declares})
    judges, trained = study.roles(), study.training_files(folder)
    return {
        "version": _VERSION,
        "label": study.label,
        "file": file_facts(Path(study.where))["sha256"] if Path(study.where).is_file() else None,
        "pilot": study.pilot,
        "seeds": list(study.seeds),
        "gold": {"name": study.gold, "sha256": _asked(study.gold_run(folder), folder)},
        "policies": {str(seed): _policy(study, seed) for seed in study.seeds},
        "judges": {
            name: {**judges[name], **_judge(study, name, folder, trained.get(name))}
            for name in study.scorers[:-1]
        },
        "best_of": study.best_of.model_dump(),
        "plans": [one.model_dump(mode="json") for one in study.plans],
        "arms": {arm.name: _arm(arm, keys[arm.name], free) for arm in arms},
        "versions": {"python": platform.python_version(), **dict(_versions())},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }


def check_manifest(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is worth a warning where a study goes on: other versions, another machine.

    Arms, judges, seeds, plans and best-of-n may be added, and labels changed. Raises
    :class:`~adjudge.errors.RunFolderError` naming what changed where that makes another study of
    it: an arm, judge, policy or gold that is made otherwise, or that is gone (what is reported
    would then depend on what was left out), other numbers of answers for best-of-n, a manifest that
    is damaged.
    """
    if old.get("version") != _VERSION:
        raise RunFolderError(
            f"manifest.json has version {old.get('version')!r}, this adjudge writes {_VERSION}; "
            f"{_ELSEWHERE}"
        )
    problems = [*_gone(old, new), *_changed(old, new)]
    if problems:
        more = len(problems) - _MOST_SHOWN
        was, now = (_part(one, "versions").get("adjudge") for one in (old, new))
        raise RunFolderError(
            f"the study in this folder was another: {'; '.join(problems[:_MOST_SHOWN])}"
            + (f"; and {more} more" if more > 0 else "")
            + (f" (it was begun by adjudge {was}, this is {now})" if was != now else "")
            + f". {_ELSEWHERE}"
        )
    return [
        f"{part}.{name} was {was!r} and is {new.get(part, {}).get(name)!r}"
        for part in ("versions", "machine")
        for name, was in _part(old, part).items()
        if new.get(part, {}).get(name) != was
    ]


def _gone(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    known = set(new["seeds"])
    if dropped := [seed for seed in _read(old, "seeds", list[int]) if seed not in known]:
        yield f"seeds {', '.join(map(str, dropped))} are gone"
    for part in ("judges", "arms"):
        for name, was in _entries(old, part).items():
            of_dropped = part == "arms" and was.get("seed") in dropped
            if name not in new[part] and not of_dropped:
                yield f"{part}.{name} is gone"


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What both have and do not make alike."""
    if old.get("gold") != new["gold"]:
        yield f"gold was {_named(old.get('gold'))} and is {_named(new['gold'])}, made otherwise"
    drawn, wanted = _read({"best_of": {}, **old}, "best_of", _Facts), new["best_of"]
    if drawn.get("answers") and wanted["answers"] and drawn != wanted:
        yield f"best_of was {drawn} and is {wanted}"
    for part in ("policies", "judges", "arms"):
        for name, was in _entries(old, part).items():
            now = new[part].get(name)
            if now is None:
                continue
            differing = [key for key in _MADE_BY if _differ(was.get(key), now.get(key))]
            yield from (f"{part}.{name}: {_MADE_BY[key]}" for key in differing)


_MADE_BY = {
    "sha256": "its settings have changed",
    "data": "its data have changed",
    "card": "it was trained anew",
}


def _differ(was: Any, now: Any) -> bool:
    """A card that was not there yet is no change."""
    return was is not None and now is not None and was != now


def _named(gold: Any) -> str:
    return repr(gold.get("name")) if isinstance(gold, Mapping) else "not said"


def _entries(manifest: Mapping[str, Any], part: str) -> dict[str, _Facts]:
    return _read(manifest, part, dict[str, _Facts])


def _part(manifest: Mapping[str, Any], part: str) -> _Facts:
    return _read(manifest, part, _Facts)


def _read(manifest: Mapping[str, Any], part: str, kind: type[T]) -> T:
    if manifest.get(part) is None:
        raise RunFolderError(f"manifest.json says nothing of {part}; {_ELSEWHERE}")
    try:
        return msgspec.convert(manifest[part], kind)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"manifest.json: {part}: {error}; {_ELSEWHERE}") from None


def _arm(arm: Arm, keys: Mapping[str, Any], free: Sequence[str]) -> _Facts:
    shared = {k: v for k, v in keys.items() if not _is_free(k, free)}
    return {
        "judge": arm.judge,
        "mitigation": arm.mitigation,
        "seed": arm.seed,
        "levels": dict(arm.levels),
        "plans": list(arm.plans),
        "sha256": _digest({k: v for k, v in keys.items() if k != "model.label"}),
        "shared": _digest(shared),
        "data": keys.get("rollout.dataset.sha256"),
    }


def _is_free(key: str, free: Sequence[str]) -> bool:
    return key == "model.label" or any(covers(one, key) for one in free)


def _policy(study: StudyFile, seed: int) -> _Facts:
    trained = study.policy_file(seed)
    if trained is not None:
        return _training(trained)
    run = study.first_run(seed)
    keys = resolved(run)
    wanted = ("model.base", "training.warm_start_iterations", "training.seed", "rollout.env_name")
    said = {key: keys.get(key) for key in (*wanted, "rollout.dataset.sha256")}
    return {"base": run.model.base, "sha256": _digest(said)}


def _judge(study: StudyFile, name: str, folder: Path, trained: JudgeFile | None) -> _Facts:
    """What a judge is: how it is made, or where it is asked."""
    judge, run = study.judges.get(name), study.scorer_run(name, folder)
    facts: _Facts = {"held_out": judge is not None and judge.held_out}
    facts["sha256"] = _asked(run, folder)
    if judge is not None and judge.members is not None:
        facts["members"] = judge.members
    elif trained is not None:
        card = Path(judge_folder(folder, name)) / "judge.json"
        facts |= _training(trained, folder)
        facts["card"] = file_facts(card)["sha256"] if card.is_file() else None
    elif run.judge.model:
        facts["endpoint"] = {"host": _host(run), "model": run.judge.model}
    return facts


def _asked(run: RunFile, folder: Path) -> str:
    """The hash of what is asked, and of whom; how policies are trained is none of it."""
    keys = resolved(run, folder)
    return _digest({k: v for k, v in keys.items() if k.startswith(("graders.", "judge."))})


def _training(judge: JudgeFile, root: Path | None = None) -> _Facts:
    """The settings of a training file, and the content of its data."""
    said = judge.model_dump(mode="json", exclude={"data": {"train", "val"}, "model": {"label"}})
    if root is not None:  # a judge or policy of the study itself, wherever it lies
        said["model"]["path"] = str(said["model"]["path"]).removeprefix(str(root.absolute()))
    names = [*judge.data.train, *judge.data.val]
    data = [
        name if is_on_hub(name) or not path.is_file() else file_facts(path)["sha256"]
        for name, path in ((one, judge.folder / one) for one in names)
    ]
    return {"base": said["model"]["path"], "sha256": _digest(said), "data": _digest(data)}


def _host(run: RunFile) -> str | None:
    """Where a judge is asked; what else stands in its address may be secret."""
    judge, preset = run.judge, PRESETS.get(run.judge.type)
    if judge.base_url == MOCK:
        return MOCK
    address = judge.base_url or (preset.base_url if preset is not None else "")
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _versions() -> Iterator[tuple[str, str | None]]:
    """Of the libraries that train; ``None`` for one that is not installed."""
    for name in _LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, None


def _digest(value: Any) -> str:
    encoded = msgspec.json.encode(value, order="deterministic", enc_hook=str)
    return sha256(encoded).hexdigest()
