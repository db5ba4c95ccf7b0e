"""Which ``type`` of a reward spec means which grader, and what parameters it takes."""

from __future__ import annotations

import copy
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from adjudge.config import unknown_key
from adjudge.config_tables import check_setting
from adjudge.errors import ConfigError, Fields, Metadata
from adjudge.extensions import load_extension
from adjudge.graders.base import FunctionGrader, GraderTraits
from adjudge.judges.base import ChatModel

GRADER_GROUP = "adjudge.graders"
"""The entry-point group of graders that other packages bring."""

_RULES = "adjudge.graders.rules"
_LLM = "adjudge.graders.llm"

SHIPPED: Mapping[str, str] = {
    "action_loop": f"{_RULES}.redundancy:ActionLoopDetectionGrader",
    "information_gain": f"{_RULES}.redundancy:ObservationInformationGainGrader",
    "tool_call_match": f"{_RULES}.trajectory:ToolCallPrecisionRecallMatchGrader",
    "tool_call_sequence": f"{_RULES}.trajectory:ToolCallStepSequenceMatchGrader",
    "step_efficiency": f"{_RULES}.redundancy:TrajectoryStepEfficiencyGrader",
    "tool_usage_efficiency": f"{_RULES}.redundancy:ToolUsageEfficiencyGrader",
    "answer": "adjudge.graders.answers.grader:AnswerGrader",
    "reasoning_format": f"{_RULES}.response_form:ReasoningFormatGrader",
    "reasoning_tool_call_format": f"{_RULES}.response_form:ReasoningToolCallFormatGrader",
    "json_valid": f"{_RULES}.json_graders:JsonValidatorGrader",
    "json_schema": f"{_RULES}.json_graders:JsonSchemaGrader",
    "json_match": f"{_RULES}.json_graders:JsonMatchGrader",
    "length_penalty": f"{_RULES}.response_form:LengthPenaltyGrader",
    "soft_overlong": f"{_RULES}.response_form:SoftOverlongPunishmentGrader",
    "ngram_repetition": f"{_RULES}.response_form:NgramRepetitionPenaltyGrader",
    "similarity": f"{_RULES}.similarity:SimilarityGrader",
    "string_match": f"{_RULES}.similarity:StringMatchGrader",
    "language": f"{_RULES}.response_form:LanguageGrader",
    "code_syntax": "adjudge.graders.code.blocks:SyntaxCheckGrader",
    "code_execution": "adjudge.graders.code.grader:CodeExecutionGrader",
    "ifeval": "adjudge.graders.ifeval:IFEvalGrader",
    "ifeval_repaired": "adjudge.graders.ifeval:RepairedIFEvalGrader",
    "verif": "adjudge.graders.verif:VerIFGrader",
    "recorded": "adjudge.graders.base:RecordedGrader",
    "llm": f"{_LLM}.judge_grader:LLMGrader",
    "relevance": f"{_LLM}.shipped_graders:RelevanceGrader",
    "correctness": f"{_LLM}.shipped_graders:CorrectnessGrader",
    "hallucination": f"{_LLM}.shipped_graders:HallucinationGrader",
    "harmfulness": f"{_LLM}.shipped_graders:HarmfulnessGrader",
    "instruction_following": f"{_LLM}.shipped_graders:InstructionFollowingGrader",
    "completeness": f"{_LLM}.shipped_graders:ResponseCompletenessGrader",
    "helpfulness": f"{_LLM}.shipped_graders:ResponseHelpfulnessGrader",
    "tool_selection": f"{_LLM}.shipped_graders:ToolSelectionGrader",
    "plan_feasibility": f"{_LLM}.shipped_graders:PlanFeasibilityGrader",
    "reflection": f"{_LLM}.shipped_graders:ReflectionAccuracyGrader",
    "memory": f"{_LLM}.shipped_graders:MemoryGrader",
    "trajectory_accuracy": f"{_LLM}.trajectory:TrajectoryAccuracyGrader",
    "trajectory_comprehensive": f"{_LLM}.trajectory:TrajectoryComprehensiveGrader",
    "rubric": f"{_LLM}.rubric:RubricGrader",
    "pairwise": f"{_LLM}.comparison:PairwiseGrader",
    "listwise": f"{_LLM}.ranking:ListwiseGrader",
    "tournament": f"{_LLM}.ranking:TournamentGrader",
    "expected_score": f"{_LLM}.numeric_scores:ExpectedScoreGrader",
    "scalar": f"{_LLM}.numeric_scores:ScalarGrader",
}
"""``type`` → ``module:Class`` of every grader that ships; imported when asked for."""

