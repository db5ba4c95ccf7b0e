"""What a spec's rewards depend on: hashes that tell runs apart, and settings that say why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from adjudge.config import find_references
from adjudge.errors import Metadata
from adjudge.graders.base import GraderTraits
from adjudge.graders.registry import describe_object
from adjudge.judges.base import digest_source
from adjudge.rewards.spec import RewardSpec
from adjudge.version import __version__


def compute_fingerprint(spec: RewardSpec, graders: Mapping[str, object]) -> str:
    """The hash of a spec together with what its graders' answers depend on outside it.

    A grader's ``fingerprint`` speaks for the files it read; the source file of the user's own class
    speaks for itself. A journal or run folder of another fingerprint is another run.
    """
    said = [__version__, spec.hash]
    said += [
        describe_object(one.grader_type) for one in spec.graders if one.grader_type is not one.type
    ]
    for name in sorted(graders):
        said += _grader_fingerprints(name, graders[name])
    return _short_digest(said)


def describe_settings(spec: RewardSpec, graders: Mapping[str, object]) -> Metadata:
    """A spec as plain tables: defaults filled in, and what is not set left out.

    ``content`` of a grader is a digest of what its answers depend on outside the spec: files,
    code, judges' addresses. Where the spec's file has ``${NAME}``, so have the settings: the value
    may be a secret.
    """
    said = hide_variables(
        spec, spec.model_dump(mode="json", exclude_none=True, exclude={"version"})
    )
    tables = {}
    for entry, table in zip(spec.graders, said["graders"], strict=True):
        del table["name"]
        content = _short_digest(_grader_fingerprints(entry.name, graders[entry.name]))
        tables[entry.name] = {**table, "content": content}
    return {**said, "graders": tables}


def hide_variables(spec: RewardSpec, value: Any) -> Any:
    """Plain data made of a spec, with ``${NAME}`` again for each text that has it in the file."""
    path = Path(spec.where)
    written = find_references(path) if path.is_file() else {}

    def hide(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: hide(below) for key, below in inner.items()}
        if isinstance(inner, list):
            return [hide(below) for below in inner]
        return written.get(inner, inner) if isinstance(inner, str) else inner

    return hide(value)


def _short_digest(said: Sequence[str]) -> str:
    return sha256("\0".join(said).encode()).hexdigest()[:16]


def _grader_fingerprints(name: str, grader: object) -> list[str]:
    """What a grader's answers, and its judges' replies, depend on beside the spec."""
    traits = GraderTraits.of(grader)
    models = [GraderTraits.of(one).model for one in (grader, *traits.members)]
    return [
        name,
        str(traits.fingerprint),
        digest_source(type(grader)),
        # What ships has a fingerprint of its own, which a class derived from it may not know of.
        *(
            str(getattr(model, "fingerprint", "")) + digest_source(type(model))
            for model in models
            if model is not None
        ),
    ]
