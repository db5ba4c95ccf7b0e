"""Checks of what the policy wrote: copies, degenerate and cut-off answers, loops of tool calls.

Copies are found by content hashes and, where a text differs in a few words, by MinHash over
3-word shingles (Broder, "On the resemblance and containment of documents", 1997): sketches are kept
of each rollout and no texts, and compared in buckets, so the time is linear in the rollouts. All
that is counted in words starts from one array of their hashes.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from adjudge.checks.check import Check, CheckResult, not_applicable
from adjudge.checks.effects import (
    MeasuredEffect,
    describe_samples,
    estimate_share_by_group,
    harm_of,
    impact_without,
    measure_difference,
    visible_share,
)
from adjudge.checks.run import AuditedRollout, AuditedRun
from adjudge.errors import GradingFailure
from adjudge.graders.rules.redundancy import action_texts
from adjudge.graders.rules.trajectory import parse_trajectory
from adjudge.messages import content_text
from adjudge.stats.estimates import np

MIN_COPY_WORDS = 8
"""Shorter answers are the same by nature: "Yes.", "42"."""

_SKETCH_COLUMNS = 8
_HALF = 1 << 26  # a column holds two hashes, and a float's 53 bits hold them exactly
_MIN_SHINGLES = 12
_SAME_OF_16 = 13  # a Jaccard index of about 0.8
_LONGEST = 1 << 20
"""Bytes of a text that are looked at for copies and repetition."""


@lru_cache(maxsize=1)
def _factors() -> Any:
    """Odd numbers, one for each order of the shingles."""
    return np.random.default_rng(0).integers(1 << 31, size=(16, 1), dtype=np.uint32) * 2 + 1


@lru_cache(maxsize=16)
def _powers(size: int) -> tuple[Any, Any]:
    """The powers of an odd number modulo 2**32 from the first on, and of its inverse from 1 on."""
    odd = 0x9E3779B1
    found = np.full(size, odd, dtype=np.uint32)
    inverse = np.full(size, pow(odd, -1, 1 << 32), dtype=np.uint32)
    inverse[0] = 1
    found, inverse = (np.multiply.accumulate(one, dtype=one.dtype) for one in (found, inverse))
    return found, inverse


@lru_cache(maxsize=2)
def hash_words(text: str) -> Any:
    """A 32-bit hash of each word of a text, case aside: of up to 1 MiB of it.

    A word's hash is Σ byte·oddⁱ, i counted from its start. All come from one running sum, since a
    Python loop over words would be most of an audit's time.
    """
    plain = text[:_LONGEST].lower()
    if not plain.isascii():
        plain = " ".join(plain.split())  # white space beyond ASCII
    raw = np.frombuffer(plain.encode("utf-8", "surrogatepass")[:_LONGEST], dtype=np.uint8)
    inside = np.zeros(len(raw) + 2, dtype=bool)
    np.greater(raw, 32, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    powers, inverse = _powers(1 << max(12, len(raw).bit_length()))
    sums = np.zeros(len(raw) + 1, dtype=np.uint32)
    np.cumsum(raw * powers[: len(raw)], dtype=np.uint32, out=sums[1:])
    at_edges, starts = sums[edges], edges[::2]
    return (at_edges[1::2] - at_edges[::2]) * inverse[starts]


@lru_cache(maxsize=8)
def hash_text(text: str) -> float:
    """52 bits of the words of a text, as a float: equal where case and white space alone differ.

    >>> hash_text("An  Answer") == hash_text("an answer") != hash_text("an answer.")
    True
    """
    digest = blake2b(hash_words(text), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> 12)


@lru_cache(maxsize=2)
def sketch_text(text: str) -> tuple[float, ...] | None:
    """The MinHash sketch of a text's 3-word shingles; ``None`` for a text too short for one."""
    words = hash_words(text)
    if len(words) < _MIN_SHINGLES + 2:
        return None
    shingles = _hash_ngrams(words, 3)
    shingles ^= shingles >> 15
    lowest = ((shingles * _factors()).min(axis=1) >> 6).tolist()
    return tuple(
        float(one * _HALF + other) for one, other in zip(lowest[::2], lowest[1::2], strict=True)
    )


