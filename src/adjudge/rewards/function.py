"""Reward functions: what a trainer calls, and the stock one, which a reward spec makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Unpack

from adjudge.config import find_references
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, Metadata
from adjudge.graders.base import GraderTraits
from adjudge.graders.registry import describe_object
from adjudge.judges.base import digest_source
from adjudge.rewards.batch_grader import AskOptions, BatchGrader
from adjudge.rewards.reducer import RewardReducer
from adjudge.rewards.spec import RewardSpec
from adjudge.text import encode_exactly
from adjudge.types import (
    GradedSample,
    RewardResult,
    Sample,
)
from adjudge.version import __version__


class RewardFunction:
    """Scores whole groups: derive and write :meth:`compute_batch_scores`.

    The stock one, built from a reward spec, is :class:`adjudge.rewards.SpecRewardFunction`.

    >>> import asyncio
    >>> from adjudge import RewardSample
    >>> class ResponseLength(RewardFunction):
    ...     async def compute_batch_scores(self, prompt_to_samples):
    ...         samples = [one for group in prompt_to_samples.values() for one in group]
    ...         return [
    ...             RewardResult(one.original_index, one.group_index, float(len(one.response)))
    ...             for one in samples
    ...         ]
    >>> group = [RewardSample(0, 0, "2 + 2?", "4"), RewardSample(1, 1, "2 + 2?", "four")]
    >>> results = asyncio.run(ResponseLength().compute_batch_scores({"2 + 2?": group}))
    >>> [result.score for result in results]
    [1.0, 4.0]
    """

    async def compute_batch_scores(
        self,
        prompt_to_samples: Mapping[str, Sequence[Sample]],  # noqa: ARG002  (the hook)
    ) -> list[RewardResult]:
        """One result per sample, in any order, matched by ``original_index``.

        ``prompt_to_samples`` maps a group id (the prompt, a uid) to the group's samples.
        """
        raise TypeError(f"{type(self).__name__} must define compute_batch_scores")


def check_results(
    results: Iterable[RewardResult], prompt_to_samples: Mapping[str, Sequence[Sample]]
) -> dict[int, RewardResult]:
    """Results by ``original_index``, every input index exactly once; ``ValueError`` otherwise."""
    wanted = [sample.original_index for group in prompt_to_samples.values() for sample in group]
    found: dict[int, RewardResult] = {}
    for result in results:
        if result.original_index in found:
            raise ValueError(f"two results for original_index {result.original_index}")
        found[result.original_index] = result
    if len(set(wanted)) != len(wanted):
        raise ValueError("two samples share an original_index")
    if lost := set(wanted) - found.keys():
        raise ValueError(f"no result for original_index {sorted(lost)[:10]}")
    if strange := found.keys() - set(wanted):
        raise ValueError(f"results for unknown original_index {sorted(strange)[:10]}")
    return found


class SpecRewardFunction(RewardReducer, RewardFunction):
    """Rewards as a :class:`~adjudge.rewards.RewardSpec` says.

    ``graders`` gives grader objects by name instead of building the spec's types; the other options
    are those of :class:`~adjudge.rewards.batch_grader.AskOptions`. Holds configuration, and
    what looks back over calls (the outage watch, who has answered); one object serves any thread,
    loop and process. ``draws``, ``asked_again``, ``needs_whole_groups`` and ``compares_groups`` are
    those of its :class:`~adjudge.rewards.batch_grader.BatchGrader`.

    >>> from adjudge import RewardSample, RewardSpec
    >>> spec = RewardSpec.from_dict({"graders": [{"name": "right", "type": "string_match"}]})
    >>> samples = [RewardSample(0, 0, "2 + 2?", "4", extra={"reference": "4"})]
    >>> [result.score for result in SpecRewardFunction(spec).compute({"2 + 2?": samples})]
    [1.0]
    """

    def __init__(
        self,
        spec: RewardSpec,
        *,
        graders: Mapping[str, object] | None = None,
        **options: Unpack[AskOptions],
    ) -> None:
        super().__init__(spec, graders or spec.build_graders())
        if graders is None:  # callers that pass graders check the machine themselves
            spec.check_machine(self.graders)
        self.options = options
        self._grader = self.ask_part(spec)
        self.draws, self.asked_again = self._grader.draws, self._grader.asked_again
        self.needs_whole_groups = self._grader.needs_whole_groups
        self.compares_groups = self._grader.compares_groups
        self._steps = 0

    @property
    def fingerprint(self) -> str:
        """The hash of the spec and of what its graders depend on."""
        return compute_fingerprint(self.spec, self.graders)

    def ask_part(self, spec: RewardSpec) -> BatchGrader:
        """Who asks some of the graders, those of ``spec``, as this function asks all of them."""
        return BatchGrader(spec, self.graders, **self.options)

    @property
    def answers_per_sample(self) -> int:
        """How many answers a sample has, one of each grader and of each further draw."""
        return len(self.spec.graders) + (self.draws - 1) * len(self.asked_again)

    async def compute_batch_scores(
        self, prompt_to_samples: Mapping[str, Sequence[Sample]]
    ) -> list[RewardResult]:
        """One result per sample, groups in the mapping's order.

        Raises :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`,
        under policy ``raise`` :class:`~adjudge.errors.MissingRewardError`, and a grader's
        :class:`~adjudge.errors.ConfigError`; nothing else on a grader's behalf.
        """
        samples = [sample for group in prompt_to_samples.values() for sample in group]
        groups = [key for key, group in prompt_to_samples.items() for _ in group]
        step = self._next_step()
        results = self.reward(await self.grade(samples, groups, step=step), step=step)
        check_results(results, prompt_to_samples)
        return results

    def compute(self, prompt_to_samples: Mapping[str, Sequence[Sample]]) -> list[RewardResult]:
        """:meth:`compute_batch_scores` from ordinary code."""
        return run_blocking(self.compute_batch_scores(prompt_to_samples))

    async def grade(
        self, samples: Sequence[Sample], groups: Sequence[str], *, step: int | None = None
    ) -> list[GradedSample]:
        """Ask the graders about ``samples``; ``groups[i]`` names sample *i*'s group.

        Under ``sample_rate`` every ``step`` draws other groups (by default each call is a step of
        its own); a group whose samples come in several calls needs the same step in all. A grader
        whose schedule is at 0 in this step brings about no outage.
        """
        if len(groups) != len(samples):
            raise ConfigError(
                f"groups: must name the group of each sample (found {len(groups)} names for "
                f"{len(samples)} samples)"
            )
        if step is None:
            step = self._next_step()
        drawn = {group: self.is_drawn(group, step) for group in dict.fromkeys(groups)}
        return await self._grader.grade(
            samples,
            groups,
            [drawn[group] for group in groups],
            counting=self.spec.at_step(step).counting if self.schedules else None,
        )

    def draw_values(self, judged: Sequence[GradedSample]) -> list[list[dict[str, float | None]]]:
        """What each draw of some whole groups came to: for each sample a mapping a draw.

        Its keys are :attr:`info_keys` and ``reward``, which here is ``None`` too where a grader
        that counts failed: an imputed number, or a fallback's, is no draw. A sample that was not
        drawn has an empty list.
        """
        drawn = [one for one in judged if one.sampled]
        columns = []
        for number in range(1 + max((len(one.repeats) for one in drawn), default=0)):
            ones = [one.repeats[number - 1] if number else one for one in drawn]
            column: list[dict[str, float | None]] = []
            for chain in self.explain(ones):
                whole = not chain.fell_back and not self.list_failures(chain.sample)
                reward = chain.reward if whole and isinstance(chain.reward, float) else None
                column.append({**self.list_parts(chain), "reward": reward})
            columns.append(column)
        rows = iter(zip(*columns, strict=True))
        return [list(next(rows)) if one.sampled else [] for one in judged]

    def _next_step(self) -> int:
        """The step of a call that says none: how many there were before it."""
        step, self._steps = self._steps, self._steps + 1
        return step

    def is_drawn(self, group: str, step: int) -> bool:
        """Whether a group is judged under ``sample_rate``, in this step."""
        rate = self.spec.reward.sample_rate
        if rate >= 1:
            return True
        text = f"{self.spec.reward.seed}\x00{step}\x00{group}"
        digest = blake2b(encode_exactly(text), digest_size=8).digest()
        return int.from_bytes(digest) < rate * 2**64


# --- what a built spec depends on outside it ------------------------------------------------------


def compute_fingerprint(spec: RewardSpec, graders: Mapping[str, object]) -> str:
    """The hash of a spec together with what its graders' answers depend on outside it.

    A grader's ``fingerprint`` speaks for the files it read; the source file of the user's own class
    speaks for itself. A journal or run folder of another fingerprint is another run.
    """
    said = [__version__, spec.hash]
    said += [
        describe_object(one.grader_type) for one in spec.graders if one.grader_type is not one.type
    ]
    for name in sorted(graders):
        said += _grader_fingerprints(name, graders[name])
    return _short_digest(said)


def describe_settings(spec: RewardSpec, graders: Mapping[str, object]) -> Metadata:
    """A spec as plain tables: defaults filled in, and what is not set left out.

    ``content`` of a grader is a digest of what its answers depend on outside the spec: files,
    code, judges' addresses. Where the spec's file has ``${NAME}``, so have the settings: the value
    may be a secret.
    """
    settings = spec.model_dump(mode="json", exclude_none=True, exclude={"version"})
    said = hide_variables(find_variables(spec), settings)
    tables = {}
    for entry, table in zip(spec.graders, said["graders"], strict=True):
        del table["name"]
        content = _short_digest(_grader_fingerprints(entry.name, graders[entry.name]))
        tables[entry.name] = {**table, "content": content}
    return {**said, "graders": tables}


def find_variables(spec: RewardSpec) -> dict[str, str]:
    """The texts for which the spec's file has ``${NAME}``, and what it has there."""
    path = Path(spec.where)
    return find_references(path) if path.is_file() else {}


def hide_variables(variables: Mapping[str, str], value: object) -> Any:
    """Plain data made of a spec, with ``${NAME}`` again for each text that has it in the file."""
    if isinstance(value, dict):
        return {key: hide_variables(variables, below) for key, below in value.items()}
    if isinstance(value, list):
        return [hide_variables(variables, below) for below in value]
    return variables.get(value, value) if isinstance(value, str) else value


def _short_digest(said: Sequence[str]) -> str:
    return sha256("\0".join(said).encode()).hexdigest()[:16]


def _grader_fingerprints(name: str, grader: object) -> list[str]:
    """What a grader's answers, and its judges' replies, depend on beside the spec."""
    traits = GraderTraits.of(grader)
    models = [GraderTraits.of(one).model for one in (grader, *traits.members)]
    return [
        name,
        str(traits.fingerprint),
        digest_source(type(grader)),
        # What ships has a fingerprint of its own, which a class derived from it may not know of.
        *(
            str(getattr(model, "fingerprint", "")) + digest_source(type(model))
            for model in models
            if model is not None
        ),
    ]
