"""Judges as a benchmark asks them, and graders and specs as such judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from adjudge.errors import ConfigError, ErrorKind
from adjudge.graders.base import BaseGrader, is_listwise
from adjudge.graders.llm.comparing import PairJudge
from adjudge.graders.llm.material import asked, turns_of
from adjudge.graders.view import view_text
from adjudge.judge_training.benchmarks.judgements import Verdict
from adjudge.judges.base import ChatModel
from adjudge.rewards.built import check_machine
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runner import GraderConfig
from adjudge.runner.question import Question
from adjudge.types import GraderError, GraderScore, Message

__all__ = [
    "ComparingJudge",
    "GraderComparisons",
    "GraderScores",
    "Judge",
    "ScoringJudge",
    "grader_judge",
    "spec_grader",
    "spec_judge",
]


class ScoringJudge(Protocol):
    """A judge of single answers."""

    async def score(self, messages: Sequence[Message]) -> float | GraderError:
        """A number for the last answer of a conversation; higher is better."""


class ComparingJudge(Protocol):
    """A judge of pairs."""

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> Verdict | GraderError:
        """Which of two answers to ``prompt`` is better, ``a`` being shown first."""


Judge = ScoringJudge | ComparingJudge
"""What a benchmark can ask; an object may do both."""

_VERDICT_OF: Mapping[float, Verdict] = {1.0: "A", 0.5: "tie", 0.0: "B"}


class GraderScores:
    """A pointwise grader as a judge: its raw score of the last answer.

    The grader's fields are ``messages`` (answer included), ``response``, ``query`` and ``prompt``
    (the last thing a user said); ``mapper`` as in a reward spec.
    """

    def __init__(self, grader: Any, name: str = "", mapper: Any = None) -> None:
        self.name = name or getattr(grader, "name", "") or type(grader).__name__
        self._question = Question(self.name, GraderConfig(grader, mapper))

    async def score(self, messages: Sequence[Message]) -> float | GraderError:
        """See :class:`ScoringJudge`."""
        result = await self._question.ask(_fields(messages))
        if isinstance(result, GraderScore):
            return result.score
        if isinstance(result, GraderError):
            return result
        return GraderError(self.name, ErrorKind.UNSUPPORTED, "the grader ranks, it does not score")


class GraderComparisons:
    """A pairwise grader as a judge: its verdict in one order, the one it is asked in.

    As the grader itself does, it asks nobody where an answer says nothing: that one loses, and two
    such, or two equal ones, are a tie.
    """

    def __init__(self, grader: PairJudge, name: str = "") -> None:
        self.name = name or grader.name
        self._question = Question(self.name, GraderConfig(_InOneOrder(grader, self.name)))

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> Verdict | GraderError:
        """See :class:`ComparingJudge`."""
        result = await self._question.ask({"turns": prompt, "first": a, "second": b})
        if isinstance(result, GraderScore):
            return _VERDICT_OF[result.score]
        if isinstance(result, GraderError):
            return result
        return GraderError(self.name, ErrorKind.UNSUPPORTED, "the grader ranks groups")


class _InOneOrder(BaseGrader):
    """Asks a pairwise grader in the given order alone."""

    score_range = (0.0, 1.0)

    def __init__(self, grader: PairJudge, name: str) -> None:
        super().__init__(name)
        self._grader = grader

    async def aevaluate(self, turns: Sequence[Message], first: str, second: str) -> GraderScore:
        a, b = (view_text(text, self._grader.view) or "" for text in (first, second))
        if not (a.strip() and b.strip()) or a == b:
            return GraderScore(self.name, 0.5 + (bool(a.strip()) - bool(b.strip())) / 2)
        query = asked(turns_of(list(turns)))
        compared = await self._grader.compare({"query": query}, a, b, orders=("as_given",))
        return GraderScore(self.name, compared.score, provenance=compared.provenance)


def grader_judge(grader: Any, name: str = "", mapper: Any = None) -> Judge:
    """A grader object as a judge: pairwise ones compare, pointwise ones score.

    Raises :class:`~adjudge.errors.ConfigError` for a grader that ranks groups, for a panel of
    pairwise graders (it does not say what each order gave), and for a pairwise one with a mapper.
    """
    label = name or getattr(grader, "name", "") or type(grader).__name__
    members = [getattr(member, "grader", None) for member in getattr(grader, "members", ())]
    if any(isinstance(member, PairJudge) for member in members):
        raise ConfigError(f"grader {label!r}: is a panel of pairwise graders; name one of them")
    if isinstance(grader, PairJudge):
        if mapper is not None:
            raise ConfigError(f"grader {label!r}: mapper: pairs of a benchmark need none")
        return GraderComparisons(grader, label)
    if is_listwise(grader):
        raise ConfigError(f"grader {label!r}: ranks groups; a benchmark asks for scores or pairs")
    return GraderScores(grader, label, mapper)


def spec_judge(
    spec: RewardSpec, grader: str | None = None, judges: Mapping[str, ChatModel] | None = None
) -> Judge:
    """The judge that a reward spec describes: its one grader with a weight, or the one named.

    Raises as :func:`spec_grader` and :func:`grader_judge` do.
    """
    entry, built = spec_grader(spec, grader, judges)
    return grader_judge(built, entry.name, entry.mapper)


def spec_grader(
    spec: RewardSpec, grader: str | None = None, judges: Mapping[str, ChatModel] | None = None
) -> tuple[GraderEntry, Any]:
    """The one grader of a reward spec with a weight, or the one named: its entry and its object.

    Raises :class:`~adjudge.errors.ConfigError` where that is not one, and as building it does.
    """
    counting = [entry for entry in spec.graders if entry.weight != 0]
    chosen = [one for one in spec.graders if one.name == grader] if grader else counting
    if len(chosen) != 1:
        names = ", ".join(entry.name for entry in spec.graders)
        found = f"no grader {grader!r}" if grader else f"{len(chosen)} graders with a weight"
        raise ConfigError(f"{spec.where}: {found}; a benchmark asks one of: {names}")
    [entry] = chosen
    built = spec.build_grader(entry, spec.build_judges() if judges is None else judges)
    check_machine(spec, {entry.name: built})
    return entry, built


def _fields(messages: Sequence[Message]) -> dict[str, Any]:
    turns = list(messages)
    fields: dict[str, Any] = {"messages": turns}
    before, last = turns[:-1], turns[-1] if turns else {}
    if last.get("role") == "assistant":
        fields["response"] = last.get("content")
    fields["query"] = asked(turns_of(before))
    said = [turn.get("content") for turn in before if turn.get("role") == "user"]
    if said:
        fields["prompt"] = said[-1]
    return fields
