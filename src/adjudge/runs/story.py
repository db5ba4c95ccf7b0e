"""The story of one sample as plain data: what `adjudge view` and the report draw of it.

Its rollout, its reward, each grader's verdict with what that rests on, the judge's calls, its
group. All texts in it come from rollouts, judges and files, and any of them may be hostile: they
are data for a page to show as text, never markup, code or a path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import AdjudgeError
from adjudge.graders.base import GraderTraits
from adjudge.intake.rollouts import last_said
from adjudge.judges.asking import JudgeCall
from adjudge.report.page import to_browser_json
from adjudge.rewards.function import describe_settings, find_variables, hide_variables
from adjudge.rewards.spec import RewardSpec
from adjudge.types import MISSING, Sample, get_path

MAX_PLACES = 20
"""Places of a transcript that a grader's card points at."""
_NOT_GRADERS = {"source", "events"}
_ROW_FACTS = ("index", "group", "step", "reward", "missing", "advantage", "reward_info")
_WORTH = {"win": 1.0, "tie": 0.5, "loss": 0.0}


class GraderFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run folder says of a grader, whatever it was asked (``graders`` of ``run.json``).

    ``criteria``: name, text and points of each, where the rubric is the spec's own; else
    ``rubric_field`` says where a sample has it.
    """

    name: str
    type: str = ""
    asks_judge: bool = False
    judges: list[str] = []
    role: str = "score"
    weight: float = 1.0
    scope: str = "outcome"
    range: tuple[float | None, float | None] | None = None
    mapper: dict[str, str] | None = None
    criteria: list[dict[str, Any]] = []
    rubric_field: str = ""


def describe_graders(spec: RewardSpec, graders: Mapping[str, Any]) -> list[GraderFacts]:
    """The facts of a spec's graders, which are built; ``${NAME}`` stays as the spec's file has it,
    since the value may be a secret.
    """
    found, variables = [], find_variables(spec)
    for entry in spec.graders:
        grader = graders[entry.name]
        traits, fixed, field = GraderTraits.of(grader), None, ""
        if entry.type == "rubric":
            from adjudge.graders.llm.rubric import RubricGrader  # noqa: PLC0415  (loaded with it)

            if isinstance(grader, RubricGrader):
                fixed = grader.fixed
                field = "" if fixed else grader.field
        found.append(
            GraderFacts(
                name=entry.name,
                type=entry.type,
                asks_judge=spec.asks_judge(entry),
                judges=[entry.judge] if isinstance(entry.judge, str) else entry.judge or [],
                role=str(traits.role),
                weight=entry.weight_at(0),  # a schedule's first
                scope=entry.scope,
                range=traits.score_range,
                mapper=hide_variables(variables, entry.mapper),
                criteria=hide_variables(variables, _list_criteria(fixed)),
                rubric_field=field,
            )
        )
    return found


def _list_criteria(rubric: object) -> list[dict[str, Any]]:
    if rubric is None:
        return []
    from adjudge.rubrics import Rubric  # noqa: PLC0415  (loaded where one is)

    if not isinstance(rubric, Rubric):
        return []
    return [{"name": one.id, "text": one.text, "points": one.worth} for one in rubric.criteria]


def describe_spec(spec: RewardSpec, graders: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run.json`` says of a spec, whose ``graders`` are built: the reward and the graders for
    pages, and all settings for comparisons of runs.
    """
    return {
        "reward": spec.reward.model_dump(mode="json"),
        "graders": describe_graders(spec, graders),
        "settings": describe_settings(spec, graders),
    }


def read_grader_facts(facts: Mapping[str, Any]) -> dict[str, GraderFacts]:
    """The graders of a run by name, from its ``run.json``; none where that has none."""
    try:
        graders = msgspec.convert(facts.get("graders"), list[GraderFacts])
    except msgspec.ValidationError:
        return {}
    return {one.name: one for one in graders}


