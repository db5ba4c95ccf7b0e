"""What stands out about the judges of a run: rules over all its samples, the worst first.

Each finding is one sentence with its numbers and the links of its samples. A finding is a warning,
or a note: a fact that is common in runs where nothing is wrong. The thresholds stand here, and
:data:`CHECKED` is what the page says of them. Only graders of whole samples that ask a judge count.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from adjudge.checks.reasons import read_polarity, read_stated_score
from adjudge.errors import RunFolderError
from adjudge.judges.call_log import JudgeCall
from adjudge.messages import content_text
from adjudge.report.elements import format_integer
from adjudge.rewards.groups import group_step
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.runs.story import read_grader_facts
from adjudge.runs.transcripts import TranscriptStore
from adjudge.stats import mean, mean_and_std
from adjudge.text import final_text
from adjudge.types import Sample

MAX_SAMPLES = 20_000
"""Samples that are looked at, from the beginning of the run."""
_MAX_CALLS = 60_000
_MAX_CHARS = 300_000_000
"""Characters of prompts that are searched for answers."""
_MAX_LINKS = 20

_FEW = 3
"""Samples that a finding must have at least."""
_MIN_SAMPLES = 8
_MISSING_SHARE = 0.2
"""From here on missing scores are a warning, below a note."""
_ORDER_SHARE = 0.25
"""Pairs that change with the order: from here on a warning."""
_APART = 0.2
"""Two means that are further apart than this share of the scale differ."""
_SHOWN_SHARE = 0.02
"""Samples whose answer the judge was not shown whole."""
_WIDE = 0.5
"""Scores of equal reasons that are further apart than this share of the scale contradict them."""
_END = 0.1
"""How near to an end of the scale a score must be to contradict a plain statement."""
_AGAINST, _BY_LENGTH, _SIGMAS = -0.3, 0.7, 3.0
"""Rank correlations within groups, and how many standard errors from 0 they must be."""
_FLAT_GROUPS = 0.25
"""Of the groups whose environment's rewards differ, those with equal scores."""
_CONSEQUENCES = {"flat groups", "length"}
"""Kinds that may come from one of the others: they stand after these."""

CHECKED = (
    "missing scores, replies that could not be read and what became of them, models and sources "
    "(live, cache, cassette), pairs whose two orders disagree, constant scores, groups without "
    "spread, answers that are not whole in the judge’s prompt, answers that state a score, reasons "
    "against scores, scores against the environment’s reward, scores that follow the length"
)


class JudgeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What stands out about one grader: ``count`` samples, of which the first have ``links``."""

    level: Literal["warning", "note"]
    grader: str
    kind: str
    text: str
    share: float
    count: int
    links: Sequence[str]


class JudgeFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run, and how many samples were looked at; ``trouble``: why not all."""

    findings: Sequence[JudgeFinding] = ()
    graders: Sequence[str] = ()
    samples: int = 0
    checked: str = CHECKED
    trouble: str = ""


class _Judged(msgspec.Struct, kw_only=True):
    """What one grader said of one sample, and what its judge was asked."""

    link: str
    group: Hashable
    env: float | None
    score: float | None
    kind: str = ""
    reason: str = ""
    orders: tuple[str, str] | None = None
    is_repaired: bool = False
    calls: int = 0
    is_unread_again: bool = False
    sources: tuple[tuple[str, str], ...] = ()
    shown: float | None = None
    """The share of the answer that stands in one of the prompts."""
    length: int | None = None
    states_score: bool = False


def find_judge_problems(folder: Path) -> JudgeFindings:
    """What stands out in the run of ``folder``, whose samples may still be coming."""
    try:
        records = RunRecords(folder)
        facts = read_grader_facts(records.facts)
        if facts and not any(one.asks_judge for one in facts.values()):
            return JudgeFindings()
        judged, indices = _read_rows(records)
        trouble = ""
        if not records.is_training:
            trouble = _read_transcripts(folder, judged, indices)
    except RunFolderError as error:
        return JudgeFindings(trouble=str(error))
    found: list[JudgeFinding] = []
    names = []
    for name, rows in judged.items():
        entries = list(rows.values())
        fact = facts.get(name)
        if not any(one.calls for one in entries) and not (fact and fact.asks_judge):
            continue
        names.append(name)
        scores = [one.score for one in entries if one.score is not None]
        low, high = (fact and fact.range) or (None, None)
        low = min(scores, default=0.0) if low is None else low
        high = max(scores, default=0.0) if high is None else high
        judges = fact.judges if fact else []
        rules = _Rules(name, entries, high - low, (low, high), max(1, len(judges)))
        found += rules.find()
    found.sort(key=lambda one: (one.level == "note", one.kind in _CONSEQUENCES, -one.share))
    return JudgeFindings(findings=found, graders=names, samples=len(indices), trouble=trouble)


