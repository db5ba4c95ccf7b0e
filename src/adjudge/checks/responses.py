"""Checks of what the policy wrote: copies, degenerate and cut-off answers, loops of tool calls.

Copies are found by hashes and sketches of the texts (:mod:`adjudge.checks.words`), which are
compared in buckets, so the time is linear in the rollouts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.checks.check import Check, CheckResult, need, not_applicable, share_text
from adjudge.checks.effects import (
    Affected,
    MeasuredEffect,
    harm_of,
    impact_without,
    measure_difference,
)
from adjudge.checks.run import AuditedRollout, AuditedRun, BlockFeature
from adjudge.checks.words import HALF, hash_texts, measure_repetition, sketch_texts
from adjudge.errors import GradingFailure
from adjudge.graders.rules.redundancy import action_texts
from adjudge.graders.rules.trajectory import parse_trajectory
from adjudge.messages import content_text
from adjudge.stats.estimates import np

MIN_COPY_WORDS = 8
"""Shorter answers are the same by nature: "Yes.", "42"."""


def _generated(rollouts: Sequence[AuditedRollout]) -> tuple[str, ...]:
    return tuple(rollout.generated if rollout.has_texts else "" for rollout in rollouts)


def measure_content(rollouts: Sequence[AuditedRollout]) -> Any:
    """The hashes of what policies wrote; NaN where there is nothing."""
    texts = _generated(rollouts)
    return np.where([bool(text) for text in texts], hash_texts(texts), np.nan)


def measure_prompts(rollouts: Sequence[AuditedRollout]) -> Any:
    """The hashes of prompts; NaN where the prompt is missing."""
    texts = list(dict.fromkeys(rollout.prompt for rollout in rollouts))
    hashes = dict(zip(texts, hash_texts(tuple(texts)), strict=True)) | {"": math.nan}
    return np.array([hashes[rollout.prompt] for rollout in rollouts])


def _is_short(rollout: AuditedRollout) -> float:
    return float(len(rollout.generated.split(None, MIN_COPY_WORDS)) < MIN_COPY_WORDS)


_SAME_OF_16 = 13  # a Jaccard index of about 0.8


def find_copies(content: Any, sketch: Any, among: Any) -> Any:
    """For each row the first row that it copies, or −1.

    ``content`` has the hashes of the texts, ``sketch`` a row of columns for each; NaN is a text too
    short. ``among`` numbers what rows may be copies within: their group, say. Each row is compared
    with the first of each of its buckets, never with all.
    """
    known = np.isfinite(content)
    sketched = known & np.isfinite(sketch).all(axis=1)
    first = _first_of_buckets(content, among, known)
    halves = np.concatenate(np.divmod(np.where(sketched[:, None], sketch, 0.0), HALF), axis=1)
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
    content = run.feature("words.content")
    content[run.feature("duplicates.is_short") > 0] = np.nan
    known = np.isfinite(content)
    count = int(known.sum())
    need(count, f"no response of {MIN_COPY_WORDS} words or more")
    sketch = run.feature("words.sketch")
    within = find_copies(content, sketch, run.group)
    across = find_copies(content, sketch, np.zeros(len(run), dtype=int))
    prompt = run.feature("words.prompt")
    source = np.where(across >= 0, across, 0)
    # The same prompt again in a later epoch is no surprise.
    other_prompt = np.isfinite(prompt) & np.isfinite(prompt[source]) & (prompt != prompt[source])
    copies, strangers = within >= 0, (across >= 0) & (within < 0) & other_prompt
    mask = copies | strangers
    affected = Affected.measure(run, mask, known, least=_MIN_SHARE, unit="share of responses")
    parts = []
    if copies.any():
        first = _first_of_buckets(content, run.group, known)
        differ = int((np.abs(run.reward - run.reward[first])[first >= 0] > 1e-9).sum())
        told = f", {differ} of them word for word with another reward" if differ else ""
        parts.append(f"{copies.sum()} copy another answer of their group{told}")
    if strangers.any():
        parts.append(f"{strangers.sum()} are an answer that other prompts got, too")
    return affected.describe(
        f"{mask.sum()} of {count} responses ({share_text(mask.sum() / count)}) are copies, word "
        f"for word or nearly: {'; '.join(parts)}.",
        advice="Within a group: raise the sampling temperature or check that seeds differ. Across "
        "prompts: read the text; a stock answer that is rewarded is what the policy will learn.",
    )


EMPTY, NO_WORDS, LOOP, REPETITION = 1.0, 2.0, 3.0, 4.0
_KINDS = {
    EMPTY: "empty",
    NO_WORDS: "without a letter or digit",
    LOOP: "ending in a loop",
    REPETITION: "repeating the same words",
}
_LOOP_TIMES, _LOOP_CHARS, _LOOP_SHARE, _LONGEST_PERIOD = 6, 200, 0.25, 2_000
_REPETITION_RATE = 0.6
_WORD = re.compile(r"\w")


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


def classify_outputs(rollouts: Sequence[AuditedRollout]) -> Any:
    """How the text of each rollout is degenerate, by number; 0 where it is not."""
    kinds = np.array([_classify(one) if one.has_texts else math.nan for one in rollouts])
    turns = [(at, one) for at in np.flatnonzero(kinds == 0) for one in _list_turns(rollouts[at])]
    repetition = measure_repetition([text for _, text in turns])
    for place in np.flatnonzero(repetition > _REPETITION_RATE):
        kinds[turns[place][0]] = REPETITION
    return kinds


def _classify(rollout: AuditedRollout) -> float:
    text = rollout.generated
    if not text.strip():
        return EMPTY
    if not _WORD.search(text) and (kind := _classify_signs(text)):
        return kind
    return LOOP if any(map(has_loop, _list_turns(rollout))) else 0.0


def _list_turns(rollout: AuditedRollout) -> list[str]:
    """The texts of a policy without tool calls: those that repeat are another check's."""
    turns = (one for one in rollout.messages if one.get("role") == "assistant")
    return [content_text(one.get("content")) for one in turns] or [rollout.response]


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
    need(count, "the texts of the rollouts are not there")
    mask = known & (kind > 0)
    unit = "share of responses"
    if (kind[known] == EMPTY).all():
        return Affected.measure(run, mask, known, 1, unit=unit).describe(
            f"All {count:,} responses are empty: the texts are in a column that was not read, or "
            "the run has none.",
            advice="Look at a row. Name the column of its text: -m response=COLUMN, or "
            "-m messages=COLUMN.",
            severity="medium",
        )
    affected = Affected.measure(run, mask, known, least=_MIN_SHARE, unit=unit)
    kinds = [
        f"{int((kind == one).sum())} {name}" for one, name in _KINDS.items() if (kind == one).any()
    ]
    earned = measure_difference(mask, run.advantage, run.group)
    return affected.describe(
        f"{mask.sum()} of {count} responses ({share_text(mask.sum() / count)}) are degenerate: "
        f"{', '.join(kinds)}. {describe_earned(earned)}",
        advice="Read the samples. Where they are rewarded, the reward pays for them: add a gate or "
        "a penalty (`ngram_repetition`, `length`), or ask the judge about it.",
    )


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
    need(np.isfinite(cut).any(), "nothing says which responses were cut off, and no text is there")
    need(np.nansum(cut), f"no responses {name}")
    found = measure_difference(cut, run.advantage, run.group)
    if found.test is None:
        return not_applicable(f"{int(np.nansum(cut))} responses {name}, but {found.estimate.why}")
    result = found.as_result("standard deviations of the advantage")
    if found.test.value <= 0:
        return msgspec.structs.replace(result, p_value=1.0)
    mask = np.nan_to_num(cut) > 0
    return Affected(run, mask, result).describe(
        f"{mask.sum()} of {len(run)} responses ({share_text(float(mask.mean()))}) {name}, and they "
        f"are rewarded for it: {found.test.value:+.2f} standard deviations against the others of "
        "their group.",
        advice="A cut-off answer is unfinished. Give it no reward, mask it out of the loss, or "
        "raise the length limit.",
        harm=harm_of(impact_without(run, mask), float((mask & (run.advantage > 0)).mean())),
    )