ENTRY_KEYS = ("name", "type", "weight", "scope", "mapper", "judge", "panel")
"""The keys that every ``[[graders]]`` table takes, beside its type's parameters."""


JUDGE_PARAMETER = "model"
"""The constructor parameter of graders that ask a judge; a spec fills it from ``judge``."""


GraderClass = type[Any]
"""A grader's class: ours, another package's, the user's own."""


@dataclass(frozen=True)
class Parameter:
    """One constructor parameter of a grader, as a spec may set it."""

    name: str
    annotation: object
    default: object
    required: bool

    @property
    def is_judge(self) -> bool:
        """Whether a chat model goes there; a ``model`` that is text is a parameter like others."""
        return self.name == JUDGE_PARAMETER and self.annotation not in (str, str | None)

    @property
    def type_text(self) -> str:
        """The annotation as a reader would write it."""
        text = inspect.formatannotation(self.annotation)
        return text.replace("typing.", "").replace("pathlib.", "")


def load_grader_class(
    grader_type: object, folder: Path | None = None, *, where: str = "type"
) -> GraderClass:
    """The class behind a ``type``: a shipped name, ``module:Class``, or an installed name.

    In Python the class or object itself may replace its name. A function of the user's own, or
    another callable object, is made a class of :class:`~adjudge.FunctionGrader`; a spec may set
    its parameters ``score_range`` and ``blocking``. ``folder`` (the spec's) and the
    working directory are searched for own modules after the installed ones. Raises
    :class:`ConfigError` that begins with ``where``.
    """
    found = grader_type
    if isinstance(found, str):
        found = load_extension(GRADER_GROUP, found, where=where, folder=folder, shipped=SHIPPED)
    if hasattr(found, "aevaluate") and (isinstance(found, type) or found is grader_type):
        return found if isinstance(found, type) else type(found)
    if isinstance(found, type) or not callable(found):
        raise ConfigError(
            f"{where}: must be a function or another callable object, or a class with aevaluate "
            f"(found {name_type(grader_type)!r}, of type {type(found).__name__})"
        )
    return _make_function_class(found, name_type(grader_type).partition(":")[0])


def is_grader(given: object) -> bool:
    """Whether an object can be a grader: a function, a class, a grader that is built."""
    return callable(given) or hasattr(given, "aevaluate")


def name_type(grader_type: object) -> str:
    """``module:name`` of a function, class or object; of a name the name itself."""
    if isinstance(grader_type, str):
        return grader_type
    named = grader_type if hasattr(grader_type, "__qualname__") else type(grader_type)
    return f"{named.__module__}:{named.__qualname__}"


def name_grader(given: object) -> str:
    """What a function, class or object is called as a grader."""
    own = getattr(given, "name", None)
    name = own if isinstance(own, str) and own else name_type(given).rpartition(".")[2]
    return re.sub(r"[^\w.-]+", "_", name.rpartition(":")[2]).strip("_") or "grader"


