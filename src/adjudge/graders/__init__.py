"""What can be asked of a sample: graders by their class names, each imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.graders.answers.grader import AnswerGrader
    from adjudge.graders.base import BaseGrader, FunctionGrader, RecordedGrader, RuleGrader
    from adjudge.graders.code.blocks import SyntaxCheckGrader
    from adjudge.graders.code.grader import CodeExecutionGrader
    from adjudge.graders.ifeval import IFEvalGrader, RepairedIFEvalGrader
    from adjudge.graders.llm.comparison import PairwiseGrader
    from adjudge.graders.llm.judge_grader import JudgeGrader, LLMGrader, ask_judge
    from adjudge.graders.llm.multi_judge import MultiJudge
    from adjudge.graders.llm.numeric_scores import ExpectedScoreGrader, ScalarGrader
    from adjudge.graders.llm.ranking import ListwiseGrader, TournamentGrader
    from adjudge.graders.llm.reply_forms import FieldsForm, ScoreForm
    from adjudge.graders.llm.rubric import RubricGrader
    from adjudge.graders.llm.shipped_graders import (
        CorrectnessGrader,
        HallucinationGrader,
        HarmfulnessGrader,
        InstructionFollowingGrader,
        MemoryGrader,
        PlanFeasibilityGrader,
        ReflectionAccuracyGrader,
        RelevanceGrader,
        ResponseCompletenessGrader,
        ResponseHelpfulnessGrader,
        ToolSelectionGrader,
    )
    from adjudge.graders.llm.trajectory import (
        TrajectoryAccuracyGrader,
        TrajectoryComprehensiveGrader,
    )
    from adjudge.graders.rules.json_graders import (
        JsonMatchGrader,
        JsonSchemaGrader,
        JsonValidatorGrader,
    )
    from adjudge.graders.rules.redundancy import (
        ActionLoopDetectionGrader,
        ObservationInformationGainGrader,
        ToolUsageEfficiencyGrader,
        TrajectoryStepEfficiencyGrader,
    )
    from adjudge.graders.rules.response_form import (
        LanguageGrader,
        LengthPenaltyGrader,
        NgramRepetitionPenaltyGrader,
        ReasoningFormatGrader,
        ReasoningToolCallFormatGrader,
        SoftOverlongPunishmentGrader,
    )
    from adjudge.graders.rules.similarity import SimilarityGrader, StringMatchGrader
    from adjudge.graders.rules.trajectory import (
        ToolCallPrecisionRecallMatchGrader,
        ToolCallStepSequenceMatchGrader,
    )
    from adjudge.graders.verif import VerIFGrader

__all__ = [
    "ActionLoopDetectionGrader",
    "AnswerGrader",
    "BaseGrader",
    "CodeExecutionGrader",
    "CorrectnessGrader",
    "ExpectedScoreGrader",
    "FieldsForm",
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
    "RepairedIFEvalGrader",
    "ResponseCompletenessGrader",
    "ResponseHelpfulnessGrader",
    "RubricGrader",
    "RuleGrader",
    "ScalarGrader",
    "ScoreForm",
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
    "ask_judge",
]


_UNLISTED = {
    "BaseGrader": "adjudge.graders.base",
    "FieldsForm": "adjudge.graders.llm.reply_forms",
    "FunctionGrader": "adjudge.graders.base",
    "JudgeGrader": "adjudge.graders.llm.judge_grader",
    "MultiJudge": "adjudge.graders.llm.multi_judge",
    "RuleGrader": "adjudge.graders.base",
    "ScoreForm": "adjudge.graders.llm.reply_forms",
    "ask_judge": "adjudge.graders.llm.judge_grader",
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
