"""What can be asked of a sample: graders by their class names, each imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adjudge.graders.answers.grader import AnswerGrader as AnswerGrader
    from adjudge.graders.base import (
        BaseGrader as BaseGrader,
        FunctionGrader as FunctionGrader,
        RecordedGrader as RecordedGrader,
        RuleGrader as RuleGrader,
    )
    from adjudge.graders.code.blocks import SyntaxCheckGrader as SyntaxCheckGrader
    from adjudge.graders.code.grader import CodeExecutionGrader as CodeExecutionGrader
    from adjudge.graders.ifeval import (
        IFEvalGrader as IFEvalGrader,
        RepairedIFEvalGrader as RepairedIFEvalGrader,
    )
    from adjudge.graders.llm.comparison import PairwiseGrader as PairwiseGrader
    from adjudge.graders.llm.judge_grader import (
        JudgeGrader as JudgeGrader,
        LLMGrader as LLMGrader,
        ask_judge as ask_judge,
    )
    from adjudge.graders.llm.multi_judge import MultiJudge as MultiJudge
    from adjudge.graders.llm.numeric_scores import (
        ExpectedScoreGrader as ExpectedScoreGrader,
        ScalarGrader as ScalarGrader,
    )
    from adjudge.graders.llm.ranking import (
        ListwiseGrader as ListwiseGrader,
        TournamentGrader as TournamentGrader,
    )
    from adjudge.graders.llm.reply_forms import FieldsForm as FieldsForm, ScoreForm as ScoreForm
    from adjudge.graders.llm.rubric import RubricGrader as RubricGrader
    from adjudge.graders.llm.shipped_graders import (
        CorrectnessGrader as CorrectnessGrader,
        HallucinationGrader as HallucinationGrader,
        HarmfulnessGrader as HarmfulnessGrader,
        InstructionFollowingGrader as InstructionFollowingGrader,
        MemoryGrader as MemoryGrader,
        PlanFeasibilityGrader as PlanFeasibilityGrader,
        ReflectionAccuracyGrader as ReflectionAccuracyGrader,
        RelevanceGrader as RelevanceGrader,
        ResponseCompletenessGrader as ResponseCompletenessGrader,
        ResponseHelpfulnessGrader as ResponseHelpfulnessGrader,
        ToolSelectionGrader as ToolSelectionGrader,
    )
    from adjudge.graders.llm.trajectory import (
        TrajectoryAccuracyGrader as TrajectoryAccuracyGrader,
        TrajectoryComprehensiveGrader as TrajectoryComprehensiveGrader,
    )
    from adjudge.graders.rules.json_graders import (
        JsonMatchGrader as JsonMatchGrader,
        JsonSchemaGrader as JsonSchemaGrader,
        JsonValidatorGrader as JsonValidatorGrader,
    )
    from adjudge.graders.rules.redundancy import (
        ActionLoopDetectionGrader as ActionLoopDetectionGrader,
        ObservationInformationGainGrader as ObservationInformationGainGrader,
        ToolUsageEfficiencyGrader as ToolUsageEfficiencyGrader,
        TrajectoryStepEfficiencyGrader as TrajectoryStepEfficiencyGrader,
    )
    from adjudge.graders.rules.response_form import (
        LanguageGrader as LanguageGrader,
        LengthPenaltyGrader as LengthPenaltyGrader,
        NgramRepetitionPenaltyGrader as NgramRepetitionPenaltyGrader,
        ReasoningFormatGrader as ReasoningFormatGrader,
        ReasoningToolCallFormatGrader as ReasoningToolCallFormatGrader,
        SoftOverlongPunishmentGrader as SoftOverlongPunishmentGrader,
    )
    from adjudge.graders.rules.similarity import (
        SimilarityGrader as SimilarityGrader,
        StringMatchGrader as StringMatchGrader,
    )
    from adjudge.graders.rules.trajectory import (
        ToolCallPrecisionRecallMatchGrader as ToolCallPrecisionRecallMatchGrader,
        ToolCallStepSequenceMatchGrader as ToolCallStepSequenceMatchGrader,
    )
    from adjudge.graders.verif import VerIFGrader as VerIFGrader

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


def __getattr__(name: str) -> object:
    if name not in (homes := _find_homes()):
        raise AttributeError(f"module 'adjudge.graders' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(homes[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_find_homes()])


def _find_homes() -> dict[str, str]:
    """The module of each name."""
    from adjudge.graders.registry import SHIPPED  # noqa: PLC0415  (brings pydantic)

    targets = (target.partition(":") for target in SHIPPED.values())
    return _UNLISTED | {class_name: module for module, _, class_name in targets}
