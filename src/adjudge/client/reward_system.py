"""Rewards from a judge service: the names that training scripts import.

:class:`BaseJudgeReward` is to be used or derived from; :class:`JudgeRewardSystem` and
:func:`create_judge_reward` are its names in training scripts; :class:`MultiCritiqueJudge` asks
several judges at once. A reward says where it comes from. For a judge that is away, a rule may
give the reward: the answer grader, by ``answer_type``. The logger ``JudgeReward`` says what a
person who watches training should know, never text of a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import msgspec

from adjudge.client.batcher import JudgeRewardResult, ServiceClient
from adjudge.client.exchange import (
    RequestOrFailure,
    ServiceAnswer,
    build_request,
    build_requests,
    read_response,
    to_failure,
)
from adjudge.client.settings import ClientSettings
from adjudge.config_tables import check_setting
from adjudge.engine.clock import LogLimiter
from adjudge.engine.loop import do_job, run_all, run_blocking, run_on_engine
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
    is_passing,
)
from adjudge.graders.llm.multi_judge import reduce_values
from adjudge.types import Reduce
from adjudge.wire import JudgeRequest, JudgeResponse

if TYPE_CHECKING:
    from adjudge.graders.answers.grader import AnswerGrader


_log = logging.getLogger("JudgeReward")
# The name is the one that trainers' scripts set levels for; what "adjudge" is told holds here too.
_log.parent = logging.getLogger("adjudge")

_MOST_FINAL = 8
"""So many failures in a row that no further request will do better with end the run."""


class BaseJudgeReward:
    """Rewards from the judge service that ``config`` names.

    ``config``: a mapping with the keys of :class:`~adjudge.client.settings.ClientSettings`
    (``judge_url``, …); what it leaves out comes from the environment or is the default. Raises
    :class:`~adjudge.errors.ConfigError`.

    A failed judge gives no number: ``reward`` is ``None``, ``source`` is ``none`` and ``error``
    says why. Only with ``fallback_to_rule = true``, and only where the service could not be had
    (away, failing after retries, given up, late), a rule scores, tagged ``rule_fallback``. Where
    no request will do better (a refused key, a spent budget, a wrong address or model name), the
    eighth failure in a row raises :class:`~adjudge.errors.JudgeAuthError` or
    :class:`~adjudge.errors.JudgeUnavailable`: the script would learn nothing.

    Nothing has to be started. Holds configuration; works from any thread, event loop and forked
    child, and pickles as configuration. The blocking methods block a loop they are called on; on
    adjudge's own they raise ``RuntimeError``.

    To change how one request is judged, derive and override :meth:`_request_judge`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.settings = ClientSettings.from_config(config)
        self._client = ServiceClient(self.settings)
        self._failures = LogLimiter()
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
        return self.compute_reward(prompt, completion, answer, answer_type, **fields).as_reward()

    async def areward(self, *sample: Any, **fields: Any) -> dict[str, Any]:
        """:meth:`reward` from any running loop, with the same arguments."""
        asked = build_request(*sample, **fields)
        return (await run_on_engine(self._compute([asked])))[0].as_reward()

    def compute_reward(self, *sample: Any, **fields: Any) -> JudgeRewardResult:
        """:meth:`reward`, with the same arguments, as an object with a ``score``."""
        return run_blocking(self._compute([build_request(*sample, **fields)]))[0]

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
        asked = build_requests(prompts, completions, answers, answer_types, **fields)
        return [result.as_reward() for result in run_blocking(self._compute(asked))]

    async def areward_batch(self, *columns: Any, **fields: Any) -> list[dict[str, Any]]:
        """:meth:`reward_batch` from any running loop, with the same arguments."""
        asked = build_requests(*columns, **fields)
        return [result.as_reward() for result in await run_on_engine(self._compute(asked))]

    # ── the rest of its life ─────────────────────────────────────────────────────────────────

    def get_metrics(self) -> dict[str, Any]:
        """Counts of this process, always the same keys.

        They are those of :meth:`adjudge.client.batcher.RequestBatcher.metrics`. What an override
        of :meth:`_request_judge` answers by itself is not counted. ``RuntimeError`` on adjudge's
        own event loop.
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
        a :class:`~adjudge.wire.JudgeResponse`, or a mapping like one. It is asked once more about
        what a judge has scored that is replaced within the call. Raises ``GradingFailure`` for a
        judge that failed; any other exception goes to the caller, ``StopIteration`` and
        ``KeyboardInterrupt`` as ``RuntimeError``.
        """
        [result] = run_blocking(self._client.ask([request]))
        if result.failure is not None:
            raise result.failure
        # A copy: the response may be another caller's, too, and is kept.
        response = msgspec.convert(msgspec.to_builtins(result.response), JudgeResponse)
        response.request_id = request.request_id
        if result.cached:
            response.metadata = {**(response.metadata or {}), "cached": True}
        return response

    # ── how it is done ───────────────────────────────────────────────────────────────────────

    async def _compute(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        """One result per request, with a rule's in its place where that is wanted and allowed."""
        batcher = await self._client.batcher()
        version = batcher.version
        results = await self._ask(asked)
        # What an override answers by itself may have a version of its own.
        is_own = type(self)._request_judge is BaseJudgeReward._request_judge  # noqa: SLF001
        replaced = batcher.take_back(results) if is_own or batcher.version != version else []
        if replaced:
            # Scores of two judges, kept ones too, are on two rulers.
            again = await self._ask([asked[n] for n in replaced])
            for n, result in zip(replaced, again, strict=True):
                results[n] = result
        if self.settings.fallback_to_rule:
            # Rules may take their time in processes of their own.
            await run_all(map(self._replace, results, asked))
        self._log_results(results)
        for result in results:
            self._count_final(result.failure)
        return results

    async def _ask(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        """The judge's results, of the service or of an override."""
        if type(self)._request_judge is BaseJudgeReward._request_judge:  # noqa: SLF001
            return await self._client.ask(asked)
        threads = ThreadPoolExecutor(self.settings.max_concurrent_requests)
        doing: list[Future[JudgeRewardResult]] = [Future() for _ in asked]
        try:
            for future, one in zip(doing, asked, strict=True):
                threads.submit(do_job, future, self._ask_override, (one,))
            return [await asyncio.wrap_future(future) for future in doing]
        finally:  # without waiting: overrides wait for this loop
            threads.shutdown(wait=False, cancel_futures=True)

    def _ask_override(self, asked: RequestOrFailure) -> JudgeRewardResult:
        started = time.monotonic()
        if isinstance(asked, GradingFailure):
            return JudgeRewardResult.of(asked, asked)
        try:
            found: object = self._request_judge(asked)
            if not isinstance(found, JudgeResponse | Mapping):
                kind = type(found).__name__
                raise TypeError(
                    f"_request_judge must return a JudgeResponse or a mapping like one, got {kind}"
                )
            said = read_response(msgspec.convert(found, ServiceAnswer, from_attributes=True))
            answer = said if said.error is None else to_failure(said.error)
        except GradingFailure as failure:
            answer = failure
        cached = isinstance(answer, JudgeResponse) and bool((answer.metadata or {}).get("cached"))
        return JudgeRewardResult.of(answer, asked, time.monotonic() - started, cached)

    async def _replace(self, result: JudgeRewardResult, asked: RequestOrFailure) -> None:
        """A rule's score in place of a judge's that may pass; see :class:`AnswerGrader`."""
        failure = result.failure
        passes = failure is not None and is_passing(failure.kind, failure.metadata)
        if not passes or isinstance(asked, GradingFailure):
            return
        try:
            rule = await _answer_grader().aevaluate(
                asked.completion, asked.answer, asked.answer_type
            )
        except GradingFailure as why:
            result.error = f"{failure}; the rule gives no score: {why}"
        else:
            (await self._client.batcher()).counts["fallbacks"] += 1
            result.source = "rule_fallback"
            result.score, result.explanation = rule.score, rule.reason

    def _log_results(self, results: Sequence[JudgeRewardResult]) -> None:
        """Failures by kind, each at once and then every ten seconds; at DEBUG every reward."""
        failed = [((one.source, one.failure.kind), one.error) for one in results if one.failure]
        times = Counter(how for how, _ in failed)
        for (source, kind), error in dict(failed).items():
            if n := self._failures.count((source, kind), times[source, kind]):
                what = "the reward is missing" if source == "none" else "a rule gives the score"
                _log.warning("%s (%s, %d ×): %s", what, kind, n, error)
        for result in results if _log.isEnabledFor(logging.DEBUG) else ():
            cached = ", cached" if result.cached else ""
            said = cached if result.failure is None else f" ({result.failure.kind})"
            name, ms = result.request_id or "-", 1000 * result.latency
            _log.debug("request %s: %s in %.1f ms%s", name, result.source, ms, said)

    def _count_final(self, failure: GradingFailure | None) -> None:
        """Raise at the eighth failure in a row that no further request will do better than."""
        if failure is None:
            self._final_in_row = 0
        elif failure.final and (row := self._final_in_row + 1) < _MOST_FINAL:
            self._final_in_row = row
        elif failure.final:
            message = f"{self.settings.judge_url}: no request has a reward any more: {failure}"
            if failure.kind is ErrorKind.AUTH:
                raise JudgeAuthError(message)
            raise JudgeUnavailable(message, failure.kind)


@cache
def _answer_grader() -> AnswerGrader:
    from adjudge.graders.answers.grader import AnswerGrader  # noqa: PLC0415  (heavy, and for few)

    return AnswerGrader()


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
        check_setting(Reduce, reduce, "reduce")
        if isinstance(judges, str) or not judges:
            raise ConfigError(f"MultiCritiqueJudge: judges: must be addresses (found {judges!r})")
        self.reduce = reduce
        self.judges = [create_judge_reward({**(config or {}), "judge_url": url}) for url in judges]
        if any(judge.settings.fallback_to_rule for judge in self.judges):
            raise ConfigError(
                "MultiCritiqueJudge: fallback_to_rule: a rule's score and judges' scores cannot "
                "be averaged. Leave it out."
            )

    def score(self, *sample: Any, **fields: Any) -> dict[str, Any]:
        """``score`` (``None`` is missing), ``explanation``, and each judge's in ``scores``.

        The arguments are those of :meth:`BaseJudgeReward.reward`.
        """
        results = run_blocking(self._compute(build_request(*sample, **fields)))
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

    async def _compute(self, asked: RequestOrFailure) -> list[JudgeRewardResult]:
        asking = [judge._compute([asked]) for judge in self.judges]  # noqa: SLF001
        tasks = [asyncio.get_running_loop().create_task(one) for one in asking]
        return [(await task)[0] for task in tasks]

    def close(self) -> None:
        """Close all of them."""
        for judge in self.judges:
            judge.close()
