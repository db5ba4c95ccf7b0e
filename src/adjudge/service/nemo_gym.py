"""NeMo-Gym's wire format: this service as the resources server that its agents ask.

Items of OpenAI's Responses API become chat messages, which graders of agents read. What is sent
for groups is NeMo-RL's: ``_ng_group_id``, one for the rollouts of a prompt, ``_ng_group_attempt``,
raised when the whole group is played again, and ``_ng_rollout_index``, the place in the group.

An error's status is raised by Gym's agent; NeMo-RL then runs the rollout again (five times), and
Gym's own collector stops, or notes it beside the results (``route_failures_to_sidecar``). Gym has a
mark for a failed judge, a row with ``reward`` 0.0 and ``_ng_failure_class``, and its collector
keeps marked rows out of the results. NeMo-RL masks such a row's loss, but in some of its loops the
0.0 still counts in the group's mean (docs/verifiers.md has which). So the mark is only for those
who ask for it: ``--format nemo-gym-marked``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec

from adjudge.intake.columns import find_reference
from adjudge.intake.conversation import read_messages
from adjudge.rollouts.fields import request_messages
from adjudge.service.formats import Format, rollout_request
from adjudge.service.requests import decode_body
from adjudge.stats import mean, quantile, std
from adjudge.wire import ErrorInfo, GroupRequest, JudgeRequest, JudgeResponse

# What an earlier verification left in a row that is verified again.
_VERDICT = (
    *("reward", "reward_components", "mask_sample", "failure_kind", "failure_reason"),
    *("_ng_failure_class", "_ng_failure_judge_error", "_ng_failure_terminal"),
)
_NOT_FIELDS = {*_VERDICT, "responses_create_params", "response", "verifier_metadata", "agent_ref"}


_MAX_REASON = 2000
"""Characters of a failure's reason in a marked row, as in Gym's own."""


class _NemoInput(msgspec.Struct):
    input: str | list[dict[str, Any]] = ""


class _NemoOutput(msgspec.Struct):
    output: list[dict[str, Any]] = []


class _NemoRow(msgspec.Struct):
    """A row of the dataset with the policy's response."""

    responses_create_params: _NemoInput
    response: _NemoOutput
    group_id: str | int | None = msgspec.field(name="_ng_group_id", default=None)
    group_attempt: int | None = msgspec.field(name="_ng_group_attempt", default=None)
    rollout_index: int | str | None = msgspec.field(name="_ng_rollout_index", default=None)


_row_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NemoGym(Format):
    """``{"responses_create_params", "response", …}`` to the same with ``reward``.

    The row's other fields, and those in ``verifier_metadata``, are the sample's; the reference is
    one of them as in every door (:data:`~adjudge.intake.columns.REFERENCE_COLUMNS`).
    A row with ``_ng_group_id`` and ``_ng_rollout_index`` is a sample of its group, for specs that
    compare.
    """

    path = "/verify"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """The one rollout."""
        asked = msgspec.json.decode(body, type=_NemoRow)
        given = asked.responses_create_params.input
        before = request_messages({"input": given}, "responses_create_params")
        after = read_messages(asked.response.output, "response.output")
        fields = _row_fields(_row_decoder.decode(body))
        reference = find_reference(fields)
        answer = None if reference is None else fields[reference]
        request = rollout_request(before, after, answer, metadata=fields or None)
        if asked.group_id is None or asked.rollout_index is None:
            return [request]
        # The size stands in the service's settings; another attempt is another group.
        group, place = f"{asked.group_id}#{asked.group_attempt or 0}", str(asked.rollout_index)
        said = {**msgspec.structs.asdict(request), "request_id": place}
        return [GroupRequest(**said, group_id=group, group_size=0, replays=True)]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """The row as it came, to the byte, with its reward."""
        row = _without_verdict(_row_decoder.decode(body))
        components = getattr(responses[0], "reward_components", None)
        parts = {} if components is None else {"reward_components": components}
        return {**row, "reward": responses[0].score, **parts}


class NemoGymMarked(NemoGym):
    """The same with Gym's own mark for a failed judge: ``--format nemo-gym-marked``."""

    def failed(self, body: bytes, failure: ErrorInfo) -> Any:
        """The row with the mark."""
        said = f"{failure.kind}: {failure.message}"[:_MAX_REASON]
        row = _without_verdict(_row_decoder.decode(body))
        config = _read_object(row.get("instance_config"))
        return {
            **row,
            "reward": 0.0,  # Gym wants a number; what it means is said by all the others
            "mask_sample": True,
            "failure_kind": "judge_failed",
            "failure_reason": said,
            "instance_config": {**config, "mask_sample": True},
            "_ng_failure_class": "judge_failed",
            "_ng_failure_judge_error": said,
        }