def _hash_ngrams(words: Any, size: int) -> Any:
    """A 32-bit hash of each ``size`` words that follow each other."""
    count = len(words) - size + 1
    found = words[:count]
    for start in range(1, size):
        found = found * 0x85EBCA6B ^ words[start : start + count]
    return found


def _content(rollout: AuditedRollout) -> float | None:
    if not rollout.has_texts or len(rollout.generated.split(None, MIN_COPY_WORDS)) < MIN_COPY_WORDS:
        return None
    return hash_text(rollout.generated)


def measure_prompt(rollout: AuditedRollout) -> float | None:
    """The hash of a rollout's prompt."""
    return hash_text(rollout.prompt) if rollout.prompt else None


def _sketch_column(place: int) -> Any:
    def measure(rollout: AuditedRollout) -> float | None:
        sketch = sketch_text(rollout.generated) if rollout.has_texts else None
        return None if sketch is None else sketch[place]

    return measure


def find_copies(content: Any, sketch: Any, among: Any) -> Any:
    """For each row the first row that it copies, or −1.

    ``content`` has the hashes of the texts, ``sketch`` a row of columns for each; NaN is a text too
    short. ``among`` numbers what rows may be copies within: their group, say. Each row is compared
    with the first of each of its buckets, never with all.
    """
    known = np.isfinite(content)
    sketched = known & np.isfinite(sketch).all(axis=1)
    first = _first_of_buckets(content, among, known)
    halves = np.concatenate(np.divmod(np.where(sketched[:, None], sketch, 0.0), _HALF), axis=1)
    for column in sketch.T:
        other = _first_of_buckets(column, among, sketched & (first < 0))
        rows = np.flatnonzero(other >= 0)
        same = (halves[rows] == halves[other[rows]]).sum(axis=1) >= _SAME_OF_16
        first[rows[same]] = other[rows[same]]
    while (further := first[first]).max(where=first >= 0, initial=-1) >= 0:
        first = np.where((first >= 0) & (further >= 0), further, first)
    return first


def _first_of_buckets(values: Any, among: Any, used: Any) -> Any:
    """For each of the rows that are used the first row with its value among its own; else −1."""
    found = np.full(len(values), -1)
    rows = np.flatnonzero(used)
    _, numbers = np.unique(values[rows], return_inverse=True)
    keys = numbers * (int(among.max(initial=0)) + 1) + among[rows]
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    source = rows[first][place]
    found[rows] = np.where(source == rows, -1, source)
    return found


def _find_duplicates(run: AuditedRun) -> CheckResult:
    content = run.feature("duplicates.content")
    known = np.isfinite(content)
    count = int(known.sum())
    if not count:
        return not_applicable(f"no response of {MIN_COPY_WORDS} words or more")
    sketch = np.stack(
        [run.feature(f"duplicates.sketch{n}") for n in range(_SKETCH_COLUMNS)], axis=1
    )
    within = find_copies(content, sketch, run.group)
    across = find_copies(content, sketch, np.zeros(len(run), dtype=int))
    prompt = run.feature("duplicates.prompt")
    source = np.where(across >= 0, across, 0)
    elsewhere = (
        (across >= 0) & (within < 0) & np.isfinite(prompt) & np.isfinite(prompt[source])
    ) & (prompt != prompt[source])  # the same prompt again in a later epoch is no surprise
    copies, strangers = within >= 0, elsewhere
    mask = copies | strangers
    effect = estimate_share_by_group(run, mask, known)
    result = CheckResult(effect=effect, unit="share of responses", visible=visible_notable(count))
    if not is_notable(mask, known):
        return result
    parts = []
    if copies.any():
        differ = _count_different(run.reward, _first_of_buckets(content, run.group, known))
        told = f", {differ} of them word for word with another reward" if differ else ""
        parts.append(f"{copies.sum()} copy another answer of their group{told}")
    if strangers.any():
        parts.append(f"{strangers.sum()} are an answer that other prompts got, too")
    sentence = (
        f"{mask.sum()} of {count} responses ({_percent(mask.sum() / count)}) are copies, word for "
        f"word or nearly: {'; '.join(parts)}."
    )
    finding = describe_samples(
        run,
        mask,
        sentence,
        effect,
        "share of responses",
        advice="Within a group: raise the sampling temperature or check that seeds differ. Across "
        "prompts: read the text; a stock answer that is rewarded is what the policy will learn.",
    )
    return CheckResult(finding=finding, effect=effect, unit="share of responses")


