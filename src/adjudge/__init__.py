"""adjudge turns rollouts into rewards you can train on.

The names below are the public door; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adjudge.moved import install_finder
from adjudge.version import __version__

__all__ = [
    "BaseGrader",
    "ErrorKind",
    "FunctionGrader",
    "GraderConfig",
    "GraderError",
    "GraderMode",
    "GraderRank",
    "GraderResult",
    "GraderScore",
    "GradingFailure",
    "GradingRunner",
    "Journal",
    "Message",
    "Provenance",
    "RewardFunction",
    "RewardResult",
    "RewardSample",
    "RewardSpec",
    "Role",
    "RuleGrader",
    "Sample",
    "SpecRewardFunction",
    "Usage",
    "__version__",
]

if TYPE_CHECKING:
    from adjudge.errors import ErrorKind, GradingFailure
    from adjudge.graders.base import BaseGrader, FunctionGrader, RuleGrader
    from adjudge.rewards.function import SpecRewardFunction
    from adjudge.rewards.spec import RewardSpec
    from adjudge.runner.binding import GraderConfig
    from adjudge.runner.journal import Journal
    from adjudge.runner.runner import GradingRunner
    from adjudge.types import (
        GraderError,
        GraderMode,
        GraderRank,
        GraderResult,
        GraderScore,
        Message,
        Provenance,
        RewardFunction,
        RewardResult,
        RewardSample,
        Role,
        Sample,
        Usage,
    )

install_finder()

_HOME = {
    "adjudge.errors": ("ErrorKind", "GradingFailure"),
    "adjudge.graders.base": ("BaseGrader", "FunctionGrader", "RuleGrader"),
    "adjudge.rewards.function": ("SpecRewardFunction",),
    "adjudge.types": ("RewardFunction", "RewardResult", "RewardSample"),
    "adjudge.rewards.spec": ("RewardSpec",),
    "adjudge.runner.journal": ("Journal",),
    "adjudge.runner.binding": ("GraderConfig",),
    "adjudge.runner.runner": ("GradingRunner",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'adjudge' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF.get(name, "adjudge.types")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
