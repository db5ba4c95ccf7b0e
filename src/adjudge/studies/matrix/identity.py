"""That arms differ in nothing but what the study is about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge.graders.registry import SHIPPED, grader_class, parameters
from adjudge.judge_training.validating.materials import file_facts
from adjudge.rewards.spec import GraderEntry
from adjudge.studies.matrix.arms import Arm
from adjudge.studies.matrix.keys import covers, dotted, leaves
from adjudge.training.runfile import RunFile

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["Difference", "check_arms", "config_diff", "resolved"]

_BY_SEED = ("training.seed", "model.base")
"""In these the arms of a cell differ: the seed, and the policy that was made from it."""
_NAMES = ("model.label", "logging.to")
"""What a run is called, and where its numbers go besides."""
_FILES = ("rollout.dataset", "model.custom_chat_template")
"""Keys whose file counts by its content, not by its name."""
_LOGIN = re.compile(r"//[^/\s]*@")
"""A name and password in an address: of no meaning here, and not to be shown."""
_MOST_SHOWN = 8


class Difference(NamedTuple):
    """A key in which two runs differ; ``None`` where a run does not have it."""

    key: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.key} ({_shown(self.left)}, {_shown(self.right)})"


def config_diff(left: RunFile, right: RunFile) -> list[Difference]:
    """The keys in which two runs differ, sorted, every default in its place.

    Graders are compared by name, data sets and rubrics by their content. Raises
    :class:`ConfigError` for a file that cannot be read.
    """
    return _differences(resolved(left), resolved(right))


def resolved(run: RunFile, root: Path | None = None) -> dict[str, Any]:
    """What a run comes to, by dotted key: no key that is not set, every default filled in.

    An address is without the name and password that may be in it. Paths below ``root`` are relative
    to it, so that they do not tell where that lies.
    """
    data = run.model_dump(exclude={"version", "kind", "graders"})
    data["evaluation"] |= {"instances": None, "seeds": run.evaluation.held_out}
    data["rollout"]["env_name"] = None if run.rollout.dataset is not None else run.env_name
    data["judge"]["folder"] = [_place(run.folder / one, root) for one in run.judge.folders] or None
    if run.judge.base_url is not None:
        data["judge"]["base_url"] = _LOGIN.sub("//", run.judge.base_url)
    base = run.folder / run.model.base
    if base.is_dir() or Path(run.model.base).is_absolute():
        data["model"]["base"] = _place(base, root)
    if run.rubric_file is not None:
        data["judge"]["rubric_dir"] = None
        data["judge"]["rubric_sha256"] = _content(run.rubric_file)
    found = dict(leaves(data))
    for key in _FILES:
        path = run.folder / str(found.get(key))
        if found.get(key) is not None and path.is_file():
            del found[key]
            found[f"{key}.sha256"] = _content(path)
    for grader in run.graders:
        name = dotted("graders", str(grader["name"]))
        found |= {f"{name}.{key}": value for key, value in leaves(_filled(grader, run.folder))}
    return {key: _plain(value) for key, value in sorted(found.items()) if value is not None}


def check_arms(study: StudyFile, arms: Sequence[Arm]) -> None:
    """Raise :class:`ConfigError` where what comes out could have another reason than is told.

    Arms of one seed may differ in what their judge and mitigation declare (a given arm: in what it
    says under ``differs``), arms of one cell in their seed, and no two arms are the same run. Each
    is a run by itself: one with a scaffold and no rubrics to show is none. Reads the data sets.
    """
    runs = {arm.name: arm.run(f"{study.where}: arm {arm.name}") for arm in arms}
    keys = {name: _compared(run) for name, run in runs.items()}
    for seed in dict.fromkeys(arm.seed for arm in arms):
        of_seed = [arm for arm in arms if arm.seed == seed]
        _check_shared(study, of_seed, keys)
        _check_distinct(study, of_seed, keys)
    _check_cells(study, arms, keys)


_Keys = Mapping[str, Mapping[str, Any]]


def _compared(run: RunFile) -> dict[str, Any]:
    return {key: value for key, value in resolved(run).items() if key not in _NAMES}


def _check_shared(study: StudyFile, arms: Sequence[Arm], keys: _Keys) -> None:
    """That arms which do not declare a key have one value for it."""
    found: dict[str, list[Difference]] = {}
    for key in sorted({key for arm in arms for key in keys[arm.name]}):
        bound = [arm for arm in arms if not any(covers(one, key) for one in arm.declares)]
        for arm in bound[1:]:
            left, right = (keys[one.name].get(key) for one in (bound[0], arm))
            if not _same(left, right):
                names = f"arms {bound[0].name} and {arm.name}"
                found.setdefault(names, []).append(Difference(key, left, right))
                break
    if not found:
        return
    names, differences = next(iter(found.items()))
    remedy = "; make them equal, or name what is meant in their differs" if study.given else ""
    raise ConfigError(
        f"{study.where}: {names} differ in {_listed(differences)}, which neither a judge nor a "
        f"mitigation of this study declares: what comes out could be either{remedy}"
    )


def _check_distinct(study: StudyFile, arms: Sequence[Arm], keys: _Keys) -> None:
    known: dict[bytes, Arm] = {}
    for arm in arms:
        said = msgspec.json.encode(keys[arm.name], order="sorted")
        if said in known:
            raise ConfigError(
                f"{study.where}: arms {known[said].name} and {arm.name} are the same run: nothing "
                "is compared; leave one out, or make them differ in what they are called by"
            )
        known[said] = arm


def _check_cells(study: StudyFile, arms: Sequence[Arm], keys: _Keys) -> None:
    cells: dict[tuple[str, str], list[Arm]] = defaultdict(list)
    for arm in arms:
        cells[arm.cell].append(arm)
    for first, *others in cells.values():
        for arm in others:
            differences = [
                one
                for one in _differences(keys[first.name], keys[arm.name])
                if one.key not in _BY_SEED
            ]
            if differences:
                raise ConfigError(
                    f"{study.where}: arms {first.name} and {arm.name} are of one cell and differ "
                    f"in {_listed(differences)}; only their seed may differ"
                )


def _filled(grader: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An entry of ``[[graders]]`` with the defaults of its type; without its name."""
    entry = GraderEntry.model_validate(dict(grader))
    said = entry.model_dump(exclude={"name"})
    return {**_defaults(entry.type, folder), **said, "type": SHIPPED.get(entry.type, entry.type)}