def _count_different(reward: Any, first: Any) -> int:
    source = np.where(first >= 0, first, 0)
    both = (first >= 0) & np.isfinite(reward) & np.isfinite(reward[source])
    return int((both & (np.abs(reward - reward[source]) > 1e-9)).sum())


EMPTY, NO_WORDS, LOOP, REPETITION = 1.0, 2.0, 3.0, 4.0
_KINDS = {
    EMPTY: "empty",
    NO_WORDS: "without a letter or digit",
    LOOP: "ending in a loop",
    REPETITION: "repeating the same words",
}
_LOOP_TIMES, _LOOP_CHARS, _LOOP_SHARE, _LONGEST_PERIOD = 6, 200, 0.25, 2_000
_REPETITION_WORDS, _REPETITION_RATE, _NGRAM = 100, 0.6, 4
_WORD = re.compile(r"\w")


def measure_repetition(text: str) -> float:
    """The share of a text's 4-grams of words that repeat an earlier one; 0 for a short text.

    Of 541 answers of GPT-4 to IFEval the highest is 0.33; of Llama-3.1-8B's, the eight above 0.6
    are loops.

    >>> measure_repetition("and so on " * 100) > 0.95, measure_repetition("a short text")
    (True, 0.0)
    """
    if len(text) < 2 * _REPETITION_WORDS - 1 or len(words := hash_words(text)) < _REPETITION_WORDS:
        return 0.0
    grams = np.sort(_hash_ngrams(words, _NGRAM))
    return int(np.count_nonzero(grams[1:] == grams[:-1])) / len(grams)


def has_loop(text: str) -> bool:
    """Whether a text ends by saying the same thing over and over.

    The end repeats with a period that holds a letter or digit, at least 6 times, over at least 200
    characters and a quarter of the text.

    >>> has_loop("It is what it is. " * 30), has_loop("A plain answer. " + "-" * 500)
    (True, False)
    """
    text = text.rstrip()
    tail = text[-24:]
    end = len(text) - len(tail)
    if end < _LOOP_CHARS - len(tail):
        return False
    before = text.rfind(tail, max(0, end - _LONGEST_PERIOD), len(text) - 1)
    if before < 0 or not _WORD.search(text[before + len(tail) :]):
        return False
    period = end - before
    start, step = before, 1
    while start > 0:  # in steps that double while they match: a long text has long loops
        step = min(step, start)
        if text[start - step : start] == text[start - step + period : start + period]:
            start, step = start - step, 2 * step
        elif step == 1:
            break
        else:
            step //= 2
    covered = len(text) - start
    return covered >= max(_LOOP_CHARS, _LOOP_TIMES * period, _LOOP_SHARE * len(text))


def classify_output(rollout: AuditedRollout) -> float | None:
    """How a rollout's text is degenerate, by number; 0 where it is not."""
    if not rollout.has_texts:
        return None
    text = rollout.generated
    if not text.strip():
        return EMPTY
    if not _WORD.search(text) and (kind := _classify_signs(text)):
        return kind
    turns = [
        content_text(message.get("content"))
        for message in rollout.messages
        if message.get("role") == "assistant"
    ] or [rollout.response]  # without tool calls: those that repeat are another check's
    if any(map(has_loop, turns)):
        return LOOP
    return REPETITION if max(map(measure_repetition, turns)) > _REPETITION_RATE else 0.0


_LEAST_SIGNS, _LONGEST_RUN = 4, 100


def _classify_signs(text: str) -> float:
    """How a text of signs alone is degenerate: emoji, mathematics and patterns are answers."""
    signs = [one for one in text if unicodedata.category(one)[0] in "PS"]
    different = len({*signs})
    if different < _LEAST_SIGNS and len(signs) > _LONGEST_RUN:
        return LOOP
    symbols = any(unicodedata.category(one)[0] == "S" for one in signs)
    return 0.0 if symbols or different >= _LEAST_SIGNS else NO_WORDS