# --- reading ------------------------------------------------------------------------------------


def _read_rows(records: RunRecords) -> tuple[dict[str, dict[int, _Judged]], set[int]]:
    """What each grader said, by the place of the sample; a training run has places of its own."""
    judged: dict[str, dict[int, _Judged]] = {}
    seen: set[int] = set()
    for place, record in enumerate(islice(records, MAX_SAMPLES)):
        key = place if records.is_training else record.index
        seen.add(key)
        link = f"{record.step}/{record.index}" if records.is_training else str(record.index)
        for name, said in (record.details or {}).items():
            if isinstance(said, Mapping):
                judged.setdefault(name, {})[key] = _judge_of(record, said, link)
    return judged, seen


def _judge_of(record: RunRecord, said: Mapping[str, Any], link: str) -> _Judged:
    score, metadata = said.get("score"), said.get("metadata")
    found = _Judged(
        link=link,
        group=record.group_key,
        env=record.env_reward,
        score=float(score) if isinstance(score, int | float) else None,
        kind=str(said.get("kind") or "missing") if "error" in said or "kind" in said else "",
        reason=str(said.get("reason") or ""),
    )
    if isinstance(metadata, Mapping):
        found.is_repaired = bool(metadata.get("repaired"))
        verdicts = metadata.get("verdicts")
        if isinstance(verdicts, Mapping) and {"as_given", "swapped"} <= set(verdicts):
            found.orders = str(verdicts["as_given"]), str(verdicts["swapped"])
        if found.orders or metadata.get("criteria"):
            found.reason = ""  # it is several reasons, or counts criteria
    return found


_NUMBER = re.compile(r"(?<![\d.,/])\d{2,}(?![\d/%]|[.,]\d)")
"""A number of the question: reasons that differ in such numbers alone are the same. One digit, a
fraction or a share may be the score itself."""
_STATED = re.compile(r"\b(?:score|rating|grade|verdict)\W{0,4}[:=]\W{0,4}\d", re.IGNORECASE)
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|$)", re.DOTALL)


def _read_transcripts(
    folder: Path, judged: Mapping[str, Mapping[int, _Judged]], indices: Collection[int]
) -> str:
    """Add what the transcripts have; returns what they do not have."""
    answers: dict[int, str] = {}
    left = _MAX_CHARS
    with TranscriptStore(folder, read_only=True) as store:
        for index, sample in store.iter_samples(MAX_SAMPLES):
            if index not in indices or left < 0:
                continue
            answer = answers[index] = _answer_of(sample)
            left -= len(answer)
            for rows in judged.values():
                if (one := rows.get(index)) is not None:
                    one.length = len(answer)
                    one.states_score = _STATED.search(answer[-2000:]) is not None
        for index, grader, call in store.iter_calls(_MAX_CALLS):
            if (one := judged.get(grader, {}).get(index)) is not None:
                left -= _add_call(one, call, answers.get(index, "") if left > 0 else "")
    kept = len(answers)
    if kept == len(indices):
        return ""
    return f"of {format_integer(kept)} of them prompts and replies are kept"


def _answer_of(sample: Sample) -> str:
    """The answer as a judge is to see it: the last reply without its reasoning."""
    text = sample.response or ""
    return _squash(final_text(text) or _THINKING.sub("", text))


def _squash(text: str) -> str:
    return " ".join(text.split())


def _add_call(one: _Judged, call: JudgeCall, answer: str) -> int:
    """Note one call; returns how many characters were searched."""
    one.calls += 1
    if call.why in ("repair", "redraw"):
        one.is_unread_again |= bool(call.unread)
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
    most = max(
        _longest(lambda size: has(answer[:size]), len(answer)),
        _longest(lambda size: has(answer[-size:]), len(answer)),
    )
    return most / len(answer) if most >= min(40, max(24, len(answer) / 2)) else 0.0


