"""Several judges, or several draws of one, on the same question, and their answers as one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median, pstdev
from typing import Annotated

import msgspec
from pydantic import Field

from adjudge.config_tables import check_setting
from adjudge.errors import Cause, ConfigError, ErrorKind, Fields, GradingFailure, Metadata
from adjudge.graders.base import (
    BaseGrader,
    GraderAnswer,
    GraderTraits,
    is_listwise,
)
from adjudge.graders.binding import BoundGrader, GraderConfig
from adjudge.judges.asking import ask_all, call_part, describe_failure, join_failures, sum_costs
from adjudge.stats import mid_ranks
from adjudge.types import (
    GraderError,
    GraderMode,
    GraderRank,
    GraderResult,
    GraderScore,
    Provenance,
    Reduce,
    Role,
)


def reduce_values(values: Sequence[float], how: Reduce, *, gate: bool = False) -> float:
    """``values`` (at least one) as one number.

    * ``mean``, ``median`` (of two middle values their mean);
    * ``vote``: the most frequent value; of several as frequent ones their median, which favours
      none, or for a ``gate`` the lowest: it opens only for a majority.

    >>> reduce_values([1.0, 4.0, 4.0, 1.0, 3.0], "vote")
    2.5
    >>> reduce_values([0.0, 1.0], "vote", gate=True)
    0.0
    """
    if how == "mean":
        return math.fsum(values) / len(values)
    if how == "median":
        return median(values)
    counts = Counter(values)
    most = max(counts.values())
    tied = [value for value, count in counts.items() if count == most]
    return min(tied) if gate else median(tied)


_MOST_VOTES = 100
_MemberAnswer = GraderScore | GraderRank


class MultiJudge(BaseGrader):
    """Asks several judges, or one several times, and makes one answer of theirs.

    ``graders``: by judge, the same question asked of each (graders of one kind, range and role).
    ``votes``: draws per judge; draw *k* of this grader asks draws ``k·votes`` to ``k·votes +
    votes − 1`` of each, so votes never share a reply. All are asked at once.

    ``reduce``: ``mean``, ``median`` or ``vote`` (the most frequent score; among equally frequent
    ones their median, for a gate the lowest). Rankings are reduced by the mean (Borda) or median of
    each response's places; gates by ``vote`` only.

    ``quorum``: how many answers it takes, of judges × votes; default all. With fewer it is
    ``GradingFailure(quorum)``, or of the missing ones' own kind where all of those pass by
    themselves, or where no judge answered and all failed in one way; ``auth`` always fails.
    With enough, missing ones are left out and named in the metadata: ``members`` (score and reason
    of each), ``missing`` (why), ``asked``, ``answered``, ``spread`` (standard deviation of the
    scores; of a response's places, averaged, for rankings) and ``agreement`` (share of the most
    frequent score).

    A member that breaks in any other way than failing breaks the whole.
    """

    def __init__(
        self,
        graders: Mapping[str, BaseGrader],
        name: str = "",
        *,
        votes: int = 1,
        reduce: Reduce | None = None,
        quorum: int | None = None,
    ) -> None:
        first = _check_same_question(graders)
        mode = GraderMode.LISTWISE if is_listwise(first) else GraderMode.POINTWISE
        super().__init__(name or first.name, mode, first.description)
        self.score_range = first.score_range
        self.role = Role(first.role)
        self.reduce = self._reduction(reduce)
        check_setting(Annotated[int, Field(ge=1, le=_MOST_VOTES)], votes, "votes")
        self.votes, self.members = votes, list(graders.values())
        named = [
            (vote, BoundGrader(label + f"/{vote + 1}" * (votes > 1), GraderConfig(grader)))
            for label, grader in graders.items()
            for vote in range(votes)
        ]
        self._voters = {member.name: (vote, member) for vote, member in named}
        self.asks_again = all(member.asks_again for _, member in named)
        if votes > 1 and not all(member.takes_draw for _, member in named):
            raise ConfigError(
                f"{self.name}: votes: the grader takes no draw, so all votes would be the same. "
                "Leave it out."
            )
        self.quorum = len(self._voters) if quorum is None else quorum
        within = Annotated[int, Field(ge=1, le=len(self._voters))]
        check_setting(within, self.quorum, "quorum")
        self.fingerprint = ",".join(f"{label}:{one.fingerprint}" for label, one in graders.items())

    def _reduction(self, reduce: Reduce | None) -> Reduce:
        gate, ranks = self.role is Role.GATE, self.mode is GraderMode.LISTWISE
        reduce = ("vote" if gate else "mean") if reduce is None else reduce
        check_setting(Reduce, reduce, "reduce")
        if (gate and reduce != "vote") or (ranks and reduce == "vote"):
            kind, allowed = ("a gate", "'vote'") if gate else ("rankings", "'mean', 'median'")
            raise ConfigError(
                f"{self.name}: reduce: is not allowed for {kind} (found {reduce!r}; "
                f"allowed: {allowed})"
            )
        return reduce

    def check_machine(self) -> None:
        """What each member needs is here."""
        for grader in self.members:
            grader.check_machine()

    def check_fields(self, fields: Fields) -> None:
        """Raise :class:`ConfigError` for a field that a member's question lacks."""
        for _, member in list(self._voters.values())[:: self.votes]:
            member.check_fields(fields)

    async def aevaluate(self, draw: int = 0, **fields: object) -> GraderAnswer:
        """Ask all members about the same fields; see the class."""

        async def ask(label: str) -> _MemberAnswer:
            vote, member = self._voters[label]
            with call_part(label):
                return _raise_failure(await member.ask(fields, draw * self.votes + vote))

        given, missing = await ask_all(ask, [*self._voters])
        metadata: Metadata = {
            "members": {label: _describe_answer(one) for label, one in given.items()},
            "missing": {label: describe_failure(one) for label, one in missing.items()},
        }
        answers = list(given.values())
        if len(given) < self.quorum:
            raise self._short(answers, missing, metadata)
        if not missing:
            del metadata["missing"]
        metadata |= {"asked": len(self._voters), "answered": len(given), **_shared_cause(answers)}
        cost = sum_costs([one.provenance for one in answers], missing.values())
        scores = [one.score for one in answers if isinstance(one, GraderScore)]
        if not scores:
            ranks = [one for one in answers if isinstance(one, GraderRank)]
            return self._ranked(ranks, metadata, cost)
        score = reduce_values(scores, self.reduce, gate=self.role is Role.GATE)
        agreement = max(Counter(scores).values()) / len(scores)
        metadata |= {"spread": pstdev(scores), "agreement": agreement}
        reason = f"{self.reduce} of {len(scores)}"
        return GraderScore(self.name, score, reason, metadata, provenance=cost)

    def _ranked(
        self, answers: Sequence[GraderRank], metadata: Metadata, cost: Provenance | None
    ) -> GraderRank:
        """The joined ranking, of the responses that all of a quorum of judges ranked."""
        whole = [one for one in answers if one.failure is None]
        counted = whole if len(whole) >= self.quorum else answers
        if len({len(one.rank) for one in counted}) > 1:
            raise GradingFailure(
                ErrorKind.INCOMPLETE, "the judges ranked different numbers of responses", metadata
            )
        by_response = list(zip(*(one.rank for one in counted), strict=True))
        known = [ranks for ranks in by_response if None not in ranks]
        places = list(zip(*map(mid_ranks, zip(*known, strict=True)), strict=True))
        metadata["spread"] = math.fsum(map(pstdev, places)) / len(places) if places else 0.0
        joined = iter([reduce_values(one, self.reduce) for one in places])
        return GraderRank(
            self.name,
            [None if None in ranks else next(joined) for ranks in by_response],
            f"{self.reduce} place of {len(counted)} rankings",
            metadata,
            provenance=cost,
            failure=next((one.failure for one in counted if one.failure is not None), None),
        )

    def _short(
        self,
        answers: Sequence[_MemberAnswer],
        missing: Mapping[str, GradingFailure],
        metadata: Fields,
    ) -> GradingFailure:
        """Too few answered."""
        failures = list(missing.values())
        why = ", ".join(f"{label}: {failure.kind}" for label, failure in missing.items())
        message = (
            f"{len(answers)} of {len(self._voters)} answered, {self.quorum} needed ({why}); "
            f"the first failure: {failures[0]}"
        )
        answered = [one.provenance for one in answers]
        kind = ErrorKind.QUORUM
        return join_failures(failures, message, metadata, answered=answered, otherwise=kind)