def _find_degenerate(run: AuditedRun) -> CheckResult:
    kind = run.feature("degenerate.kind")
    known = np.isfinite(kind)
    count = int(known.sum())
    if not count:
        return not_applicable("the texts of the rollouts are not there")
    mask = known & (kind > 0)
    effect = estimate_share_by_group(run, mask, known)
    if (kind[known] == EMPTY).all():
        finding = describe_samples(
            run,
            mask,
            f"All {count:,} responses are empty: the texts are in a column that was not read, or "
            "the run has none.",
            effect,
            "share of responses",
            advice="Look at a row. Name the column of its text: -m response=COLUMN, or "
            "-m messages=COLUMN.",
            severity="medium",
        )
        return CheckResult(finding=finding, effect=effect, unit="share of responses")
    if not is_notable(mask, known):
        return CheckResult(effect=effect, unit="share of responses", visible=visible_notable(count))
    kinds = [
        f"{int((kind == one).sum())} {name}" for one, name in _KINDS.items() if (kind == one).any()
    ]
    earned = measure_difference(mask, run.advantage, run.group)
    sentence = (
        f"{mask.sum()} of {count} responses ({_percent(mask.sum() / count)}) are degenerate: "
        f"{', '.join(kinds)}. {describe_earned(earned)}"
    )
    finding = describe_samples(
        run,
        mask,
        sentence,
        effect,
        "share of responses",
        advice="Read the samples. Where they are rewarded, the reward pays for them: add a gate or "
        "a penalty (`ngram_repetition`, `length`), or ask the judge about it.",
    )
    return CheckResult(finding=finding, effect=effect, unit="share of responses")


_SENTENCE_END = tuple(".!?。！？…:;)]}>\"'”’»`*|_-$%~")


def looks_cut(text: str) -> bool:
    """Whether a text stops in the middle: of a word's sentence, or of a fenced block.

    >>> looks_cut("It is done."), looks_cut("and so the third of these is the"), looks_cut("B")
    (False, True, False)
    """
    text = text.rstrip()
    if (text.startswith("```") + text.count("\n```")) % 2:
        return True
    line = text[text.rfind("\n") + 1 :]
    if len(line.split(None, 3)) < 4 or line.lstrip().startswith(("-", "*", "#", "|", "+", "•")):
        return False  # a heading, a list, a table, a bare answer: they need no full stop
    return text[-1] == "," or (text[-1].isalpha() and text[-1].isascii())


def _cut(rollout: AuditedRollout) -> float | None:
    return float(looks_cut(rollout.response)) if rollout.has_texts and rollout.response else None


def _find_truncation(run: AuditedRun) -> CheckResult:
    stated = run.feature("truncated")
    says = bool(np.isfinite(stated).any())
    cut = stated if says else run.feature("truncation.cut")
    name = "were cut off by the length limit" if says else "stop in the middle of a sentence"
    if not np.nansum(cut):
        if not np.isfinite(cut).any():
            return not_applicable("nothing says which responses were cut off, and no text is there")
        return not_applicable(f"no responses {name}")
    found = measure_difference(cut, run.advantage, run.group)
    test = found.test
    if test is None:
        return not_applicable(f"{int(np.nansum(cut))} responses {name}, but {found.estimate.why}")
    unit = "standard deviations of the advantage"
    result = CheckResult(
        effect=found.estimate, p_value=test.p_value, unit=unit, visible=test.visible()
    )
    if test.value <= 0:
        return msgspec.structs.replace(result, p_value=1.0)
    mask = np.nan_to_num(cut) > 0
    finding = describe_samples(
        run,
        mask,
        f"{mask.sum()} of {len(run)} responses ({_percent(float(mask.mean()))}) {name}, and they "
        f"are rewarded for it: {test.value:+.2f} standard deviations against the others of their "
        "group.",
        found.estimate,
        unit,
        advice="A cut-off answer is unfinished. Give it no reward, mask it out of the loss, or "
        "raise the length limit.",
        harm=harm_of(impact_without(run, mask), float((mask & (run.advantage > 0)).mean())),
    )
    return msgspec.structs.replace(result, finding=finding)


_MIN_ROWS, _MIN_SHARE = 3, 0.01


