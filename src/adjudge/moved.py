"""Old import paths that files and programs of users name, for one more version.

A reward spec, a run file or a study may say ``type = "adjudge.training.task:CapitalGrader"``, and a
program ``from adjudge.environments import Episode``. The package's finder asks here what nothing
else finds; the new module is imported under the old name, with a warning. Nothing inside adjudge
uses an old path.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

from adjudge.installation import LAB, install_command

MOVED_MODULES = {
    "adjudge.client.system": "adjudge.client.reward_system",
    "adjudge.client.wire": "adjudge.wire",
    "adjudge.environments": "adjudge_lab.environments",
    "adjudge.graders.function": "adjudge.graders.base",
    "adjudge.graders.instructions.report": "adjudge_lab.evaluation.ifeval.report",
    "adjudge.judge_training.chain.gold": "adjudge_lab.judge_training.chain.evaluation",
    "adjudge.judge_training.generative.graders": "adjudge.graders.llm.trained_judge",
    "adjudge.judge_training.scalar.ranked": "adjudge.graders.llm.trained_judge",
    "adjudge.judges.cache": "adjudge.judges.cassette.cache",
    "adjudge.judges.connections": "adjudge.judges.endpoint.connections",
    "adjudge.judges.endpoint_settings": "adjudge.judges.endpoint.settings",
    "adjudge.judges.local": "adjudge.judges.models",
    "adjudge.judges.transport": "adjudge.judges.wire.transport",
    "adjudge.rewards.combine": "adjudge.rewards.aggregate",
    "adjudge.runner.question": "adjudge.runner.binding",
    "adjudge.studies.matrix.parametric": "adjudge_lab.studies.parametric_judge",
    "adjudge.training.judging": "adjudge_lab.rl.rewards",
    "adjudge.training.served": "adjudge_lab.rl.rewards",
    "adjudge.training.task": "adjudge_lab.rl.tiny",
    "adjudge.training.verl.main_ppo": "adjudge_lab.rl.verl.main_ppo",
    "adjudge.training.verl.scaffold_trainer": "adjudge_lab.rl.verl.scaffold_trainer",
}
"""The module that each old one is now. The names inside are the same."""

REMOVED_IN = "0.3"
"""The version without the old names; they warn until then (docs/stability.md)."""

_PARENTS = {
    ".".join(parts[:end])
    for parts in (old.split(".") for old in MOVED_MODULES)
    for end in range(2, len(parts))
}
_LAB = "adjudge_lab"


def find_moved_module(name: str) -> ModuleSpec | None:
    """The specification of an old module, or of a package that it stood in where that is gone.

    ``None`` for all other names.
    """
    if name in MOVED_MODULES:
        return ModuleSpec(name, _MovedModuleLoader(MOVED_MODULES[name]))  # type: ignore[arg-type]
    if name in _PARENTS and name not in _EXISTING:
        return ModuleSpec(name, None, is_package=True)  # an empty package
    return None


class _MovedModuleLoader:
    """Loads the new module under the old name."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The new module itself, so that its classes are the same objects under both names."""
        warnings.warn(
            f"{spec.name} is now {self._new}; adjudge {REMOVED_IN} does not have the old name",
            DeprecationWarning,
            stacklevel=2,
        )
        try:
            module = import_module(self._new)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != _LAB:
                raise
            message = f"{spec.name} is in the package {LAB}. Run: {install_command(package=LAB)}"
            raise ModuleNotFoundError(message, name=spec.name) from None
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back; it was executed when it was imported."""
        module.__spec__ = self._own_spec

    def get_code(self, name: str) -> CodeType | None:
        """The new module's code, for ``python -m`` with the old name."""
        found = find_spec(MOVED_MODULES[name])
        loader = None if found is None else found.loader
        code = None if loader is None else loader.get_code(self._new)  # type: ignore[attr-defined]
        return code if isinstance(code, CodeType) else None


_EXISTING = {"adjudge.client", "adjudge.graders", "adjudge.judges", "adjudge.rewards"} | {
    "adjudge.runner", "adjudge.service", "adjudge.service.formats", "adjudge.trainers",
}  # fmt: skip
