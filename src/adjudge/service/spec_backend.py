"""A reward spec behind the service: requests as samples, rewards as responses, groups in two steps.

A group's graders are asked in two steps: each sample by itself, then all together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, JudgeAuthError
from adjudge.intake.rollouts import RolloutParts, read_rollout, sample_of_rollout
from adjudge.judges.endpoint.connections import aclose_all
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.rewards.function import compute_fingerprint
from adjudge.rewards.reducer import RewardReducer
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.service.backend import EXPLANATION_LIMIT, Backend, Damping
from adjudge.text import replace_surrogates, shorten_text
from adjudge.types import GradedSample, GraderError, GraderScore, Sample
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

_MESSAGE_LIMIT = 500


def request_to_sample(request: JudgeRequest, place: int = 0) -> Sample:
    """A request as the sample that graders see; ``place`` is its index in batch and group.

    ``completion`` is ``response``, ``answer`` is ``reference``. The keys of ``metadata`` are
    further fields; what the request itself says goes before them. ``images`` are image parts,
    which a prompt shows by ``{images}``; without ``messages`` they also follow the prompt in
    ``query``, which judges are shown. Raises ``GradingFailure`` for what cannot be read.
    """
    own: dict[str, Any] = {"reference": request.answer, "answer_type": request.answer_type}
    if request.images:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in request.images]
        own["images"] = parts
        if not request.messages and "query" not in (request.metadata or {}):
            own["query"] = [{"type": "text", "text": request.prompt or ""}, *parts]
    said = {name: value for name, value in own.items() if value is not None}
    fields = {**(request.metadata or {}), **said}
    turns = fields.pop("opening_turns", None)
    if request.messages is None:  # texts may be as a chat template rendered them
        read = read_rollout(request.prompt, request.completion)
    else:
        turns = turns if type(turns) is int else None
        read = RolloutParts(request.prompt, request.completion, request.messages, turns)
    return sample_of_rollout(place, place, read, fields)


def make_responses(
    reducer: RewardReducer,
    request_ids: Sequence[str | None],
    judged: Sequence[GradedSample],
    *,
    whole_groups: bool,
) -> list[JudgeResponse]:
    """What the graders said of samples, as the answers to the requests of these ids.

    ``whole_groups``: the samples are all of their group, else each stands alone.
    ``detailed_scores`` is each grader's own score by name, on its own scale, ``None`` where it is
    missing; ``confidence`` where exactly one grader stated one. ``reward_components`` are those of
    the reward (:meth:`RewardReducer.components
    <adjudge.rewards.reducer.RewardReducer.components>`). Trainers read them by place, so a grader
    that had nothing to judge has its stated score there; one alone is none.
    """
    names = [entry.name for entry in reducer.spec.graders]
    rewards = reducer.reward(judged, whole_groups=whole_groups)
    components = reducer.components(judged, whole_groups=False)
    responses = []
    for name, one, result, parts in zip(request_ids, judged, rewards, components, strict=True):
        response = JudgeResponse(
            request_id=name,
            explanation=_join_reasons(one),
            detailed_scores={name: result.reward_info.get(f"{name}_score") for name in names},
            confidence=_stated_confidence(one),
            metadata=_judge_costs(one),
        )
        responses.append(response)
        if result.missing is not None:
            response.error = _missing_error(result.missing, one)
            continue
        response.score = result.score
        response.reward_components = parts if parts and len(parts) > 1 else None
        failures = {
            name: said.kind
            for name, said in one.results()
            if isinstance(said, GraderError) and said.kind not in _NO_FAILURES
        }
        response.failures = failures or None
    return responses


_NO_FAILURES = (ErrorKind.NOT_APPLICABLE, ErrorKind.NOT_SAMPLED)


def _missing_error(missing: GraderError, judged: GradedSample) -> ErrorInfo:
    said = missing.error
    if missing.kind is ErrorKind.BUG:
        # An exception's words may quote the sample: its type and place tell enough.
        for name, result in judged.results():
            if name == missing.name and isinstance(result, GraderError) and "at" in result.metadata:
                said = f"{result.error.partition(':')[0]} at {result.metadata['at']}"
                break
    if not said.startswith(f"{missing.name}: "):
        said = f"{missing.name}: {said}"
    return ErrorInfo.of(missing, replace_surrogates(said[:_MESSAGE_LIMIT]))


def _join_reasons(judged: GradedSample) -> str | None:
    """The reason of each grader under its name; those of events are numbered."""
    found = list(judged.outcome.items())
    if not isinstance(judged.events, GraderError):
        for place, event in enumerate(judged.events):
            found += [(f"{name}[{place}]", result) for name, result in event.items()]
    lines = [
        f"{label}: {result.reason}"
        for label, result in found
        if isinstance(result, GraderScore) and result.reason
    ]
    return shorten_text("\n".join(lines), EXPLANATION_LIMIT) or None


def _stated_confidence(judged: GradedSample) -> float | None:
    """The one confidence that was stated, in a grader's metadata or its reply's fields."""
    stated = []
    for _, result in judged.results():
        fields = result.metadata.get("fields")
        for place in (result.metadata, fields if isinstance(fields, Mapping) else {}):
            value: Any = place.get("confidence")
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            if numeric and 0 <= value <= 1:
                stated.append(float(value))
                break
    return stated[0] if len(stated) == 1 else None


def _judge_costs(judged: GradedSample) -> dict[str, Any] | None:
    """``cost_usd`` where every call had a price, and the ``judges`` that answered.

    What ranking a group cost stands with its first sample; a kept reply, or another's, costs 0.
    """
    found = [one.provenance for _, one in judged.results() if one.provenance is not None]
    models = sorted({source.model for source in found if source.model})
    said: dict[str, Any] = {"judges": models} if models else {}
    used = [source for source in found if source.usage is not None]
    costs = [source.paid.cost_usd for source in used if source.paid is not None]
    if used and None not in costs:
        said["cost_usd"] = math.fsum(cost for cost in costs if cost is not None)
    return said or None


def adapt_spec(spec: RewardSpec) -> RewardSpec:
    """``spec`` as a service applies it: what belongs to a training step is left to the trainer.

    No outage is waited for and nothing stops at one (``max_missing``, ``patience_s``, policy
    ``raise``): each failure is its own request's, at once. Every request is judged
    (``sample_rate``). What compares a group stays.
    """
    policy = "mask" if spec.missing.policy == "raise" else spec.missing.policy
    changed = {"policy": policy, "max_missing": 1.0, "patience_s": 0.0}
    missing = spec.missing.model_copy(update=changed)
    reward = spec.reward.model_copy(update={"sample_rate": 1.0})
    return spec.model_copy(update={"missing": missing, "reward": reward})


class SpecBackend(Backend):
    """Scores by a reward spec, applied as :func:`adapt_spec` says; the score is the reward.

    ``version`` is the spec's fingerprint. Requests go in batches where all graders are rules,
    else one by one; then ``max_concurrency``, if the spec sets it, is how many are asked at once.
    Raises :class:`ConfigError` for a spec that cannot be built.
    """

    def __init__(self, spec: RewardSpec, damping: Damping | None = None) -> None:
        spec.refuse_schedules("a judge service", "Give the grader a number.")
        self.spec = spec = adapt_spec(spec)
        self._judges = spec.build_judges()
        graders = spec.build_graders(self._judges)
        spec.check_machine(graders)
        self._grader = BatchGrader(spec, graders)
        self.reducer = RewardReducer(spec, graders)
        self.name = spec.where
        self.compares_groups = self._grader.compares_groups
        self.damping = damping
        self.version = compute_fingerprint(spec, graders)
        if damping is not None:
            if self.compares_groups is not None:
                raise ConfigError(
                    f"damping: {spec.where} compares the samples of a group "
                    f"({self.compares_groups}); such scores cannot be damped. Leave it out."
                )
            self.version += f"-{damping.below:g}:{damping.factor:g}"
        self.one_by_one = any(map(_is_slow, graders.values()))
        self.grader_names = [entry.name for entry in spec.graders]
        if "max_concurrency" in spec.model_fields_set:
            self.max_concurrency = spec.max_concurrency

    async def start(self) -> None:
        """Load the judges that are models of this machine; raises :class:`ConfigError`."""
        for judge in self._judges.values():
            await judge.start()

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request, in order; see :class:`~adjudge.service.backend.Backend`."""
        samples = [request_to_sample(request, place) for place, request in enumerate(requests)]
        groups = [str(place) for place in range(len(samples))]
        judged = await self._grader.grade(samples, groups, [True] * len(samples))
        ids = [request.request_id for request in requests]
        return make_responses(self.reducer, ids, judged, whole_groups=False)

    async def aclose(self) -> None:
        """Close connections and caches, and let go of models."""
        for judge in self._judges.values():
            await judge.aclose()
        if any(table.has_server for table in self.spec.judges.values()):
            await aclose_all()


