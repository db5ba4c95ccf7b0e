"""adjudge turns rollouts into rewards you can train on.

The names below are the public API; each is imported when it is first used, and its docstring has
an example that the tests execute. :func:`grade` and :func:`make_reward` come first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adjudge.version import __version__

__all__ = [
    "AnthropicChatModel",
    "BaseGrader",
    "ChatModel",
    "ConfigError",
    "ErrorKind",
    "FunctionGrader",
    "GradedRun",
    "GraderConfig",
    "GraderError",
    "GraderMode",
    "GraderRank",
    "GraderResult",
    "GraderScore",
    "GradingFailure",
    "GradingRunner",
    "Journal",
    "JudgeUnavailable",
    "LLMGrader",
    "Message",
    "OpenAIChatModel",
    "PairwiseGrader",
    "Provenance",
    "RecordedModel",
    "RewardFunction",
    "RewardResult",
    "RewardSample",
    "RewardSpec",
    "Role",
    "Rubric",
    "RubricGrader",
    "RuleGrader",
    "Sample",
    "ScriptedModel",
    "SpecRewardFunction",
    "Usage",
    "__version__",
    "grade",
    "make_reward",
]

if TYPE_CHECKING:
    from adjudge.api import grade, make_reward
    from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeUnavailable
    from adjudge.graders.base import BaseGrader, FunctionGrader, RuleGrader
    from adjudge.graders.binding import GraderConfig
    from adjudge.graders.llm.comparison import PairwiseGrader
    from adjudge.graders.llm.judge_grader import LLMGrader
    from adjudge.graders.llm.rubric import RubricGrader
    from adjudge.judges.base import ChatModel
    from adjudge.judges.models.http import AnthropicChatModel, OpenAIChatModel
    from adjudge.judges.models.offline import RecordedModel, ScriptedModel
    from adjudge.rewards.function import RewardFunction, SpecRewardFunction
    from adjudge.rewards.spec import RewardSpec
    from adjudge.rubrics.rubric import Rubric
    from adjudge.runner.journal import Journal
    from adjudge.runner.runner import GradingRunner
    from adjudge.runs.job import GradedRun
    from adjudge.types import (
        GraderError,
        GraderMode,
        GraderRank,
        GraderResult,
        GraderScore,
        Message,
        Provenance,
        RewardResult,
        RewardSample,
        Role,
        Sample,
        Usage,
    )


_HOME = {
    "adjudge.api": ("grade", "make_reward"),
    "adjudge.errors": ("ConfigError", "ErrorKind", "GradingFailure", "JudgeUnavailable"),
    "adjudge.graders.base": ("BaseGrader", "FunctionGrader", "RuleGrader"),
    "adjudge.graders.llm.comparison": ("PairwiseGrader",),
    "adjudge.graders.llm.judge_grader": ("LLMGrader",),
    "adjudge.graders.llm.rubric": ("RubricGrader",),
    "adjudge.judges.base": ("ChatModel",),
    "adjudge.judges.models.http": ("AnthropicChatModel", "OpenAIChatModel"),
    "adjudge.judges.models.offline": ("RecordedModel", "ScriptedModel"),
    "adjudge.rewards.function": ("RewardFunction", "SpecRewardFunction"),
    "adjudge.rewards.spec": ("RewardSpec",),
    "adjudge.rubrics.rubric": ("Rubric",),
    "adjudge.graders.binding": ("GraderConfig",),
    "adjudge.runner.journal": ("Journal",),
    "adjudge.runner.runner": ("GradingRunner",),
    "adjudge.runs.job": ("GradedRun",),
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
