"""How the arms of a study were made: settings, differences, the manifest, and the folder it claims.

Arms differ in nothing but what the study is about. The manifest says how they were made, and a
folder is claimed for one file and for what that file still means.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

import adjudge
from adjudge.config import (
    SettingDifference,
    compare_settings,
    dotted_key,
    flatten,
    is_same_setting,
)
from adjudge.datasets.files import hash_content
from adjudge.datasets.sources import is_on_hub
from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.registry import SHIPPED, list_parameters, load_grader_class
from adjudge.judges.presets import PRESETS
from adjudge.rewards.spec import GraderEntry
from adjudge.runs.folder import RunFolder
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.rl.rewards import format_toml
from adjudge_lab.rl.runfile import MOCK_BASE_URL, RunFile
from adjudge_lab.studies.cells import Arm, judge_folder
from adjudge_lab.studies.prerequisites import (
    judge_training_files,
    policy_tables,
    scorer_tables,
)
from adjudge_lab.studies.study import Study
from adjudge_lab.studies.study_file import covers_key

_NAME_KEYS = ("model.label", "logging.to")
"""What a run is called, and where its numbers go besides."""
_FILE_KEYS = ("rollout.dataset", "model.custom_chat_template")
"""Keys that name a file, which counts by its content, not by its name."""
_LOGIN = re.compile(r"//[^/\s]*@")
"""A name and password in an address: of no meaning here, and not to be shown."""
_MAX_DIFFERENCES = 8


def diff_settings(left: RunFile, right: RunFile) -> list[SettingDifference]:
    """The keys in which two runs differ, sorted, every default in its place.

    Graders are compared by name, data sets and rubrics by their content. Raises
    :class:`ConfigError` for a file that cannot be read.
    """
    return compare_settings(resolve_settings(left), resolve_settings(right))


def resolve_settings(run: RunFile, root: Path | None = None) -> dict[str, Any]:
    """The settings of a run by dotted key, unset keys left out and defaults filled in.

    An address is without the name and password that may be in it. Paths below ``root`` are relative
    to it, so that they do not show where that is.
    """
    data = run.model_dump(exclude={"version", "kind", "graders"})
    data["evaluation"] |= {"instances": None, "seeds": run.evaluation.held_out}
    data["rollout"]["env_name"] = None if run.rollout.dataset is not None else run.env_name
    data["judge"]["folder"] = [
        _relative_path(run.folder / one, root) for one in run.judge.folders
    ] or None
    if urls := [_LOGIN.sub("//", url) for url in run.judge.base_urls]:
        data["judge"]["base_url"] = urls if len(urls) > 1 else urls[0]
    base = run.folder / run.model.base
    if base.is_dir() or Path(run.model.base).is_absolute():
        data["model"]["base"] = _relative_path(base, root)
    if run.rubric_file is not None:
        data["judge"]["rubric_dir"] = None
        data["judge"]["rubric_sha256"] = _file_digest(run.rubric_file)
    found = dict(flatten(data))
    for key in _FILE_KEYS:
        path = run.folder / str(found.get(key))
        if found.get(key) is not None and path.is_file():
            del found[key]
            found[f"{key}.sha256"] = _file_digest(path)
    for grader in run.graders:
        name = dotted_key("graders", str(grader["name"]))
        found |= {
            f"{name}.{key}": value for key, value in flatten(_grader_settings(grader, run.folder))
        }
    return {key: _plain_value(value) for key, value in sorted(found.items()) if value is not None}


def check_arms(study: Study, arms: Sequence[Arm]) -> None:
    """Raise :class:`ConfigError` where results could have another reason than is declared.

    Arms of one seed may differ in what their judge and mitigation declare, and no two arms are the
    same run. Each is a run by itself: a scaffold without rubrics to show is refused. Reads the data
    sets.
    """
    runs = {arm.name: arm.run(f"{study.where}: arm {arm.name}") for arm in arms}
    keys = {name: _compared_settings(run) for name, run in runs.items()}
    for seed in dict.fromkeys(arm.seed for arm in arms):
        of_seed = [arm for arm in arms if arm.seed == seed]
        _check_shared(study, of_seed, keys)
        _check_distinct(study, of_seed, keys)


_SettingsByArm = Mapping[str, Mapping[str, Any]]


def _compared_settings(run: RunFile) -> dict[str, Any]:
    return {key: value for key, value in resolve_settings(run).items() if key not in _NAME_KEYS}


def _check_shared(study: Study, arms: Sequence[Arm], keys: _SettingsByArm) -> None:
    """That arms which do not declare a key have one value for it."""
    found: dict[str, list[SettingDifference]] = {}
    for key in sorted({key for arm in arms for key in keys[arm.name]}):
        bound = [arm for arm in arms if not any(covers_key(one, key) for one in arm.declares)]
        for arm in bound[1:]:
            left, right = (keys[one.name].get(key) for one in (bound[0], arm))
            if not is_same_setting(left, right):
                names = f"arms {bound[0].name} and {arm.name}"
                found.setdefault(names, []).append(SettingDifference(key, left, right))
                break
    if not found:
        return
    names, differences = next(iter(found.items()))
    raise ConfigError(
        f"{study.where}: {names} differ in {_format_differences(differences)}, which no judge or "
        f"mitigation of this study declares, so an effect could come from either"
    )


def _check_distinct(study: Study, arms: Sequence[Arm], keys: _SettingsByArm) -> None:
    known: dict[bytes, Arm] = {}
    for arm in arms:
        said = msgspec.json.encode(keys[arm.name], order="sorted")
        if said in known:
            raise ConfigError(
                f"{study.where}: arms {known[said].name} and {arm.name} are the same run, so "
                "nothing is compared. Leave one out, or make them differ in what they are named by."
            )
        known[said] = arm


def _grader_settings(grader: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An entry of ``[[graders]]`` with the defaults of its type; without its name."""
    entry = GraderEntry.model_validate(dict(grader))
    said = entry.model_dump(exclude={"name"})
    return {**_defaults(entry.type, folder), **said, "type": SHIPPED.get(entry.type, entry.type)}


