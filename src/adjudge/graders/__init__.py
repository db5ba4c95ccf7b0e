"""What can be asked of a sample. Every grader is here by its class name, imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.graders.base import BaseGrader, RuleGrader
    from adjudge.graders.function import FunctionGrader
    from adjudge.graders.recorded import RecordedGrader
    from adjudge.graders.rules.action_loop import ActionLoopDetectionGrader
    from adjudge.graders.rules.answer import AnswerGrader
    from adjudge.graders.rules.code import CodeExecutionGrader, SyntaxCheckGrader
    from adjudge.graders.rules.efficiency import (
        ToolUsageEfficiencyGrader,
        TrajectoryStepEfficiencyGrader,
    )
    from adjudge.graders.rules.format import ReasoningFormatGrader, ReasoningToolCallFormatGrader
    from adjudge.graders.rules.information_gain import ObservationInformationGainGrader
    from adjudge.graders.rules.json_format import JsonSchemaGrader, JsonValidatorGrader
    from adjudge.graders.rules.json_match import JsonMatchGrader
    from adjudge.graders.rules.language import LanguageGrader
    from adjudge.graders.rules.length import LengthPenaltyGrader, SoftOverlongPunishmentGrader
    from adjudge.graders.rules.repetition import NgramRepetitionPenaltyGrader
    from adjudge.graders.rules.similarity import SimilarityGrader, StringMatchGrader
    from adjudge.graders.rules.tool_calls import (
        ToolCallPrecisionRecallMatchGrader,
        ToolCallStepSequenceMatchGrader,
    )

__all__ = [
    "ActionLoopDetectionGrader",
    "AnswerGrader",
    "BaseGrader",
    "CodeExecutionGrader",
    "FunctionGrader",
    "JsonMatchGrader",
    "JsonSchemaGrader",
    "JsonValidatorGrader",
    "LanguageGrader",
    "LengthPenaltyGrader",
    "NgramRepetitionPenaltyGrader",
    "ObservationInformationGainGrader",
    "ReasoningFormatGrader",
    "ReasoningToolCallFormatGrader",
    "RecordedGrader",
    "RuleGrader",
    "SimilarityGrader",
    "SoftOverlongPunishmentGrader",
    "StringMatchGrader",
    "SyntaxCheckGrader",
    "ToolCallPrecisionRecallMatchGrader",
    "ToolCallStepSequenceMatchGrader",
    "ToolUsageEfficiencyGrader",
    "TrajectoryStepEfficiencyGrader",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'adjudge.graders' has no attribute {name!r}")
    value = getattr(import_module(_module_of(name)), name)
    globals()[name] = value
    return value


def _module_of(name: str) -> str:
    if name in ("BaseGrader", "RuleGrader"):
        return "adjudge.graders.base"
    if name == "FunctionGrader":
        return "adjudge.graders.function"
    from adjudge.graders.registry import SHIPPED  # noqa: PLC0415  (brings pydantic)

    targets = (target.partition(":") for target in SHIPPED.values())
    return next(module for module, _, class_name in targets if class_name == name)