class NemoGymSession(Format):
    """``/seed_session``, which Gym's agents post before each rollout: nothing to prepare."""

    path = "/seed_session"

    def requests(self, body: bytes) -> list[JudgeRequest]:  # noqa: ARG002  (hook)
        """None."""
        return []

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """Always ``{}``."""
        return {}


class _MetricsRequest(msgspec.Struct):
    verify_responses: list[dict[str, Any]]


_metrics_decoder = msgspec.json.Decoder(_MetricsRequest)
_TASK, _ROLLOUT, _FAILURE = "_ng_task_index", "_ng_rollout_index", "_ng_failure_class"


class NemoGymMetrics(NemoGymSession):
    """``/aggregate_metrics``: what Gym's agents and collector log about verified rows.

    ``mean/…``, ``max/…``, ``min/…``, ``median/…``, ``std/…`` of each number of the rows and of
    their ``usage``, for each task and over all, by Gym's own names and formulas. A row whose judge
    failed is in none of them, whatever number it has: ``judge/missing_frac`` is their share.
    """

    path = "/aggregate_metrics"

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """The metrics; asks no judge."""
        return aggregate_metrics(decode_body(_metrics_decoder.decode, body).verify_responses)


def aggregate_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows' metrics in NeMo-Gym's shape; see :class:`NemoGymMetrics`.

    >>> found = aggregate_metrics([{"reward": 1.0}, {"reward": 0, "_ng_failure_class": "x"}])
    >>> found["key_metrics"], found["agent_metrics"]["judge/missing_frac"]
    ({'mean/reward': 1.0}, 0.5)
    """
    tasks: dict[int, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for row in rows:
        if row.get(_FAILURE) is None:
            tasks[row.get(_TASK) or 0].append((row.get(_ROLLOUT) or 0, _row_numbers(row)))
    groups, present = [], list[dict[str, float]]()
    for task, members in sorted(tasks.items()):
        numbers = [found for _, found in members]
        present += numbers
        infos = [
            {"rollout_id": f"{task}:{place}", _TASK: task, _ROLLOUT: place, **found}
            for place, found in sorted(members, key=itemgetter(0))
        ]
        key = {_TASK: task, "num_rollouts": len(infos), "rollout_infos": infos}
        groups.append(_describe_columns(numbers) | key)
    overall: dict[str, Any] = _describe_columns(present)
    if len(present) < len(rows):
        overall["judge/missing_frac"] = 1 - len(present) / len(rows)
    return {
        "group_level_metrics": groups,
        "agent_metrics": overall,
        "key_metrics": {k: v for k, v in overall.items() if k.startswith("mean/")},
    }


def _row_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A row's numbers by name; Gym's own fields (``_ng_…``) are none of them."""
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    found = {**row, **(usage if isinstance(usage, dict) else {})}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not name.startswith("_")
    }


def _describe_columns(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Five numbers of each column over the rows that have it; the deviation of one row is 0."""
    columns: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            columns[name].append(value)
    found = {
        f"{measure}/{name}": compute(values)
        for name, values in columns.items()
        for measure, compute in _MEASURES.items()
    }
    if len(rows) == 1:
        found |= {f"std/{name}": 0.0 for name in columns}
    return {name: value for name, value in found.items() if value is not None}


_MEASURES: Mapping[str, Callable[[Sequence[float]], float | None]] = {
    "mean": mean, "max": max, "min": min, "median": partial(quantile, q=0.5), "std": std,
}  # fmt: skip


def _without_verdict(row: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _VERDICT}


def _row_fields(row: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The sample's own fields: those of the verifier's metadata below the row's."""
    own = {
        name: msgspec.json.decode(value)
        for name, value in row.items()
        if name not in _NOT_FIELDS and not name.startswith("_ng_")
    }
    return {**_read_object(row.get("verifier_metadata")), **own}


def _read_object(value: msgspec.Raw | None) -> dict[str, Any]:
    found = None if value is None else msgspec.json.decode(value)
    return found if isinstance(found, dict) else {}