_MIN_SHARE = 0.01
"""Fewer are not worth a word."""


def describe_earned(effect: MeasuredEffect) -> str:
    """What a kind of sample earned against the others of its group, as a sentence."""
    estimate = effect.estimate
    if estimate.value is None:
        return "What they earned against others of their group cannot be said."
    unsure = "" if estimate.low is None else f" ({estimate.low:+.2f} to {estimate.high:+.2f})"
    if estimate.low is not None and estimate.low > 0:
        earned = f"{estimate.value:+.2f} standard deviations{unsure}"
        return f"They are rewarded: {earned} above the others of their group."
    return f"Against the others of their group they earned {estimate.value:+.2f} SD{unsure}."


# fmt: off
RESPONSE_CHECKS = (
    Check("duplicates", "Copied responses",
          "the same or nearly the same response twice in a group, or for other prompts",
          _find_duplicates,
          features={
              "words.content": BlockFeature(measure_content),
              "words.prompt": BlockFeature(measure_prompts),
              "words.sketch": BlockFeature(lambda rollouts: sketch_texts(_generated(rollouts))),
              "duplicates.is_short": _is_short,
          }),
    Check("degenerate", "Degenerate outputs",
          "empty responses, loops and endless repetition", _find_degenerate,
          features={"degenerate.kind": BlockFeature(classify_outputs)}),
    Check("truncation", "Truncation that is rewarded",
          "responses that were cut off and earn more than the others of their group",
          _find_truncation,
          features={"truncation.cut": _cut}),
)
# fmt: on


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
    need(count, "no rollout has tool calls with results")
    mask = known & (repeats >= LOOP_TIMES)
    unit = "share of rollouts with tool calls"
    affected = Affected.measure(run, mask, known, least=_MIN_SHARE, unit=unit)
    earned = measure_difference(mask, run.advantage, run.group)
    rewarded = float((mask & (run.advantage > 0)).sum()) / len(run)
    return affected.describe(
        f"{mask.sum()} of {count} rollouts ({share_text(mask.sum() / count)}) make the same tool "
        f"call with the same result {LOOP_TIMES} times or more (up to "
        f"{int(repeats[mask].max())}). {describe_earned(earned)}",
        advice="Add `action_loop` to the spec as a penalty, or stop a rollout that repeats itself. "
        "Where loops are rewarded, look at what the reward pays for.",
        harm=max(rewarded, float(mask.sum()) / len(run) / 2),
    )


# fmt: off
TOOL_CHECKS = (
    Check("tool_loops", "Tool loops",
          f"the same call with the same result {LOOP_TIMES} times or more", _find_tool_loops,
          features={"tool_loops.repeats": count_repeats}),
)
# fmt: on
