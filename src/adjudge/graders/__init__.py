"""What can be asked of a sample. Every grader is here by its class name, imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.graders.base import BaseGrader, RuleGrader
    from adjudge.graders.function import FunctionGrader
    from adjudge.graders.instructions.grader import IFEvalGrader
    from adjudge.graders.llm.agent import (
        MemoryGrader,
        PlanFeasibilityGrader,
        ReflectionAccuracyGrader,
        ToolSelectionGrader,
    )
    from adjudge.graders.llm.expected import ExpectedScoreGrader
    from adjudge.graders.llm.judged import JudgeGrader
    from adjudge.graders.llm.listwise import ListwiseGrader
    from adjudge.graders.llm.llm_grader import LLMGrader
    from adjudge.graders.llm.multi import MultiJudge
    from adjudge.graders.llm.pairwise import PairwiseGrader
    from adjudge.graders.llm.quality import (
        CorrectnessGrader,
        HallucinationGrader,
        HarmfulnessGrader,
        InstructionFollowingGrader,
        RelevanceGrader,
        ResponseCompletenessGrader,
        ResponseHelpfulnessGrader,
    )
    from adjudge.graders.llm.rubric import RubricGrader
    from adjudge.graders.llm.scalar import ScalarGrader
    from adjudge.graders.llm.tournament import TournamentGrader
    from adjudge.graders.llm.trajectory import (
        TrajectoryAccuracyGrader,
        TrajectoryComprehensiveGrader,
    )
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
    from adjudge.graders.verif.grader import VerIFGrader

__all__ = [
    "ActionLoopDetectionGrader",
    "AnswerGrader",
    "BaseGrader",
    "CodeExecutionGrader",
    "CorrectnessGrader",
    "ExpectedScoreGrader",
    "FunctionGrader",
    "HallucinationGrader",
    "HarmfulnessGrader",
    "IFEvalGrader",
    "InstructionFollowingGrader",
    "JsonMatchGrader",
    "JsonSchemaGrader",
    "JsonValidatorGrader",
    "JudgeGrader",
    "LLMGrader",
    "LanguageGrader",
    "LengthPenaltyGrader",
    "ListwiseGrader",
    "MemoryGrader",
    "MultiJudge",
    "NgramRepetitionPenaltyGrader",
    "ObservationInformationGainGrader",
    "PairwiseGrader",
    "PlanFeasibilityGrader",
    "ReasoningFormatGrader",
    "ReasoningToolCallFormatGrader",
    "RecordedGrader",
    "ReflectionAccuracyGrader",
    "RelevanceGrader",
    "ResponseCompletenessGrader",
    "ResponseHelpfulnessGrader",
    "RubricGrader",
    "RuleGrader",
    "ScalarGrader",
    "SimilarityGrader",
    "SoftOverlongPunishmentGrader",
    "StringMatchGrader",
    "SyntaxCheckGrader",
    "ToolCallPrecisionRecallMatchGrader",
    "ToolCallStepSequenceMatchGrader",
    "ToolSelectionGrader",
    "ToolUsageEfficiencyGrader",
    "TournamentGrader",
    "TrajectoryAccuracyGrader",
    "TrajectoryComprehensiveGrader",
    "TrajectoryStepEfficiencyGrader",
    "VerIFGrader",
]


_UNLISTED = {
    "BaseGrader": "adjudge.graders.base",
    "FunctionGrader": "adjudge.graders.function",
    "JudgeGrader": "adjudge.graders.llm.judged",
    "MultiJudge": "adjudge.graders.llm.multi",
    "RuleGrader": "adjudge.graders.base",
}
"""Those that no ``type`` of a spec means."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'adjudge.graders' has no attribute {name!r}")
    value = getattr(import_module(_module_of(name)), name)
    globals()[name] = value
    return value


def _module_of(name: str) -> str:
    if name in _UNLISTED:
        return _UNLISTED[name]
    from adjudge.graders.registry import SHIPPED  # noqa: PLC0415  (brings pydantic)

    targets = (target.partition(":") for target in SHIPPED.values())
    return next(module for module, _, class_name in targets if class_name == name)