def _is_slow(grader: Any) -> bool:
    """Whether a grader waits: for a judge, for a program that runs, for whatever it was made to."""
    return (
        not getattr(grader, "is_rule", False)
        or getattr(grader, "type_name", "") == "code_execution"
    )


class GraderPart:
    """Some of a spec's graders, perhaps none, that are asked by themselves.

    ``reducer`` is of a spec as a service applies it (:func:`adapt_spec`). ``deadline_s``: for one
    question to all of them.
    """

    def __init__(
        self, reducer: RewardReducer, entries: list[GraderEntry], deadline_s: float
    ) -> None:
        self.entries = entries
        part = reducer.spec.model_copy(update={"graders": entries})
        self._grader = BatchGrader(part, reducer.graders)
        self._deadline_s = deadline_s

    async def grade(self, samples: Sequence[Sample], group: str) -> list[GradedSample]:
        """What they say of samples of a group; where they all fail in one way, their errors."""
        failure = ErrorKind.TIMEOUT, f"no answer within {self._deadline_s:g} s (deadline_s)"
        groups = [group] * len(samples)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._grader.grade(samples, groups, [True] * len(samples))
        except TimeoutError:
            pass
        except JudgeAuthError as error:
            failure = ErrorKind.AUTH, str(error)
        except ConfigError as error:
            failure = ErrorKind.UNSUPPORTED, str(error)
        names = [entry.name for entry in self.entries if entry.scope == "outcome"]
        outcome: dict[str, Any] = {name: GraderError(name, *failure) for name in names}
        is_whole = len(names) == len(self.entries)
        events: list[Any] | GraderError = [] if is_whole else GraderError("events", *failure)
        return [
            GradedSample(
                one.original_index, one.group_index, group, one.env_reward, outcome, events
            )
            for one in samples
        ]

    def find_kept(self, judged: GradedSample) -> dict[str, Any]:
        """What they have said of a sample before; empty where that may pass."""
        found = {one.name: judged.outcome.get(one.name) for one in self.entries}
        failed = any(one is None or getattr(one, "passing", False) for one in found.values())
        return {} if failed else found
