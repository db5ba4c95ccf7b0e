"""What can be asked of a sample: graders by their class names, each imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adjudge.graders.answers.grader import AnswerGrader as AnswerGrader
    from adjudge.graders.base import BaseGrader as BaseGrader
    from adjudge.graders.base import FunctionGrader as FunctionGrader
    from adjudge.graders.base import RecordedGrader as RecordedGrader
    from adjudge.graders.base import RuleGrader as RuleGrader
    from adjudge.graders.code.execution import CodeExecutionGrader as CodeExecutionGrader
    from adjudge.graders.code.blocks import SyntaxCheckGrader as SyntaxCheckGrader
    from adjudge.graders.ifeval import IFEvalGrader as IFEvalGrader
    from adjudge.graders.ifeval import RepairedIFEvalGrader as RepairedIFEvalGrader
    from adjudge.graders.llm.comparison import PairwiseGrader as PairwiseGrader
    from adjudge.graders.llm.judge_grader import JudgeGrader as JudgeGrader
    from adjudge.graders.llm.judge_grader import LLMGrader as LLMGrader
    from adjudge.graders.llm.judge_grader import ask_judge as ask_judge
    from adjudge.graders.llm.multi_judge import MultiJudge as MultiJudge
    from adjudge.graders.llm.numeric_scores import ExpectedScoreGrader as ExpectedScoreGrader
    from adjudge.graders.llm.numeric_scores import ScalarGrader as ScalarGrader
    from adjudge.graders.llm.ranking import ListwiseGrader as ListwiseGrader
    from adjudge.graders.llm.ranking import TournamentGrader as TournamentGrader
    from adjudge.graders.llm.reply_forms import FieldsForm as FieldsForm
    from adjudge.graders.llm.reply_forms import ScoreForm as ScoreForm
    from adjudge.graders.llm.rubric import RubricGrader as RubricGrader
    from adjudge.graders.llm.shipped_graders import CorrectnessGrader as CorrectnessGrader
    from adjudge.graders.llm.shipped_graders import HallucinationGrader as HallucinationGrader
    from adjudge.graders.llm.shipped_graders import HarmfulnessGrader as HarmfulnessGrader
    from adjudge.graders.llm.shipped_graders import (
        InstructionFollowingGrader as InstructionFollowingGrader,
    )
    from adjudge.graders.llm.shipped_graders import MemoryGrader as MemoryGrader
    from adjudge.graders.llm.shipped_graders import PlanFeasibilityGrader as PlanFeasibilityGrader
    from adjudge.graders.llm.shipped_graders import (
        ReflectionAccuracyGrader as ReflectionAccuracyGrader,
    )
    from adjudge.graders.llm.shipped_graders import RelevanceGrader as RelevanceGrader
    from adjudge.graders.llm.shipped_graders import (
        ResponseCompletenessGrader as ResponseCompletenessGrader,
    )
    from adjudge.graders.llm.shipped_graders import (
        ResponseHelpfulnessGrader as ResponseHelpfulnessGrader,
    )
    from adjudge.graders.llm.shipped_graders import ToolSelectionGrader as ToolSelectionGrader
    from adjudge.graders.llm.trajectory import TrajectoryAccuracyGrader as TrajectoryAccuracyGrader
    from adjudge.graders.llm.trajectory import (
        TrajectoryComprehensiveGrader as TrajectoryComprehensiveGrader,
    )
    from adjudge.graders.rules.json_graders import JsonMatchGrader as JsonMatchGrader
    from adjudge.graders.rules.json_graders import JsonSchemaGrader as JsonSchemaGrader
    from adjudge.graders.rules.json_graders import JsonValidatorGrader as JsonValidatorGrader
    from adjudge.graders.rules.redundancy import (
        ActionLoopDetectionGrader as ActionLoopDetectionGrader,
    )
    from adjudge.graders.rules.redundancy import (
        ObservationInformationGainGrader as ObservationInformationGainGrader,
    )
    from adjudge.graders.rules.redundancy import (
        ToolUsageEfficiencyGrader as ToolUsageEfficiencyGrader,
    )
    from adjudge.graders.rules.redundancy import (
        TrajectoryStepEfficiencyGrader as TrajectoryStepEfficiencyGrader,
    )
    from adjudge.graders.rules.response_form import LanguageGrader as LanguageGrader
    from adjudge.graders.rules.response_form import LengthPenaltyGrader as LengthPenaltyGrader
    from adjudge.graders.rules.response_form import (
        NgramRepetitionPenaltyGrader as NgramRepetitionPenaltyGrader,
    )
    from adjudge.graders.rules.response_form import ReasoningFormatGrader as ReasoningFormatGrader
    from adjudge.graders.rules.response_form import (
        ReasoningToolCallFormatGrader as ReasoningToolCallFormatGrader,
    )
    from adjudge.graders.rules.response_form import (
        SoftOverlongPunishmentGrader as SoftOverlongPunishmentGrader,
    )
    from adjudge.graders.rules.similarity import SimilarityGrader as SimilarityGrader
    from adjudge.graders.rules.similarity import StringMatchGrader as StringMatchGrader
    from adjudge.graders.rules.trajectory import (
        ToolCallPrecisionRecallMatchGrader as ToolCallPrecisionRecallMatchGrader,
    )
    from adjudge.graders.rules.trajectory import (
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
