"""Rewards from a judge service: the names that training scripts import.

:class:`BaseJudgeReward` is to be used or derived from; :class:`JudgeRewardSystem` and
:func:`create_judge_reward` are its names in training scripts; :class:`MultiCritiqueJudge` asks
several judges at once. A reward says where it comes from. For a judge that is away, a rule may
stand in: the answer grader, by ``answer_type``. The logger ``JudgeReward`` says what a person who
watches training should know, never text of a request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal, Self

import msgspec

from adjudge.client.batcher import RequestOutcome
from adjudge.client.connection import ServiceClient
from adjudge.client.exchange import (
    PreparedRequest,
    RequestOrFailure,
    build_request,
    build_requests,
    prepare_request,
    read_response,
    to_failure,
)
from adjudge.client.settings import ClientSettings
from adjudge.engine.clock import LogLimiter
from adjudge.engine.loop import run_all, run_blocking, run_on_engine
from adjudge.errors import (
    PASSING_KINDS,
    ConfigError,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
    is_passing,
)
from adjudge.graders.answers.grader import AnswerGrader
from adjudge.graders.base import check_parameter
from adjudge.graders.llm.multi_judge import reduce_values
from adjudge.types import GraderScore, Reduce
from adjudge.wire import JudgeRequest, JudgeResponse


class JudgeRewardResult(msgspec.Struct, frozen=True):
    """One reward; ``score`` is ``None`` when the judge failed, and ``error`` says why.

    ``source``: ``judge``, ``rule_fallback`` (then ``error`` is why the judge was replaced) or
    ``none``. ``latency`` in seconds, waiting for a batch included. ``json_response`` is the
    service's response as plain data.
    """

    score: float | None
    source: Literal["judge", "rule_fallback", "none"]
    request_id: str | None = None
    latency: float = 0.0
    cached: bool = False
    explanation: str | None = None
    detailed_scores: dict[str, float | None] | None = None
    json_response: dict[str, Any] | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None

    def as_reward(self) -> dict[str, Any]:
        """As a mapping: ``reward`` and ``acc_reward`` (the same; ``None`` is missing).

        ``source``, ``explanation``, ``cached`` and ``latency`` are always there;
        ``detailed_scores``, and ``error`` with ``error_kind``, only where there are some.
        """
        found: dict[str, Any] = {
            "reward": self.score,
            "acc_reward": self.score,
            "source": self.source,
            "explanation": self.explanation,
            "cached": self.cached,
            "latency": self.latency,
        }
        if self.detailed_scores is not None:
            found["detailed_scores"] = self.detailed_scores
        if self.error is not None:
            found |= {"error": self.error, "error_kind": str(self.error_kind)}
        return found


_ANSWER_TYPE_ALIASES = {"CRITIC": "EXACT"}


async def compute_rule_score(request: JudgeRequest) -> GraderScore:
    """The rule's score in [0, 1]; without an ``answer_type``, equality (``ANY``).

    Raises ``GradingFailure``: ``unsupported`` for an answer type that has no rule (``JUDGE``,
    ``HTML_CODE``, …), ``invalid_input`` without an answer.
    """
    kind = None if request.answer_type is None else request.answer_type.strip().upper()
    if request.answer is None:
        raise GradingFailure(ErrorKind.INVALID_INPUT, "there is no answer for a rule to compare")
    return await _answer_grader().aevaluate(
        response=request.completion,
        reference=request.answer,
        answer_type=kind if kind is None else _ANSWER_TYPE_ALIASES.get(kind, kind),
    )


@cache
def _answer_grader() -> AnswerGrader:
    return AnswerGrader()


_log = logging.getLogger("JudgeReward")
# The name is the one that trainers' scripts set levels for; what "adjudge" is told holds here too.
_log.parent = logging.getLogger("adjudge")


class FailureLog:
    """Logs each outage of the service and its end, other failures by kind, and at DEBUG all.

    An outage begins with a call without a score that failed for a reason that may pass, and ends
    with the next score.
    """

    def __init__(self) -> None:
        self._failures = LogLimiter()
        self._outage: LogLimiter | None = None
        self._replaced: Counter[str] = Counter()
        """The rewards of the outage by source."""
        self._scored_at = -math.inf

    def log_call(self, results: Sequence[JudgeRewardResult], started: float) -> None:
        """The rewards of one call, which began at ``started`` (of ``time.monotonic``)."""
        if any(one.source == "judge" and not one.cached for one in results):
            self._end_outage()
            self._scored_at = time.monotonic()
        is_debug = _log.isEnabledFor(logging.DEBUG)
        for one in results:
            if one.error is not None:
                passes = one.source == "rule_fallback" or one.error_kind in PASSING_KINDS
                self._warn(one, is_outage=passes and started >= self._scored_at)
            if not is_debug:
                continue
            _log.debug(
                "request %s: %s%s in %.1f ms%s",
                one.request_id or "-",
                one.source,
                "" if one.error is None else f" ({one.error_kind})",
                1000 * one.latency,
                ", cached" if one.cached else "",
            )

    def _warn(self, failed: JudgeRewardResult, *, is_outage: bool) -> None:
        limiter, key = self._failures, (failed.source, failed.error_kind)
        if is_outage:
            limiter = self._outage = self._outage or LogLimiter()
            key = (failed.source, None)  # its kinds change while it lasts
            self._replaced[failed.source] += 1
        if count := limiter.count(key):
            by_rule = failed.source == "rule_fallback"
            what = "a rule gives the score" if by_rule else "the reward is missing"
            _log.warning("%s (%s, %d ×): %s", what, failed.error_kind, count, failed.error)

    def _end_outage(self) -> None:
        if self._outage is not None:
            by_rule, missing = self._replaced["rule_fallback"], self._replaced["none"]
            _log.warning(
                "the judge service answers again: a rule gave %d rewards meanwhile, %d are missing",
                by_rule,
                missing,
            )
            self._outage = None
            self._replaced.clear()


_MOST_FINAL = 8
"""So many failures in a row that no further request will do better with end the run."""


class BaseJudgeReward:
    """Rewards from the judge service that ``config`` names.

    ``config``: a mapping with the keys of :class:`~adjudge.client.settings.ClientSettings`
    (``judge_url``, …); what it leaves out comes from the environment or is the default. Raises
    :class:`~adjudge.errors.ConfigError`.

    A failed judge gives no number: ``reward`` is ``None``, ``source`` is ``none`` and ``error``
    says why. Only with ``fallback_to_rule = true``, and only where the service could not be had
    (away, failing after retries, given up, late), a rule stands in, tagged ``rule_fallback``. Where
    no request will do better (a refused key, a spent budget, a wrong address or model name), the
    eighth failure in a row raises :class:`~adjudge.errors.JudgeAuthError` or
    :class:`~adjudge.errors.JudgeUnavailable`: the script would learn nothing.

    Nothing has to be started. Holds configuration; works from any thread, event loop and forked
    child, and pickles as configuration. The blocking methods block a loop they are called on; on
    adjudge's own they raise ``RuntimeError``.

    To change how one request is judged, derive and override :meth:`_request_judge`.
    """

    def __init__(self, config: Mapping[str, Any] | ClientSettings | None = None) -> None:
        self.settings: ClientSettings = (
            config if isinstance(config, ClientSettings) else ClientSettings.from_config(config)
        )
        self._client = ServiceClient(self.settings)
        self._log = FailureLog()
        self._final_in_row = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(judge_url={self.settings.judge_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ── one reward ───────────────────────────────────────────────────────────────────────────

    def reward(
        self,
        prompt: str,
        completion: str | None = None,
        answer: Any = None,
        answer_type: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """The reward of one completion: :meth:`JudgeRewardResult.as_reward`.

        ``answer`` is the reference and ``answer_type`` says how to compare with it; ``messages``,
        ``images`` (base64) and ``metadata`` go to the judge as they are, other ``fields`` by name
        in ``metadata``. ``completions`` is another name of ``completion``.
        """
        asked = build_request(prompt, completion, answer, answer_type, fields)
        return self._compute([asked])[0].as_reward()

    async def areward(
        self,
        prompt: str,
        completion: str | None = None,
        answer: Any = None,
        answer_type: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """:meth:`reward` from any running loop."""
        asked = build_request(prompt, completion, answer, answer_type, fields)
        return (await self._acompute([asked]))[0].as_reward()

    def compute_reward(
        self,
        prompt: str,
        completion: str,
        answer: Any = None,
        answer_type: str | None = None,
        **fields: Any,
    ) -> JudgeRewardResult:
        """The same as an object with a ``score``."""
        return self._compute([build_request(prompt, completion, answer, answer_type, fields)])[0]

    # ── many rewards ─────────────────────────────────────────────────────────────────────────

    def reward_batch(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        answers: Sequence[Any] | None = None,
        answer_types: Sequence[str | None] | str | None = None,
        **fields: Sequence[Any],
    ) -> list[dict[str, Any]]:
        """One reward per completion, in order; every further field is a list of the same length.

        Raises :class:`~adjudge.errors.ConfigError` for lists of different lengths; whatever is
        wrong with one item is that item's ``error``.
        """
        asked = build_requests(prompts, completions, answers, answer_types, fields)
        return [result.as_reward() for result in self._compute(asked)]

    async def areward_batch(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        answers: Sequence[Any] | None = None,
        answer_types: Sequence[str | None] | str | None = None,
        **fields: Sequence[Any],
    ) -> list[dict[str, Any]]:
        """:meth:`reward_batch` from any running loop."""
        asked = build_requests(prompts, completions, answers, answer_types, fields)
        return [result.as_reward() for result in await self._acompute(asked)]

    # ── the rest of its life ─────────────────────────────────────────────────────────────────

    def get_metrics(self) -> dict[str, Any]:
        """Counts of this process, always the same keys.

        They are those of :func:`adjudge.client.metrics.collect_metrics`. What an override of
        :meth:`_request_judge` answers by itself is not counted. ``RuntimeError`` on adjudge's own
        event loop.
        """
        return run_blocking(self._client.metrics())

    def close(self) -> None:
        """End what is under way and close the connections; harmless a second time."""
        run_blocking(self._client.aclose())

    async def aclose(self) -> None:
        """:meth:`close` from any running loop."""
        await run_on_engine(self._client.aclose())

    # ── to override ──────────────────────────────────────────────────────────────────────────

    def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
        """Ask the service about one request and wait; the method to override.

        An override runs in ordinary threads, up to ``max_concurrent_requests`` at once, and returns
        a :class:`~adjudge.wire.JudgeResponse`, or a mapping like one. Raises
        ``GradingFailure`` for a judge that failed; any other exception goes to the caller.
        """
        answer = run_blocking(self._client.ask([prepare_request(request)]))[0]
        if answer.response is None:
            raise answer.failure or AssertionError("an answer without response or failure")
        if answer.cached:
            kept = {**(answer.response.metadata or {}), "cached": True}
            return msgspec.structs.replace(answer.response, metadata=kept)
        return answer.response

    # ── how it is done ───────────────────────────────────────────────────────────────────────

    @property
    def _overridden(self) -> bool:
        return type(self)._request_judge is not BaseJudgeReward._request_judge  # noqa: SLF001

    def _compute(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        if not self._overridden:
            return run_blocking(self._ask(_prepare_all(asked)))
        started = time.monotonic()
        with ThreadPoolExecutor(self.settings.max_concurrent_requests) as threads:
            outcomes = list(threads.map(self._ask_override, asked))
        return run_blocking(self._finish(asked, outcomes, started))

    async def _acompute(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        if self._overridden:
            return await asyncio.to_thread(self._compute, asked)
        return await run_on_engine(self._ask(_prepare_all(asked)))

    async def _ask(
        self, prepared: Sequence[PreparedRequest | GradingFailure]
    ) -> list[JudgeRewardResult]:
        started = time.monotonic()
        sendable = [one for one in prepared if isinstance(one, PreparedRequest)]
        answers = iter(await self._client.ask(sendable))
        requests: list[RequestOrFailure] = []
        outcomes = []
        for one in prepared:
            if isinstance(one, PreparedRequest):
                requests.append(one.request)
                outcomes.append(next(answers))
            else:
                requests.append(one)
                outcomes.append(RequestOutcome(failure=one))
        return await self._finish(requests, outcomes, started)

    def _ask_override(self, asked: RequestOrFailure) -> RequestOutcome:
        started = time.monotonic()
        outcome = RequestOutcome()
        try:
            if isinstance(asked, GradingFailure):
                raise asked
            outcome.response = _override_response(self._request_judge(asked))
            if outcome.response.error is not None:
                raise to_failure(outcome.response.error)
            outcome.cached = bool((outcome.response.metadata or {}).get("cached"))
        except GradingFailure as failure:
            outcome.failure = failure
        outcome.latency = time.monotonic() - started
        return outcome

    async def _finish(
        self,
        asked: Sequence[RequestOrFailure],
        outcomes: Sequence[RequestOutcome],
        started: float,
    ) -> list[JudgeRewardResult]:
        """Outcomes as results, with a rule in its place where that is wanted and allowed."""
        found = [self._result(*one) for one in zip(asked, outcomes, strict=True)]
        if self.settings.fallback_to_rule:
            missing = [place for place, one in enumerate(found) if one.source == "none"]
            # Rules may take their time in processes of their own.
            await run_all(self._replace(found, n, asked[n], outcomes[n]) for n in missing)
        self._log.log_call(found, started)
        return found

    def _result(self, asked: RequestOrFailure, outcome: RequestOutcome) -> JudgeRewardResult:
        name = asked.request_id if isinstance(asked, JudgeRequest) else None
        failure, response, latency = outcome.failure, outcome.response, outcome.latency
        if failure is None and response is not None:
            self._final_in_row = 0
            return JudgeRewardResult(
                response.score,
                "judge",
                name,
                latency,
                outcome.cached,
                response.explanation,
                response.detailed_scores,
                msgspec.to_builtins(response),
            )
        if not isinstance(failure, GradingFailure):
            raise failure or AssertionError("an answer without response or failure")
        if failure.final:
            self._count_final(failure)
        return JudgeRewardResult(
            None, "none", name, latency, error=str(failure), error_kind=failure.kind
        )

    async def _replace(
        self,
        found: list[JudgeRewardResult],
        place: int,
        asked: RequestOrFailure,
        outcome: RequestOutcome,
    ) -> None:
        """A rule's score in place of a judge's that may pass."""
        failure, result = outcome.failure, found[place]
        if not isinstance(asked, JudgeRequest) or not isinstance(failure, GradingFailure):
            return
        if not is_passing(failure.kind, failure.metadata):
            return
        try:
            rule = await compute_rule_score(asked)
        except GradingFailure as why:
            error = f"{result.error}; the rule gives no score: {why}"
            found[place] = msgspec.structs.replace(result, error=error)
        else:
            (await self._client.batcher()).counts.fallbacks += 1
            found[place] = msgspec.structs.replace(
                result, score=rule.score, source="rule_fallback", explanation=rule.reason
            )

    def _count_final(self, failure: GradingFailure) -> None:
        """Raise at the eighth failure in a row that no further request will do better than."""
        self._final_in_row += 1
        if self._final_in_row >= _MOST_FINAL:
            message = f"{self.settings.judge_url}: no request has a reward any more: {failure}"
            if failure.kind is ErrorKind.AUTH:
                raise JudgeAuthError(message)
            raise JudgeUnavailable(message, failure.kind)


def _prepare_all(asked: Sequence[RequestOrFailure]) -> list[PreparedRequest | GradingFailure]:
    """Requests as bytes, in the caller's thread; what cannot be sent as its failure."""
    found: list[PreparedRequest | GradingFailure] = []
    for one in asked:
        try:
            found.append(one if isinstance(one, GradingFailure) else prepare_request(one))
        except GradingFailure as failure:
            found.append(failure)
    return found