def describe_object(given: object) -> str:
    """What the answers of a function or object depend on beside its file, without addresses."""
    said: list[object] = []
    function = given.__func__ if isinstance(given, MethodType) else given
    if isinstance(function, FunctionType):
        code = function.__code__
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        said = [code.co_code.hex(), code.co_consts, code.co_names, function.__defaults__, cells]
        said += [describe_object(given.__self__)] if isinstance(given, MethodType) else []
    elif not isinstance(given, type):  # a partial function has its arguments in its repr
        said = [sorted(vars(given).items()) if hasattr(given, "__dict__") else given, repr(given)]
    return name_type(given) + re.sub(r" at 0x[0-9a-fA-F]+", "", repr(said))


def _make_function_class(function: Callable[..., Any], module: str) -> type[FunctionGrader]:
    """A grader class that calls ``function``, which a spec finds in ``module``."""

    class FunctionOfAModule(FunctionGrader):
        def __init__(
            self,
            name: str = "",
            score_range: tuple[float, float] | None = None,
            *,
            blocking: bool = False,
        ) -> None:
            super().__init__(function, name, score_range=score_range, blocking=blocking)

        def __reduce__(self) -> tuple[object, ...]:
            facts = (self.func, self.name, self.mode, self.description, self.score_range)
            return FunctionGrader, (*facts, self.role, self.blocking)

    made = FunctionOfAModule
    made.__name__ = made.__qualname__ = getattr(function, "__name__", type(function).__name__)
    made.__module__, made.__doc__ = module, function.__doc__ or ""
    made.func = staticmethod(function)  # its parameters are known before it is built
    return made