@lru_cache(maxsize=256)
def _defaults(kind: str, folder: Path) -> dict[str, Any]:
    found = parameters(grader_class(kind, folder))
    return {one.name: one.default for one in found if not (one.required or one.is_judge)}


def _content(path: Path) -> str:
    found = path.stat()
    return _hashed(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _hashed(path: Path, size: int, changed: int) -> str:  # noqa: ARG001  (else it is another file)
    """The same data set is that of many arms."""
    return str(file_facts(path)["sha256"])


def _place(path: Path, root: Path | None) -> str:
    """A path that is the same from wherever it was named."""
    absolute = path.resolve()
    if root is not None and absolute.is_relative_to(root.resolve()):
        return str(absolute.relative_to(root.resolve()))
    return str(absolute)


def _plain(value: Any) -> Any:
    """As JSON has it; 1 and 1.0 are one number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return msgspec.to_builtins(value, enc_hook=_named, str_keys=True, order="sorted")


def _named(value: Any) -> str:
    """What is no plain value, without its address in memory."""
    return str(value) if isinstance(value, Path | str) else type(value).__qualname__


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(key, left.get(key), right.get(key))
        for key in sorted({*left, *right})
        if not _same(left.get(key), right.get(key))
    ]


def _same(left: Any, right: Any) -> bool:
    """``True`` is not 1."""
    return type(left) is type(right) and bool(left == right)


def _listed(differences: Iterable[Difference]) -> str:
    shown = list(map(str, differences))
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f", and {more} more" if more > 0 else "")


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)[:80]