_ESCAPED = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])(?:\\ud[c-f][0-9a-f]{2})?")


def _unescape(escaped: re.Match[str]) -> str:
    try:
        return str(json.loads(f'"{escaped[0]}"'))
    except ValueError:
        return escaped[0]


def _longest(holds: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# --- the rules ----------------------------------------------------------------------------------


class _Rules:
    """The rules over what one grader said; ``width``: how far its scores can be apart."""

    def __init__(
        self,
        grader: str,
        entries: Sequence[_Judged],
        width: float,
        ends: tuple[float, float],
        judges: int,
    ) -> None:
        self.grader, self.entries, self.width, self.ends = grader, entries, width, ends
        self._judges = judges
        self.scored = [one for one in entries if one.score is not None]
        self.scores = _scores(entries)
        self.is_constant = len(set(self.scores)) == 1 and len(self.scores) >= _MIN_SAMPLES

    def find(self) -> Iterator[JudgeFinding]:
        """All that stands out."""
        for rule in (
            self._missing,
            self._repaired,
            self._models,
            self._orders,
            self._constant,
            self._not_shown,
            self._stated_scores,
            self._reasons,
            self._correlations,
            self._flat_groups,
        ):
            yield from rule()

    def _finding(
        self, kind: str, text: str, rows: Sequence[_Judged], *, warns: bool = True
    ) -> JudgeFinding:
        return JudgeFinding(
            level="warning" if warns else "note",
            grader=self.grader,
            kind=kind,
            text=text,
            share=len(rows) / len(self.entries),
            count=len(rows),
            links=[one.link for one in rows[:_MAX_LINKS]],
        )

    def _missing(self) -> Iterator[JudgeFinding]:
        lost = [one for one in self.entries if one.kind]
        if not lost:
            return
        kinds = Counter(one.kind for one in lost).most_common()
        each = ", ".join(f"{kind} {format_integer(count)}" for kind, count in kinds)
        again = sum(one.is_unread_again for one in lost)
        after = (
            f"; {format_integer(again)} of them unreadable at a second ask, too" if again else ""
        )
        text = (
            f"{_of(lost, self.entries)} samples have no score and count as missing ({each}{after})."
        )
        share = len(lost) / len(self.entries)
        yield self._finding("missing", text, lost, warns=share >= _MISSING_SHARE)

    def _repaired(self) -> Iterator[JudgeFinding]:
        mended = [one for one in self.scored if one.is_repaired]
        others = [one for one in self.scored if not one.is_repaired]
        if len(mended) < _FEW:
            return
        first = (
            f"{_of(mended, self.scored)} scores come from a second ask after a reply that could "
            "not be read"
        )
        scores = _scores(mended)
        if len(set(scores)) == 1 and len(others) >= _FEW and len(set(_scores(others))) > 1:
            text = (
                f"{first}, and all of these are {_number(scores[0])} (the others: {_span(others)})."
            )
            yield self._finding("repaired", text, mended)
        elif len(others) >= _FEW:
            text = f"{first}; their mean is {_mean(mended)}, that of the others {_mean(others)}."
            yield self._finding("repaired", text, mended, warns=self._differ(mended, others))

    def _differ(self, some: Sequence[_Judged], others: Sequence[_Judged]) -> bool:
        """Whether two means are apart, and not by the chance of a few samples."""
        mine, theirs = _scores(some), _scores(others)
        if min(len(mine), len(theirs)) < _MIN_SAMPLES or self.width <= 0:
            return False
        return abs(mean_and_std(mine)[0] - mean_and_std(theirs)[0]) >= _APART * self.width

    def _models(self) -> Iterator[JudgeFinding]:
        by_model: dict[str, list[_Judged]] = {}
        by_source: dict[str, list[_Judged]] = {}
        for one in self.entries:
            for model in dict.fromkeys(model for model, _ in one.sources if model):
                by_model.setdefault(model, []).append(one)
            for source in dict.fromkeys(source for _, source in one.sources):
                by_source.setdefault(source, []).append(one)
        if len(by_model) > self._judges:
            parts = []
            for model, rows in sorted(by_model.items(), key=lambda one: -len(one[1])):
                sources = sorted(
                    {kind for one in rows for name, kind in one.sources if name == model}
                )
                where = " and ".join(sources)
                parts.append(
                    f"{model[:80]} ({where}) in {_of(rows, self.entries)}, mean {_mean(rows)}"
                )
            fewest = min(by_model.values(), key=len)
            text = f"{len(by_model)} models answered: {'; '.join(parts)}."
            yield self._finding("models", text, fewest)
        elif len(by_source) > 1:
            parts = [
                f"{kind} {len(rows):,}, mean {_mean(rows)}" for kind, rows in by_source.items()
            ]
            fewest = min(by_source.values(), key=len)
            inside = set(map(id, fewest))
            rest = [one for one in self.entries if id(one) not in inside]
            warns = self._differ(fewest, rest)
            text = f"Replies come from several sources: {'; '.join(parts)}."
            yield self._finding("sources", text, fewest, warns=warns)

    def _orders(self) -> Iterator[JudgeFinding]:
        pairs = [one for one in self.entries if one.orders]
        changed = [one for one in pairs if one.orders and one.orders[0] != one.orders[1]]
        if len(changed) < _FEW:
            return
        first = sum(one.orders == ("win", "loss") for one in changed)
        second = sum(one.orders == ("loss", "win") for one in changed)
        place, count = ("first", first) if first >= second else ("second", second)
        text = (
            f"{_of(changed, pairs)} pairs change with the order; the {place} place is preferred in "
            f"{format_integer(count)}."
        )
        warns = len(changed) >= _ORDER_SHARE * len(pairs)
        yield self._finding("orders", text, changed, warns=warns)

    def _constant(self) -> Iterator[JudgeFinding]:
        if self.is_constant:
            text = f"All {format_integer(len(self.scores))} scores are {_number(self.scores[0])}."
            yield self._finding("constant", text, self.scored)

    def _flat_groups(self) -> Iterator[JudgeFinding]:
        groups = [rows for rows in _groups(self.scored) if len({one.env for one in rows}) > 1]
        flat = [rows for rows in groups if len(set(_scores(rows))) == 1]
        if self.is_constant or len(flat) < _FEW or len(flat) < _FLAT_GROUPS * len(groups):
            return
        levels = sorted({_scores(rows)[0] for rows in flat})
        what = f", {_number(levels[0])} in each" if len(levels) == 1 else ""
        text = (
            f"In {_of(flat, groups)} groups all scores are equal{what}, though the environment’s "
            "rewards differ."
        )
        yield self._finding("flat groups", text, [one for rows in flat for one in rows])

    def _not_shown(self) -> Iterator[JudgeFinding]:
        asked = [(one, one.shown) for one in self.entries if one.shown is not None]
        absent = [one for one, shown in asked if shown == 0]
        cut = [(one, shown) for one, shown in asked if 0 < shown < 1]
        least = max(_FEW, _SHOWN_SHARE * len(asked))
        if len(absent) >= least:
            text = (
                f"In {_of(absent, asked)} samples the answer does not stand in the judge’s prompt."
            )
            yield self._finding("answer absent", text, absent)
        if len(cut) >= least:
            text = (
                f"In {_of(cut, asked)} samples only a part of the answer stands in the judge’s "
                f"prompt (median: {median(shown for _, shown in cut):.0%} of it)."
            )
            yield self._finding("answer cut", text, [one for one, _ in cut])

    def _stated_scores(self) -> Iterator[JudgeFinding]:
        stating = [one for one in self.scored if one.states_score]
        others = [one for one in self.scored if not one.states_score]
        if len(stating) < _FEW or len(others) < _FEW or self.width <= 0:
            return
        higher = mean_and_std(_scores(stating))[0] - mean_and_std(_scores(others))[0]
        if higher >= _APART * self.width:
            text = (
                f"{_of(stating, self.scored)} answers state a score themselves; their mean is "
                f"{_mean(stating)}, that of the others {_mean(others)}."
            )
            yield self._finding("answer states score", text, stating)

    def _reasons(self) -> Iterator[JudgeFinding]:
        low, high = self.ends
        margin = _END * self.width
        opposed = []
        alike: dict[str, list[_Judged]] = {}
        for one in self.scored if self.width > 0 and not self.is_constant else ():
            if not one.reason or one.score is None:
                continue
            wrong = -1 if one.score >= high - margin else 1 if one.score <= low + margin else 0
            if wrong and read_polarity(one.reason) == wrong:
                opposed.append(one)
            alike.setdefault(_NUMBER.sub("#", _squash(one.reason)), []).append(one)
        if len(opposed) >= _FEW:
            text = (
                f"{_of(opposed, self.scored)} reasons call the answer wrong beside the top score, "
                "or right beside the lowest."
            )
            yield self._finding("reason against score", text, opposed)
        odd = [
            one
            for rows in alike.values()
            for one in _far_from_usual(rows, _WIDE * self.width)
            if read_stated_score(one.reason) is None
        ]
        if len(odd) >= _FEW:
            said = _squash(odd[0].reason)
            text = (
                f"{_of(odd, self.scored)} scores are far from what the same reason gets elsewhere: "
                f"“{said[:90]}{'…' * (len(said) > 90)}” gets {_number(_scores(odd)[0])}."
            )
            yield self._finding("reason against score", text, odd)

    def _correlations(self) -> Iterator[JudgeFinding]:
        if self.is_constant:
            return
        against = _correlate(self.scored, [one.env for one in self.scored])
        if against is not None and against <= _AGAINST:
            text = (
                "The scores go against the environment’s reward (rank correlation within groups "
                f"{_number(round(against, 2))}): is the scale turned round?"
            )
            yield self._finding("against environment", text, self._worst_first())
        length = _correlate(self.scored, [one.length for one in self.scored])
        if length is not None and length >= _BY_LENGTH:
            text = (
                "The longer an answer, the higher its score (rank correlation within groups "
                f"{_number(round(length, 2))})."
            )
            known = [(one, one.length) for one in self.scored if one.length is not None]
            rows = [one for one, _ in sorted(known, key=lambda pair: -pair[1])]
            yield self._finding("length", text, rows)

    def _worst_first(self) -> list[_Judged]:
        apart = [
            (abs(one.score / (self.width or 1.0) - one.env), one)
            for one in self.scored
            if one.score is not None and one.env is not None
        ]
        return [one for _, one in sorted(apart, key=lambda pair: -pair[0])]


def _groups(rows: Iterable[_Judged]) -> list[list[_Judged]]:
    """The groups; the whole run where all have one member."""
    found: dict[Hashable, list[_Judged]] = {}
    for one in rows:
        found.setdefault(one.group, []).append(one)
    groups = list(found.values())
    if all(len(group) == 1 for group in groups):
        return [[one for group in groups for one in group]]
    return groups


def _correlate(rows: Sequence[_Judged], values: Sequence[float | None]) -> float | None:
    """The correlation of the ranks within groups; ``None`` where it may be chance."""
    other = {id(one): value for one, value in zip(rows, values, strict=True)}
    mine: list[float] = []
    theirs: list[float] = []
    for group in _groups(rows):
        members = [one for one in group if other[id(one)] is not None]
        a = group_step([one.score for one in members], "rank")
        b = group_step([other[id(one)] for one in members], "rank")
        for x, y in zip(a, b, strict=True):
            if x is not None and y is not None:
                mine.append(x - 0.5)
                theirs.append(y - 0.5)
    norm = (sum(x * x for x in mine) * sum(y * y for y in theirs)) ** 0.5
    if len(mine) < _MIN_SAMPLES or norm == 0:
        return None
    found = sum(x * y for x, y in zip(mine, theirs, strict=True)) / norm
    return found if abs(found) * (len(mine) - 1) ** 0.5 >= _SIGMAS else None


def _far_from_usual(rows: Sequence[_Judged], distance: float) -> list[_Judged]:
    """Of samples with one reason those whose score is far from what most of them get."""
    [(usual, times)] = Counter(_scores(rows)).most_common(1)
    if len(rows) <= _FEW or 2 * times < len(rows):
        return []
    return [one for one in rows if one.score is not None and abs(one.score - usual) >= distance]


# --- words --------------------------------------------------------------------------------------


def _scores(rows: Sequence[_Judged]) -> list[float]:
    return [one.score for one in rows if one.score is not None]


def _of(some: Sequence[object], every: Sequence[object]) -> str:
    return f"{format_integer(len(some))} of {format_integer(len(every))}"


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _mean(rows: Sequence[_Judged]) -> str:
    found = mean(_scores(rows))
    return "–" if found is None else _number(found)


def _span(rows: Sequence[_Judged]) -> str:
    scores = _scores(rows)
    return f"{_number(min(scores))} to {_number(max(scores))}"