def tell_story(
    graders: Mapping[str, GraderFacts],
    row: Mapping[str, Any],
    *,
    sample: Sample | None = None,
    calls: Mapping[str, Sequence[JudgeCall]] | None = None,
    members: Sequence[Mapping[str, Any]] = (),
    unkept: str = "",
) -> dict[str, Any]:
    """The story of a row of ``rewards.jsonl`` or ``rollouts.jsonl`` as JSON for a browser.

    ``graders``: the run's by name, as far as they are known; ``sample``: the row's rollout, where
    it has no messages; ``calls``: those of its judges by grader; ``members``: its group, itself
    included, as whoever compares them describes them; ``unkept``: why the rollout and the calls are
    not there.

    * ``index``, ``key``, ``where``, ``group``, ``step``, ``reward``, ``missing`` (``kind``,
      ``message``), ``env_reward``, ``advantage`` (as recorded), ``reward_info``, ``source``;
    * ``messages``, or ``prompt`` and ``response`` where there are none; ``reference``;
    * ``graders``: ``name``, ``type``, ``asks_judge``, ``judges``, ``role``, ``weight``,
      ``range``, and the verdict: ``score`` or ``rank``, ``reason``, ``failure`` (``kind``,
      ``error``) or null, ``evaluable``, ``metadata``, ``criteria``, ``orders``, ``votes``,
      ``places``, ``calls``;
    * ``turns``: by reply its ``message``, ``number``, ``env_reward``, ``advantage`` and its own
      ``graders``;
    * ``members``, and ``kept``: ``transcript``, and ``why`` not.
    """
    messages: list[Any] | None = None if sample is None else sample.messages
    if isinstance(of_row := row.get("messages"), list):
        messages = of_row
    details = _table(row.get("details"))
    calls = calls or {}
    response = sample.response if sample is not None else None
    if sample is not None and sample.messages and response == last_said(sample.messages):
        response = None
    found = {
        **{name: row.get(name) for name in _ROW_FACTS},
        "key": row.get("key") or "",
        "where": row.get("where") or "",
        "env_reward": row.get("env_reward", _table(row.get("reward_info")).get("env_reward")),
        "source": details.get("source"),
        "messages": messages,
        "prompt": sample.prompt if sample is not None and messages is None else None,
        "response": response,
        "reference": None if sample is None else sample.reference,
        "graders": _list_verdicts(graders, "outcome", details, sample, calls),
        "turns": _list_turns(graders, row, messages or [], sample, calls),
        "members": list(members),
        "kept": {"transcript": messages is not None or response is not None, "why": unkept},
    }
    return dict(to_browser_json(found))


def _list_verdicts(
    graders: Mapping[str, GraderFacts],
    scope: str,
    details: Mapping[str, Any],
    sample: Sample | None,
    calls: Mapping[str, Sequence[JudgeCall]],
) -> list[dict[str, Any]]:
    """The verdicts of one scope, in the order of the spec, then what else was written."""
    names = [name for name, one in graders.items() if one.scope == scope]
    names += [
        name
        for name, said in details.items()
        if name not in graders and name not in _NOT_GRADERS and isinstance(said, dict)
    ]
    found = []
    for name in names:
        facts, said = graders.get(name, GraderFacts(name=name)), _table(details.get(name))
        criteria = facts.criteria
        if facts.rubric_field and sample is not None:
            criteria = _own_criteria(sample, facts.rubric_field)
        verdict = _describe_verdict(said, criteria)
        if sample is not None and said:
            verdict["places"] = _place_in(sample, [*verdict["places"], *_cite(sample, verdict)])
        asked = [
            msgspec.structs.asdict(call) | {"usage": msgspec.to_builtins(call.usage)}
            for call in calls.get(name, ())
        ]
        told = {**msgspec.structs.asdict(facts), **verdict, "calls": asked}
        found.append(told | {"asks_judge": facts.asks_judge or bool(asked)})
    return found