@lru_cache(maxsize=256)
def _defaults(kind: str, folder: Path) -> dict[str, Any]:
    found = list_parameters(load_grader_class(kind, folder))
    return {one.name: one.default for one in found if not (one.required or one.is_judge)}


def _file_digest(path: Path) -> str:
    found = path.stat()
    return _cached_digest(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_digest(path: Path, size: int, changed: int) -> str:  # noqa: ARG001  (else it is another file)
    """The same data set is that of many arms."""
    return str(hash_content(path)["sha256"])


def _relative_path(path: Path, root: Path | None) -> str:
    """A path that is the same from wherever it was named."""
    absolute = path.resolve()
    if root is not None and absolute.is_relative_to(root.resolve()):
        return str(absolute.relative_to(root.resolve()))
    return str(absolute)


def _plain_value(value: Any) -> Any:
    """As JSON has it; 1 and 1.0 are one number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return msgspec.to_builtins(value, enc_hook=_describe_object, str_keys=True, order="sorted")


def _describe_object(value: Any) -> str:
    """What is no plain value, without its address in memory."""
    return str(value) if isinstance(value, Path | str) else type(value).__qualname__


def _format_differences(differences: Iterable[SettingDifference]) -> str:
    shown = list(map(str, differences))
    more = len(shown) - _MAX_DIFFERENCES
    return ", ".join(shown[:_MAX_DIFFERENCES]) + (f", and {more} more" if more > 0 else "")


_LIBRARIES = ("adjudge", "torch", "trl", "transformers")
_MAX_PROBLEMS = 8
_OTHER_FOLDER_HINT = "Give another output folder with -o."
_ManifestPart = dict[str, Any]
_T = TypeVar("_T")


def make_manifest(study: Study, arms: Sequence[Arm], folder: Path) -> _ManifestPart:
    """The manifest of a study in ``folder``, as JSON has it.

    Hashes are of a file's settings with all defaults filled in, so that comments and the
    order of keys count for nothing; ``shared`` is the hash of all that arms of a seed have in
    common. Of a judge that is asked over a network there are host and model, never a key. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    runs = {arm.name: arm.run(f"{study.where}: arm {arm.name}") for arm in arms}
    keys = {name: resolve_settings(run, folder) for name, run in runs.items()}
    free = sorted({key for arm in arms for key in arm.declares})
    judges, trained = study.roles(), judge_training_files(study, folder)
    gold = scorer_tables(study, study.gold, folder).run()
    return {
        "label": study.label,
        "file": hash_content(Path(study.where))["sha256"] if Path(study.where).is_file() else None,
        "pilot": study.pilot,
        "seeds": list(study.seeds),
        "gold": {"name": study.gold, "sha256": _reward_digest(gold, folder)},
        "policies": {str(seed): _policy_entry(study, seed) for seed in study.seeds},
        "judges": {
            name: {**judges[name], **_judge_entry(study, name, folder, trained.get(name))}
            for name in study.scorers[:-1]
        },
        "best_of": study.best_of.model_dump(),
        "plans": [one.model_dump(mode="json") for one in study.plans],
        "arms": {arm.name: _arm_entry(arm, keys[arm.name], free) for arm in arms},
        "versions": {"python": platform.python_version(), **dict(_library_versions())},
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
    problems = [*_find_removed(old, new), *_find_changed(old, new)]
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        was, now = (_read_part(one, "versions").get("adjudge") for one in (old, new))
        raise RunFolderError(
            f"the study in this folder was another: {'; '.join(problems[:_MAX_PROBLEMS])}"
            + (f"; and {more} more" if more > 0 else "")
            + (f" (it was begun by adjudge {was}, this is {now})" if was != now else "")
            + f". {_OTHER_FOLDER_HINT}"
        )
    return [
        f"{part}.{name} was {was!r} and is {new.get(part, {}).get(name)!r}"
        for part in ("versions", "machine")
        for name, was in _read_part(old, part).items()
        if new.get(part, {}).get(name) != was
    ]


def _find_removed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    known = set(new["seeds"])
    if dropped := [seed for seed in _convert_part(old, "seeds", list[int]) if seed not in known]:
        yield f"seeds {', '.join(map(str, dropped))} are gone"
    for part in ("judges", "arms"):
        for name, was in _read_entries(old, part).items():
            of_dropped = part == "arms" and was.get("seed") in dropped
            if name not in new[part] and not of_dropped:
                yield f"{part}.{name} is gone"


def _find_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What both have and do not make alike."""
    if old.get("gold") != new["gold"]:
        yield (
            f"gold was {_gold_name(old.get('gold'))} and is {_gold_name(new['gold'])}, made "
            "otherwise"
        )
    drawn, wanted = _convert_part({"best_of": {}, **old}, "best_of", _ManifestPart), new["best_of"]
    if drawn.get("answers") and wanted["answers"] and drawn != wanted:
        yield f"best_of was {drawn} and is {wanted}"
    for part in ("policies", "judges", "arms"):
        for name, was in _read_entries(old, part).items():
            now = new[part].get(name)
            if now is None:
                continue
            differing = [key for key in _CHANGE_MESSAGES if _differ(was.get(key), now.get(key))]
            yield from (f"{part}.{name}: {_CHANGE_MESSAGES[key]}" for key in differing)


_CHANGE_MESSAGES = {
    "sha256": "its settings have changed",
    "data": "its data have changed",
    "card": "it was trained anew",
}


def _differ(was: Any, now: Any) -> bool:
    """A card that was not there yet is no change."""
    return was is not None and now is not None and was != now


def _gold_name(gold: Any) -> str:
    return repr(gold.get("name")) if isinstance(gold, Mapping) else "not said"


def _read_entries(manifest: Mapping[str, Any], part: str) -> dict[str, _ManifestPart]:
    return _convert_part(manifest, part, dict[str, _ManifestPart])


def _read_part(manifest: Mapping[str, Any], part: str) -> _ManifestPart:
    return _convert_part(manifest, part, _ManifestPart)


def _convert_part(manifest: Mapping[str, Any], part: str, kind: type[_T]) -> _T:
    if manifest.get(part) is None:
        raise RunFolderError(f"manifest.json says nothing of {part}. {_OTHER_FOLDER_HINT}")
    try:
        return msgspec.convert(manifest[part], kind)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"manifest.json: {part}: {error}. {_OTHER_FOLDER_HINT}") from None


def _arm_entry(arm: Arm, keys: Mapping[str, Any], free: Sequence[str]) -> _ManifestPart:
    shared = {k: v for k, v in keys.items() if not _is_free(k, free)}
    return {
        "judge": arm.judge,
        "mitigation": arm.mitigation,
        "seed": arm.seed,
        "levels": dict(arm.levels),
        "plans": list(arm.plans),
        "sha256": _settings_digest({k: v for k, v in keys.items() if k != "model.label"}),
        "shared": _settings_digest(shared),
        "data": keys.get("rollout.dataset.sha256"),
    }


def _is_free(key: str, free: Sequence[str]) -> bool:
    return key == "model.label" or any(covers_key(one, key) for one in free)


def _policy_entry(study: Study, seed: int) -> _ManifestPart:
    first = policy_tables(study, seed)
    if study.policy is not None:
        return _training_entry(first.training())
    run = first.run()
    keys = resolve_settings(run)
    wanted = ("model.base", "training.warm_start_iterations", "training.seed", "rollout.env_name")
    said = {key: keys.get(key) for key in (*wanted, "rollout.dataset.sha256")}
    return {"base": run.model.base, "sha256": _settings_digest(said)}


def _judge_entry(study: Study, name: str, folder: Path, trained: JudgeFile | None) -> _ManifestPart:
    """What a judge is: how it is made, or where it is asked."""
    judge, run = study.judges.get(name), scorer_tables(study, name, folder).run()
    facts: _ManifestPart = {"held_out": judge is not None and judge.held_out}
    facts["sha256"] = _reward_digest(run, folder)
    if judge is not None and judge.members is not None:
        facts["members"] = judge.members
    elif trained is not None:
        card = Path(judge_folder(folder, name)) / "judge.json"
        facts |= _training_entry(trained, folder)
        facts["card"] = hash_content(card)["sha256"] if card.is_file() else None
    elif run.judge.model:
        facts["endpoint"] = {"host": _judge_host(run), "model": run.judge.model}
    return facts


def _reward_digest(run: RunFile, folder: Path) -> str:
    """The hash of what is asked, and of whom; not of how policies are trained."""
    keys = resolve_settings(run, folder)
    return _settings_digest({k: v for k, v in keys.items() if k.startswith(("graders.", "judge."))})


def _training_entry(judge: JudgeFile, root: Path | None = None) -> _ManifestPart:
    """The settings of a training file, and the content of its data."""
    said = judge.model_dump(mode="json", exclude={"data": {"train", "val"}, "model": {"label"}})
    if root is not None:  # a judge or policy of the study itself, wherever it lies
        said["model"]["path"] = str(said["model"]["path"]).removeprefix(str(root.absolute()))
    names = [*judge.data.train, *judge.data.val]
    data = [
        name if is_on_hub(name) or not path.is_file() else hash_content(path)["sha256"]
        for name, path in ((one, judge.folder / one) for one in names)
    ]
    return {
        "base": said["model"]["path"],
        "sha256": _settings_digest(said),
        "data": _settings_digest(data),
    }


def _judge_host(run: RunFile) -> str | None:
    """Where a judge is asked; the rest of its address may be secret."""
    judge, preset = run.judge, PRESETS.get(run.judge.type)
    if judge.base_url == MOCK_BASE_URL:
        return MOCK_BASE_URL
    address = next(iter(judge.base_urls), "" if preset is None else preset.base_url)
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _library_versions() -> Iterator[tuple[str, str | None]]:
    """Of the libraries that train; ``None`` for one that is not installed."""
    for name in _LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, None


def _settings_digest(value: Any) -> str:
    encoded = msgspec.json.encode(value, order="deterministic", enc_hook=str)
    return sha256(encoded).hexdigest()


class StudyFolder(RunFolder):
    """``path``, claimed for the study of ``source`` that ``manifest`` describes, or taken up again.

    ``warnings``: what is worth saying where a study is gone on with. Raises
    :class:`~adjudge.errors.RunFolderError` for the folder of something else, or of a study with
    arms of another meaning.
    """

    manifest_name = "manifest.json"

    def __init__(self, path: Path, source: Path, manifest: Mapping[str, Any]) -> None:
        self.warnings: list[str] = []
        self._manifest, self._source = manifest, source.read_bytes()
        super().__init__(path, manifest, {}, outputs=("config.toml",))

    def _check(self, known: Mapping[str, Any]) -> None:
        self.warnings = check_manifest(known, self._manifest)

    def _prepare(self) -> None:
        self.write("study.toml", self._source)
        self.write_manifest(self._manifest)

    def write_toml(self, name: str, data: Mapping[str, Any]) -> Path:
        """Plain tables as a file below the folder; its path."""
        return self.write(name, format_toml(dict(data)).encode())

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write ``manifest``, of what is there by now."""
        self.facts = {"adjudge": adjudge.__version__, "created": self.created, **manifest}
        self.write_json(self.manifest_name, self.facts)