def list_parameters(cls: GraderClass) -> list[Parameter]:
    """The constructor's parameters, ``self`` and ``name`` left out."""
    try:
        declaring = next(one for one in cls.__mro__ if "__init__" in vars(one))
        declared = "__dataclass_fields__" in vars(declaring)
        hints = typing.get_type_hints(cls if declared else cls.__init__)
    except (NameError, TypeError):  # names that only a type checker knows
        hints = {}
    signature = inspect.signature(cls.__init__).parameters.values()
    return [
        Parameter(p.name, hints.get(p.name, Any), p.default, p.default is p.empty)
        for p in list(signature)[1:]
        if p.name != "name" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


_RANGE = Parameter("score_range", tuple[float, float] | None, None, False)


def settable_parameters(type_name: str, cls: GraderClass) -> list[Parameter]:
    """The constructor's parameters, and ``score_range`` for a class of the user's without one."""
    found = list_parameters(cls)
    has_range = getattr(cls, _RANGE.name, None) or any(one.name == _RANGE.name for one in found)
    return found if has_range or type_name in SHIPPED else [*found, _RANGE]


def build_grader(
    grader_type: object,
    name: str,
    given: Fields,
    *,
    where: str,
    folder: Path | None = None,
    judges: Mapping[str, ChatModel] = {},
    judge: str | Sequence[str] | None = None,
    panel: Fields | None = None,
) -> Any:
    """A grader from a spec's entry; ``where`` opens every complaint (file and table).

    Paths among the parameters are relative to ``folder``. A class that takes a ``model``
    asks the one of ``judges`` that ``judge`` names, or the only one; several of them, or
    one several times, make a :class:`~adjudge.graders.MultiJudge` with the ``panel``'s settings.
    Raises :class:`ConfigError`.
    """
    build = partial(_build_one, grader_type, name, given, where, folder, judges)
    if panel is None and (judge is None or isinstance(judge, str)):
        return build(judge)
    from adjudge.graders.llm.multi_judge import MultiJudge  # noqa: PLC0415  (most ask one judge once)

    if judge is None:  # then there must be one
        _choose_judge(judges, None, True, where)
    named = [judge] if isinstance(judge, str) else list(judge or judges)
    members = {one: build(one) for one in named}
    try:
        return MultiJudge(members, name, **(panel or {}))
    except ConfigError as error:
        raise ConfigError(f"{where}: panel: {error}") from None


def _build_one(
    grader_type: object,
    name: str,
    given: Fields,
    where: str,
    folder: Path | None,
    judges: Mapping[str, ChatModel],
    judge: str | None,
) -> Any:
    """A grader that asks at most one judge."""
    cls = load_grader_class(grader_type, folder, where=f"{where}: type")
    type_name = name_type(grader_type)
    if isinstance(grader_type, cls):
        return _take_built(grader_type, name, [*given, *(["judge"] if judge else [])], where)
    known = {parameter.name: parameter for parameter in settable_parameters(type_name, cls)}
    values = _constructor_arguments(known, given, where, folder)
    if JUDGE_PARAMETER in known and known[JUDGE_PARAMETER].is_judge:
        values |= _choose_judge(judges, judge, known[JUDGE_PARAMETER].required, where)
    elif judge is not None:
        raise ConfigError(f"{where}: judge: type {type_name!r} asks no judge. Leave it out.")
    for parameter in known.values():
        if parameter.required and parameter.name not in values:
            raise ConfigError(f"{where}: {parameter.name}: is required by type {type_name!r}")
    names = inspect.signature(cls.__init__).parameters
    values |= {"name": name} if "name" in names else {}
    stated = None if _RANGE.name in names else values.pop(_RANGE.name, None)
    try:
        grader = cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's constructor does
        raise ConfigError(
            f"{where}: {type_name!r} cannot be created: {type(error).__name__}: {error}"
        ) from error
    grader.name = name
    if stated is not None:
        if (own := GraderTraits.of(grader).score_range) is not None:
            raise ConfigError(f"{where}: {_RANGE.name}: its class sets {own!r}. Leave it out.")
        grader.score_range = stated
    return grader


def _take_built(grader: Any, name: str, keys: Sequence[str], where: str) -> Any:
    """A grader that the caller has built, under the name of its entry."""
    if keys:
        raise ConfigError(
            f"{where}: {keys[0]}: has no effect on a grader that is built. Give it to the "
            f"constructor of {type(grader).__name__}, or give the class as type."
        )
    if getattr(grader, "name", None) != name:
        grader = copy.copy(grader)  # the caller may use the same object elsewhere
        grader.name = name
    return grader


def _constructor_arguments(
    known: Mapping[str, Parameter], given: Fields, where: str, folder: Path | None
) -> Metadata:
    """The constructor's arguments as a spec gives them; all paths start at its folder."""
    values = {}
    settable = [name for name in sorted(known) if not known[name].is_judge]
    for key, value in given.items():
        if key in known and known[key].is_judge:
            raise ConfigError(
                f"{where}: {key}: is not allowed here. Name a [judges] table in 'judge'."
            )
        if key not in known:
            raise ConfigError(f"{where}: {key}: {unknown_key(key, [*settable, *ENTRY_KEYS])}")
        kind = known[key].annotation
        is_path = kind in (Path, Path | None) and isinstance(value, str)
        values[key] = (
            (folder or Path()) / value if is_path else check_setting(kind, value, f"{where}: {key}")
        )
    for parameter in known.values():
        if isinstance(parameter.default, Path) and parameter.name not in values:
            values[parameter.name] = (folder or Path()) / parameter.default
    return values


def _choose_judge(
    judges: Mapping[str, ChatModel], judge: str | None, required: bool, where: str
) -> dict[str, ChatModel]:
    """The ``model`` argument of a grader."""
    if judge is not None or len(judges) == 1:
        return {JUDGE_PARAMETER: judges[judge or next(iter(judges))]}
    if not required:
        return {}
    if judges:
        raise ConfigError(
            f"{where}: judge: is required where there are several (allowed: {', '.join(judges)}). "
            f"For all of them: judge = {json.dumps(list(judges))}"
        )
    raise ConfigError(
        f"{where}: {JUDGE_PARAMETER}: is missing: the spec has no judge. Add a [judges.main] table "
        "(type, model)."
    )