def _raise_failure(result: GraderResult) -> _MemberAnswer:
    """A member's answer; its failure is raised, and one that only breaks breaks the whole."""
    if not isinstance(result, GraderError):
        return result
    if result.kind is ErrorKind.BUG and "at" in result.metadata:
        raise RuntimeError(f"{result.name}: {result.error} ({result.metadata['at']})")
    raise GradingFailure(
        result.kind, result.error, dict(result.metadata), provenance=result.provenance
    )


def _shared_cause(answers: Sequence[_MemberAnswer]) -> Metadata:
    """What metadata says where nothing was judged by any member."""
    causes = {one.cause if isinstance(one, GraderScore) else None for one in answers}
    if causes == {Cause.NOT_APPLICABLE}:
        return {"evaluable": False}
    return {"cause": str(Cause.CANDIDATE)} if causes == {Cause.CANDIDATE} else {}


def _describe_answer(one: _MemberAnswer) -> Metadata:
    """What the metadata keeps of a member's answer."""
    told: Metadata = {"rank": one.rank} if isinstance(one, GraderRank) else {"score": one.score}
    more = {"reason": one.reason, "metadata": one.metadata}
    return told | {name: value for name, value in more.items() if value}


def _check_same_question(graders: object) -> BaseGrader:
    """The first grader; raises :class:`ConfigError` when they do not ask one question."""
    if not isinstance(graders, Mapping) or not graders:
        raise ConfigError(f"graders: must be a table of graders by judge (found {graders!r})")
    first: BaseGrader
    first, *others = graders.values()
    one = msgspec.structs.asdict(GraderTraits.of(first))
    for other in map(msgspec.structs.asdict, map(GraderTraits.of, others)):
        for name in ("role", "score_range", "mode"):
            if other[name] != one[name]:
                raise ConfigError(f"graders: differ in {name}, so their answers cannot be combined")
    return first
