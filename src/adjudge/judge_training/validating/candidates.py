"""Who is validated: a reward spec's grader, a trained judge's folder, or a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.graders.llm.scalar import ScalarGrader
from adjudge.judge_training.benchmarks.judges import Judge, grader_judge, spec_grader
from adjudge.judge_training.benchmarks.preference import ScoreScale
from adjudge.judge_training.card import CARD, SPEC, Card, read_card
from adjudge.judge_training.validating.materials import file_facts
from adjudge.judge_training.validating.recorded import (
    Recording,
    own_recording,
    published_recording,
)
from adjudge.judges.local import LocalScalarModel
from adjudge.rewards.spec import RewardSpec, is_trained_judge

__all__ = ["Candidate", "find_candidate"]

_ALLOWED = (
    "a reward spec (SPEC.toml, SPEC.toml#GRADER), the folder of a trained judge, a judgements.jsonl"
    " (or FILE#JUDGE), or LLMBar's recorded verdicts (.json, 'FOLDER/*/judges/NAME.json')"
)


@dataclass
class Candidate:
    """A judge to validate.

    One of ``judge`` (asked) and ``recording`` (read) is there. ``identity`` changes with whatever
    answers. ``scale`` says what its scores are, ``None``: only their order counts. ``folder`` is
    that of a trained judge, which has a card. ``concurrency`` is the spec's.
    """

    name: str
    kind: str
    identity: str
    judge: Judge | None = None
    recording: Recording | None = None
    scale: ScoreScale | None = None
    folder: Path | None = None
    card: Card | None = None
    concurrency: int = 32
    local_models: list[Any] = field(default_factory=list)


def find_candidate(target: str) -> Candidate:
    """The judge that ``target`` names; raises :class:`~adjudge.errors.ConfigError` for none."""
    name, part = _parts(target)
    path = Path(name)
    if "*" in name and not path.exists():
        return _published(name, _matching(path))
    if path.is_dir():
        return _trained(path)
    if not path.is_file():
        raise ConfigError(f"judge {target}: no such file or folder; a judge is {_ALLOWED}")
    if path.suffix == ".toml":
        return _of_spec(path, part)
    if path.suffix == ".jsonl":
        judge, recording = own_recording(path, part)
        digest = file_facts(path)["sha256"]
        return Candidate(judge, "recorded", f"{digest}#{part or judge}", recording=recording)
    if path.suffix == ".json":
        return _published(name, [path])
    raise ConfigError(f"judge {target}: is no judge; one is {_ALLOWED}")


def _parts(target: str) -> tuple[str, str | None]:
    """A file and what is chosen in it, ``FILE#PART``; names of files and parts may have a #."""
    if not Path(target).exists():
        for place, sign in enumerate(target):
            if sign == "#" and Path(target[:place]).is_file():
                return target[:place], target[place + 1 :]
    return target, None


def _matching(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)
    return sorted(root.glob(str(pattern.relative_to(root))))


def _published(pattern: str, paths: list[Path]) -> Candidate:
    if not paths:
        raise ConfigError(f"judge {pattern}: no file has such a name")
    digests = "".join(file_facts(path)["sha256"] for path in paths)
    identity = sha256(digests.encode()).hexdigest()
    stems = list(dict.fromkeys(path.stem for path in paths))
    name = stems[0] if len(stems) == 1 else pattern
    return Candidate(name, "recorded", identity, recording=published_recording(paths))


def _trained(folder: Path) -> Candidate:
    if not (folder / CARD).is_file():
        held = f"it holds {SPEC}: give {folder / SPEC}" if (folder / SPEC).is_file() else ""
        raise ConfigError(
            f"judge {folder}: holds no {CARD}, so no trained judge; {held or _ALLOWED}"
        )
    card = read_card(folder)
    name = card.label or folder.name
    if card.kind == "scalar":
        model = LocalScalarModel(folder)
        judge = grader_judge(ScalarGrader(model, "scalar"), name)
        found = Candidate(name, "scalar", model.fingerprint, judge, scale="logits")
        found.local_models = [model]
    else:
        if not (folder / SPEC).is_file():
            raise ConfigError(
                f"judge {folder}: its card says {card.kind!r} by {card.method}, and there is no "
                f"{SPEC} that asks it: it was not trained to judge"
            )
        found = _of_spec(folder / SPEC, None)
        found.name, found.kind = name, "generative"
    found.folder, found.card = folder, card
    return found


def _of_spec(path: Path, grader: str | None) -> Candidate:
    spec = RewardSpec.load(path)
    entry, built = spec_grader(spec, grader)
    judge = grader_judge(built, entry.name, entry.mapper)
    model = getattr(built, "model", None)
    local = getattr(model, "kind", "") == "local"
    fingerprint = getattr(model, "fingerprint", "") if local else ""
    name = path.stem if path.stem != "reward" else path.resolve().parent.name
    found = Candidate(
        name if grader is None else f"{name}#{grader}",
        "spec",
        f"{spec.hash}#{entry.name}#{fingerprint}",
        judge,
        scale=_scale(built),
        concurrency=spec.max_concurrency,
    )
    if local:
        found.local_models = [model]
    stated = (entry.model_extra or {}).get("card")  # that of a trained judge behind a server
    place = path.parent / stated if isinstance(stated, str) else getattr(model, "model", "")
    if place and is_trained_judge(place):
        found.folder, found.card = Path(place), read_card(place)
    return found


def _scale(built: Any) -> ScoreScale | None:
    """What a scalar grader's scores are; of others only the order is known."""
    if type(built) is not ScalarGrader:
        return None
    return "probabilities" if built.activation == "sigmoid" else "logits"