def is_notable(mask: Any, known: Any) -> bool:
    """Whether so many are affected that it is worth a word: three, and one in a hundred."""
    count = int(mask.sum())
    return count >= _MIN_ROWS and count >= _MIN_SHARE * int(known.sum())


def visible_notable(count: int) -> Callable[[float], float] | None:
    """The share of ``count`` samples that is found in 90 % of runs."""
    return visible_share(count, max(_MIN_ROWS, math.ceil(_MIN_SHARE * count)))


def describe_earned(effect: MeasuredEffect) -> str:
    """What a kind of sample earned against the others of its group, as a sentence."""
    estimate = effect.estimate
    if estimate.value is None:
        return "What they earned against others of their group cannot be said."
    unsure = "" if estimate.low is None else f" ({estimate.low:+.2f} to {estimate.high:+.2f})"
    if estimate.low is not None and estimate.low > 0:
        return (
            f"They are rewarded: {estimate.value:+.2f} standard deviations{unsure} above the "
            "others of their group."
        )
    return f"Against the others of their group they earned {estimate.value:+.2f} SD{unsure}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


RESPONSE_CHECKS = (
    Check(
        name="duplicates",
        title="Copied responses",
        looks_for="the same or nearly the same response twice in a group, or for other prompts",
        run=_find_duplicates,
        features={
            "duplicates.content": _content,
            "duplicates.prompt": measure_prompt,
            **{f"duplicates.sketch{n}": _sketch_column(n) for n in range(_SKETCH_COLUMNS)},
        },
    ),
    Check(
        name="degenerate",
        title="Degenerate outputs",
        looks_for="empty responses, loops and endless repetition",
        run=_find_degenerate,
        features={"degenerate.kind": classify_output},
    ),
    Check(
        name="truncation",
        title="Truncation that is rewarded",
        looks_for="responses that were cut off and earn more than the others of their group",
        run=_find_truncation,
        features={"truncation.cut": _cut},
    ),
)


LOOP_TIMES = 3
"""The same call with the same result so often is a loop; twice may be a retry."""


def count_repeats(rollout: AuditedRollout) -> float | None:
    """How often a rollout makes the call that it makes most often, with the same result each time.

    ``None`` without a readable tool call. Calls are equal with the same name and arguments, in any
    order of keys.
    """
    if not rollout.messages:
        return None
    try:
        steps = parse_trajectory(rollout.messages).steps
    except GradingFailure:
        return None
    if not steps:
        return None
    texts = action_texts([step.call for step in steps])
    times = Counter(zip(texts, (step.observation for step in steps), strict=True))
    return float(max(times.values()))


def _find_tool_loops(run: AuditedRun) -> CheckResult:
    repeats = run.feature("tool_loops.repeats")
    known = np.isfinite(repeats)
    count = int(known.sum())
    if not count:
        return not_applicable("no rollout has tool calls with results")
    mask = known & (repeats >= LOOP_TIMES)
    unit = "share of rollouts with tool calls"
    effect = estimate_share_by_group(run, mask, known)
    if not is_notable(mask, known):
        return CheckResult(effect=effect, unit=unit, visible=visible_notable(count))
    earned = measure_difference(mask, run.advantage, run.group)
    rewarded = float((mask & (run.advantage > 0)).sum()) / len(run)
    finding = describe_samples(
        run,
        mask,
        f"{mask.sum()} of {count} rollouts ({_percent(mask.sum() / count)}) make the same tool "
        f"call with the same result {LOOP_TIMES} times or more (up to "
        f"{int(repeats[mask].max())}). {describe_earned(earned)}",
        effect,
        unit,
        advice="Add `action_loop` to the spec as a penalty, or stop a rollout that repeats itself. "
        "Where loops are rewarded, look at what the reward pays for.",
        harm=max(rewarded, float(mask.sum()) / len(run) / 2),
    )
    return CheckResult(finding=finding, effect=effect, unit=unit)


TOOL_CHECKS = (
    Check(
        name="tool_loops",
        title="Tool loops",
        looks_for=f"the same call with the same result {LOOP_TIMES} times or more",
        run=_find_tool_loops,
        features={"tool_loops.repeats": count_repeats},
    ),
)