def _list_turns(
    graders: Mapping[str, GraderFacts],
    row: Mapping[str, Any],
    messages: Sequence[Any],
    sample: Sample | None,
    calls: Mapping[str, Sequence[JudgeCall]],
) -> list[dict[str, Any]]:
    """What is known of each reply. Lists shorter than the replies are of the last ones."""
    replies = [
        place
        for place, message in enumerate(messages)
        if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    said = _list(_table(row.get("details")).get("events"))
    places: list[int | None] = [*replies] or [None] * len(said)

    def of_reply(values: Sequence[Any], number: int) -> Any:
        place = number - (len(places) - len(values))
        return values[place] if 0 <= place < len(values) else None

    found = []
    for number, message in enumerate(places):
        # The store has the calls about an event under GRADER#NUMBER.
        own = f"#{number - (len(places) - len(said))}"
        about = {key.removesuffix(own): calls[key] for key in calls if key.endswith(own)}
        event = of_reply(said, number)
        verdicts = []
        if isinstance(event, dict):
            verdicts = _list_verdicts(graders, "event", event, sample, about)
        found.append(
            {
                "message": message,
                "number": number + 1,
                "env_reward": of_reply(_list(row.get("turn_rewards")), number),
                "advantage": of_reply(_list(row.get("turn_advantages")), number),
                "graders": verdicts,
            }
        )
    return found


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# --- verdicts -----------------------------------------------------------------------------------


def _describe_verdict(
    said: Mapping[str, Any], criteria: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What one grader said, as the row has it; ``criteria``: those that it was to mark."""
    metadata = _table(said.get("metadata"))
    failed = "error" in said or "kind" in said
    reason = said.get("reason") or ""
    answers = _table(metadata.get("members"))  # of several judges, or draws of one
    lost = _table(metadata.get("missing")) if answers or "asked" in metadata else {}
    return {
        "score": said.get("score"),
        "rank": said.get("rank", metadata.get("rank")),
        "reason": reason,
        "failure": {"kind": said.get("kind"), "error": said.get("error")} if failed else None,
        "evaluable": metadata.get("evaluable", True) is not False,
        "metadata": metadata,
        "criteria": _criteria(metadata, criteria),
        "orders": _orders(metadata, str(reason)),
        "votes": [
            {"label": label, **_describe_verdict(_table(vote), criteria)}
            for label, vote in (*answers.items(), *lost.items())
        ],
        "places": [one for one in _list(metadata.get("places")) if isinstance(one, dict)],
    }


def _cite(sample: Sample, verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the answer stands that a rule read."""
    answer, response = verdict["metadata"].get("answer"), sample.response or ""
    if not isinstance(answer, str) or not answer.strip() or answer not in response:
        return []
    at = response.rfind(answer)
    label = "the answer that was read"
    return [{"start": at, "end": at + len(answer), "kind": "cited", "label": label}]


def _place_in(sample: Sample, places: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Places of the response as places of its message, counted as JavaScript counts characters."""
    answer = None
    for at, message in enumerate(sample.messages or ()):
        said = message.get("role") == "assistant" and message.get("content") == sample.response
        answer = at if said else answer
    found = []
    for place in places[:MAX_PLACES]:
        one = {"message": answer, **place}
        text = sample.response or ""
        for key in ("start", "end") if place.get("message") is None else ():
            if type(offset := place.get(key)) is int:
                one[key] = len(text[:offset].encode("utf-16-le", "surrogatepass")) // 2
        found.append(one)
    return found


def _criteria(
    metadata: Mapping[str, Any], criteria: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each criterion with its verdict: of a rubric, of instructions, of a code's tests."""
    if isinstance(marks := metadata.get("criteria"), dict):
        texts: dict[str, Mapping[str, Any]] = {str(one.get("name")): one for one in criteria}
        names = dict.fromkeys([*texts, *marks, *map(str, _list(metadata.get("missing")))])
        return [_criterion(name, texts.get(name, {}), marks.get(name)) for name in names]
    followed, asked = _list(metadata.get("followed")), _list(metadata.get("instructions"))
    if asked and len(asked) == len(followed):
        pairs = zip(asked, followed, strict=True)
        return [_criterion(str(name), {}, {"met": ok}) for name, ok in pairs]
    if (outcomes := _list(metadata.get("outcomes"))) and "passed" in metadata:
        return [
            _criterion(f"test {number}", {}, {"met": text == "passed", "reason": text})
            for number, text in enumerate(outcomes, 1)
        ]
    return []


def _criterion(name: str, facts: Mapping[str, Any], mark: object) -> dict[str, Any]:
    """``verdict``: ``met``, ``not met``, ``share`` (met to ``share``), ``not applicable``, or
    ``none``: the judge gave none.
    """
    found = _table(mark)
    met = found.get("met", MISSING)
    share = float(met) if isinstance(met, int | float) and not isinstance(met, bool) else None
    verdict = "none" if met is MISSING else "not applicable" if met is None else "share"
    if isinstance(met, bool):
        verdict = "met" if met else "not met"
    return {
        "name": name,
        "text": facts.get("text", ""),
        "points": facts.get("points"),
        "verdict": verdict,
        "share": share,
        "reason": found.get("reason", ""),
    }


def _orders(metadata: Mapping[str, Any], reason: str) -> list[dict[str, Any]]:
    """A pair's verdicts by order, seen from this response.

    ``first``: who was shown first, ``response`` (this one) or ``other``.
    """
    verdicts, failures = _table(metadata.get("verdicts")), _table(metadata.get("failures"))
    first, _, second = reason.partition("[swapped] ")
    reasons = {"as_given": first.removeprefix("[as_given] ").rstrip(), "swapped": second}
    return [
        {
            "order": order,
            "first": shown_first,
            "verdict": verdicts.get(order),
            "score": _WORTH.get(str(verdicts.get(order))),
            "reason": reasons[order],
            "failure": failures.get(order),
        }
        for order, shown_first in (("as_given", "response"), ("swapped", "other"))
        if order in verdicts or order in failures
    ]


def _own_criteria(sample: Sample, field: str) -> list[dict[str, Any]]:
    """The criteria that the sample brought; none where they are no rubric."""
    from adjudge.rubrics import parse_rubric  # noqa: PLC0415  (loaded where a rubric is)

    try:
        return _list_criteria(parse_rubric(get_path(sample.fields(), field)))
    except (AdjudgeError, ValueError, TypeError, RecursionError):
        return []