def _override_response(found: Any) -> JudgeResponse:
    """What an override returned; ``TypeError`` for what is neither a response nor like one."""
    if isinstance(found, JudgeResponse | Mapping):
        response = read_response(msgspec.json.encode(found))
        if response is not None:
            return response
    kind = type(found).__name__
    raise TypeError(f"_request_judge must return a JudgeResponse or a mapping like one, got {kind}")


class JudgeRewardSystem(BaseJudgeReward):
    """A training script's reward system that asks a judge service.

    ``RewardSystem = JudgeRewardSystem`` is all that changes in a script which makes one from a
    config and calls ``reward(prompt, completion, answer, answer_type)``. See
    :class:`~adjudge.client.BaseJudgeReward`.
    """


def create_judge_reward(config: Mapping[str, Any]) -> BaseJudgeReward:
    """An object with ``compute_reward(prompt, completion, answer, answer_type)``."""
    return BaseJudgeReward(config)


class MultiCritiqueJudge:
    """Several judge services about one completion; ``reduce`` makes one score of theirs.

    ``judges``: addresses; ``config``: keys that hold for all. ``reduce``: ``mean``, ``median`` or
    ``vote``, as of :class:`~adjudge.graders.MultiJudge`. A judge that failed leaves the score
    missing, since other judges are on another ruler (a panel of a spec may have a quorum), and a
    rule never answers here.
    """

    def __init__(
        self,
        judges: Sequence[str],
        config: Mapping[str, Any] | None = None,
        reduce: Reduce = "mean",
    ) -> None:
        check_parameter("reduce", reduce, Reduce)
        self.reduce = reduce
        if isinstance(judges, str) or not judges:
            raise ConfigError("MultiCritiqueJudge: judges: must be a list of at least one address")
        self.judges = [create_judge_reward({**(config or {}), "judge_url": url}) for url in judges]
        if any(judge.settings.fallback_to_rule for judge in self.judges):
            raise ConfigError(
                "MultiCritiqueJudge: fallback_to_rule: a rule's score and judges' scores cannot "
                "be averaged. Leave it out."
            )

    def score(
        self,
        prompt: str,
        completion: str,
        answer: Any = None,
        answer_type: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """``score`` (``None`` is missing), ``explanation``, and each judge's in ``scores``."""
        asked = [build_request(prompt, completion, answer, answer_type, fields)]
        results = run_blocking(self._ask_all(asked))
        scores = [result.score for result in results]
        given = [score for score in scores if score is not None]
        failed = [
            f"{judge.settings.judge_url}: {result.error_kind}: {result.error}"
            for judge, result in zip(self.judges, results, strict=True)
            if result.score is None
        ]
        if failed:
            what = f"{len(given)} of {len(results)} judges answered, {len(results)} are needed"
            return {"score": None, "explanation": "; ".join([what, *failed]), "scores": scores}
        score = reduce_values(given, self.reduce)
        words = f"{self.reduce} of {len(given)} judges: {score:.2f}"
        return {"score": score, "explanation": words, "scores": scores}

    async def _ask_all(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        asks = [asyncio.ensure_future(judge._acompute(asked)) for judge in self.judges]  # noqa: SLF001
        try:
            await asyncio.wait(asks)
        finally:
            for ask in asks:
                ask.cancel()
        return [ask.result()[0] for ask in asks]

    def close(self) -> None:
        """Close all of them."""
        for judge in self.judges:
            judge.close()
