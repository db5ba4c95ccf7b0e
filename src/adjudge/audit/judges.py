"""What the judges of a run folder said, as the checks of judges look at it.

Only graders of whole samples that ask a judge count.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.checks.judges import JudgedRun, JudgedSample
from adjudge.judges.asking import JudgeCall
from adjudge.messages import content_text
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.runs.story import read_grader_facts
from adjudge.runs.transcripts import TranscriptStore
from adjudge.text import final_text

MAX_SAMPLES = 20_000
"""Samples that are looked at, from the beginning of the run."""
_MAX_CALLS = 60_000
_MAX_CHARS = 300_000_000
"""Characters of prompts that are searched for answers."""


def read_judged(folder: Path) -> tuple[dict[str, JudgedRun], int]:
    """What each grader that asks a judge said of a run, and how many samples were looked at."""
    records = RunRecords(folder)
    facts = read_grader_facts(records.facts)
    if facts and not any(one.asks_judge for one in facts.values()):
        return {}, 0
    judged: dict[str, dict[int, JudgedSample]] = {}
    places: dict[int, int] = {}
    count = 0
    for row, record in enumerate(islice(records, MAX_SAMPLES)):
        count += 1
        places[record.index] = row
        for name, said in (record.details or {}).items():
            if isinstance(said, Mapping):
                judged.setdefault(name, {})[row] = _judged_sample(row, record, said)
    if not records.is_training:
        _read_transcripts(folder, judged, places)
    found = {}
    for name, rows in judged.items():
        fact = facts.get(name)
        if any(one.calls for one in rows.values()) or (fact and fact.asks_judge):
            found[name] = JudgedRun(
                samples=list(rows.values()),
                range=(fact and fact.range) or (None, None),
                judges=max(1, len(fact.judges) if fact else 0),
            )
    return found, count


def _judged_sample(row: int, record: RunRecord, said: Mapping[str, Any]) -> JudgedSample:
    score, metadata = said.get("score"), said.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    verdicts = metadata.get("verdicts")
    orders = None
    if isinstance(verdicts, Mapping) and {"as_given", "swapped"} <= set(verdicts):
        orders = str(verdicts["as_given"]), str(verdicts["swapped"])
    several = orders or metadata.get("criteria")  # reasons, or it counts criteria
    return JudgedSample(
        row=row,
        group=record.group_key,
        env=record.env_reward,
        score=float(score) if isinstance(score, int | float) else None,
        reason="" if several else str(said.get("reason") or ""),
        orders=orders,
        is_repaired=bool(metadata.get("repaired")),
    )


_STATED = re.compile(r"\b(?:score|rating|grade|verdict)\W{0,4}[:=]\W{0,4}\d", re.IGNORECASE)
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|$)", re.DOTALL)


def _read_transcripts(
    folder: Path, judged: Mapping[str, Mapping[int, JudgedSample]], places: Mapping[int, int]
) -> None:
    """Add what the transcripts have."""
    answers: dict[int, str] = {}
    left = _MAX_CHARS
    with TranscriptStore(folder, read_only=True) as store:
        for index, sample in store.iter_samples(MAX_SAMPLES):
            if index not in places or left < 0:
                continue
            text = sample.response or ""  # the last reply without its reasoning
            answer = answers[index] = _squash(final_text(text) or _THINKING.sub("", text))
            left -= len(answer)
            for rows in judged.values():
                if (one := rows.get(places[index])) is not None:
                    one.states_score = _STATED.search(answer[-2000:]) is not None
        for index, grader, call in store.iter_calls(_MAX_CALLS):
            if (one := judged.get(grader, {}).get(places.get(index, -1))) is not None:
                left -= _add_call(one, call, answers.get(index, "") if left > 0 else "")


def _squash(text: str) -> str:
    return " ".join(text.split())


def _add_call(one: JudgedSample, call: JudgeCall, answer: str) -> int:
    """Note one call; returns how many characters were searched."""
    one.calls += 1
    if call.why in ("repair", "redraw"):
        one.is_repaired |= call.reply is not None and not call.unread
    if call.reply is not None:
        source = "live" if call.source == "shared" else call.source or "live"
        one.sources = (*one.sources, (call.model or "", source))
    if not answer or one.shown == 1:
        return 0
    prompt = _squash("\n".join(content_text(message.get("content")) for message in call.messages))
    shown = _shown_share(prompt, answer)
    one.shown = shown if one.shown is None else max(one.shown, shown)
    return len(prompt)


def _shown_share(prompt: str, answer: str) -> float:
    """The share of ``answer`` that stands in ``prompt``, as it is or in JSON; 0 for next to none.

    The end of a short text, "7 seats" of "357 seats", stands in many a prompt by chance.
    """
    if answer in prompt:
        return 1.0
    plain = _squash(_ESCAPED.sub(_unescape, prompt)) if "\\" in prompt else ""

    def has(text: str) -> bool:
        return text in prompt or text in plain

    if has(answer):
        return 1.0
    sizes = range(1, len(answer) + 1)
    most = max(
        bisect_right(sizes, False, key=lambda size: not has(answer[:size])),
        bisect_right(sizes, False, key=lambda size: not has(answer[-size:])),
    )
    return most / len(answer) if most >= min(40, max(24, len(answer) / 2)) else 0.0


_ESCAPED = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])(?:\\ud[c-f][0-9a-f]{2})?")


def _unescape(escaped: re.Match[str]) -> str:
    try:
        return str(json.loads(f'"{escaped[0]}"'))
    except ValueError:
        return escaped[0]
