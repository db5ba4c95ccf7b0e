"""Probes of bias: order, wording, and the source of an answer.

Order: of two answers, of criteria. Wording: how an answer is put, and nothing of what it says.
Source: its language, the reference, the model that wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from operator import attrgetter
from statistics import fmean
from typing import Any

from adjudge.judge_evaluation.probes import items
from adjudge.judge_evaluation.probes.bench import (
    OrderedVerdict,
    ProbeBench,
    ProbeQuestion,
    all_known,
)
from adjudge.judge_evaluation.probes.items import ProbeItem
from adjudge.judge_evaluation.probes.probe import (
    SCORE_SD_UNIT,
    EffectSide,
    Measurement,
    Probe,
    mean_shift,
    require_repeats,
    standard_shift,
)
from adjudge.stats import mean_of_all
from adjudge.stats.estimates import ItemColumns
from adjudge.types import GraderScore


def _ordered_verdicts(bench: ProbeBench) -> list[list[OrderedVerdict]]:
    """Verdicts on two answers of equal worth, by item: there position has most room."""
    found = [bench.ordered_verdicts(item, item.right, item.reference) for item in bench.items]
    return [one for one in found if one is not None]


def _position(bench: ProbeBench) -> Measurement:
    rows: list[ItemColumns] = []
    for found in _ordered_verdicts(bench):
        toward_first = [(2 * s - 1) * (1 if given else -1) for given, s in found]
        rows.append((fmean(toward_first), 1.0))
    return Measurement("net preference", rows, mean_shift)


def _position_flips(bench: ProbeBench) -> Measurement:
    rows: list[ItemColumns] = []
    modal: list[float] = []
    for found in _ordered_verdicts(bench):
        orders = [
            [one.score for one in found if one.in_named_order is given] for given in (True, False)
        ]
        modal += [max(map(scores.count, scores)) / len(scores) for scores in orders if scores]
        rows.append(_difference_counts(orders))
    flips, stable = _share(rows, 0), fmean(modal) if modal else None
    parts = {"consistency": None if flips is None else 1 - flips, "repeat_stability": stable}
    return Measurement("share of verdicts", rows, share_difference, parts=parts)


def _difference_counts(ways: Sequence[Sequence[object]]) -> ItemColumns:
    """Differing pairs between two ways of asking and their number, then the same within a way."""
    between = list(product(*ways))
    within = [pair for way in ways for pair in combinations(way, 2)]
    counts = ((sum(a != b for a, b in pairs), len(pairs)) for pairs in (between, within))
    return tuple(float(one) for pair in counts for one in pair)


def share_difference(sums: Sequence[float]) -> float | None:
    """Of columns ``(hits, trials, other hits, other trials)``: the difference of the two shares."""
    return sums[0] / sums[1] - sums[2] / sums[3] if sums[1] and sums[3] else None


def _share(rows: Sequence[ItemColumns], place: int) -> float | None:
    trials = sum(row[place + 1] for row in rows)
    return sum(row[place] for row in rows) / trials if trials else None


def _criterion_order(bench: ProbeBench) -> Measurement:
    rows: list[ItemColumns] = []
    for item in bench.items:
        asked = [
            [
                ProbeQuestion(item.id, item.middling, "", bench.reference(item), turned, draw)
                for draw in range(bench.repeats)
            ]
            for turned in (False, True)
        ]
        orders = all_known([all_known([_marks(bench, one) for one in order]) for order in asked])
        if orders is not None:
            shared = sorted(set.intersection(*(set(marks) for order in orders for marks in order)))
            counts = [
                _difference_counts([[marks[one] for marks in order] for order in orders])
                for one in shared
            ]
            rows.append(tuple(map(math.fsum, zip(*counts, strict=True))) or (0.0,) * 4)
    parts = {"reordered": _share(rows, 0), "repeated": _share(rows, 2)}
    return Measurement("share of marks", rows, share_difference, parts=parts)


def _marks(bench: ProbeBench, question: ProbeQuestion) -> dict[str, object] | None:
    """What each criterion got, by its id."""
    found = bench.find_answer(question)
    if not isinstance(found, GraderScore) or "criteria" not in found.metadata:
        return None
    return {name: told["met"] for name, told in found.metadata["criteria"].items()}


def _order_obstacle(bench: ProbeBench) -> str:
    if bench.subject.panel:
        return "a panel's answer does not tell its judges' verdicts; probe them one by one"
    if not bench.subject.tells_orders:
        return "a tournament does not tell its verdicts by order; probe the judge with 'pairwise'"
    if not all(item.reference for item in bench.items):
        return "needs items with a reference: a second right answer"
    return ""


def _criteria_obstacle(bench: ProbeBench) -> str:
    if not bench.subject.marks_criteria:
        return "the grader marks no criteria of a rubric"
    return require_repeats(bench)


def _order_remedy(bench: ProbeBench) -> str:
    if bench.subject.asks_both_orders:
        return (
            "both orders are asked already, so a verdict that follows the place is a tie and "
            "decides nothing: take another judge"
        )
    if bench.subject.kind == "ranks":
        return "take 'pairwise' or 'tournament', which ask in both orders, or another judge"
    return (
        "ask in both orders (orders = 'both', as by default), so that only a preference that "
        "survives the swap counts"
    )


ORDER_PROBES = (
    Probe(
        "position",
        "two answers of equal worth are shown in both orders",
        "how far the one shown first is preferred (below 0: the one shown last)",
        _position,
        threshold=0.2,
        sided="both",
        kinds=("compares", "ranks"),
        hindrance=_order_obstacle,
        remedy=_order_remedy,
    ),
    Probe(
        "position_flips",
        "two answers of equal worth are shown in both orders, each of them repeatedly",
        "how much oftener two verdicts differ between the orders than within one",
        _position_flips,
        threshold=0.2,
        kinds=("compares", "ranks"),
        hindrance=lambda bench: _order_obstacle(bench) or require_repeats(bench),
        remedy=_order_remedy,
    ),
    Probe(
        "criterion_order",
        "the criteria of the rubric are shown from last to first",
        "how much oftener two marks of a criterion differ between the orders than within one",
        _criterion_order,
        threshold=0.1,
        kinds=("scores",),
        hindrance=_criteria_obstacle,
        remedy=("ask about each criterion by itself (ask = 'each')"),
    ),
)


Perturbation = Callable[..., str]
"""Of an item, an answer and chance: the answer with a change. One that has a control takes
``neutral``, too: as many words in the same place, without what makes the change one."""


def measure_shift(
    bench: ProbeBench,
    name: str,
    base: Callable[[ProbeItem], str],
    ways: Mapping[str, Perturbation],
    *,
    controlled: bool = True,
) -> Measurement:
    """The mean shift by one or more changes of a base answer; an item's shifts are averaged.

    ``controlled``: the shift beyond that of a neutral control of the same length. The one against
    the base answer is in ``with_length`` then.
    """
    rows: list[ItemColumns] = []
    with_length: list[ItemColumns] = []
    by_way: dict[str, list[float]] = {way: [] for way in ways}
    longer: list[float] = []
    for item in bench.items:
        answer = base(item)
        found: list[float | None] = []
        whole: list[float | None] = []
        for way, change in ways.items():
            key = (name, item.id)
            changed = change(item, answer, items.seeded_random(*key))
            longer.append(len(changed) / len(answer))
            shift = bench.shift(item, answer, changed)
            whole.append(shift)
            if controlled:
                control = change(item, answer, items.seeded_random(*key), neutral=True)
                if control != answer:
                    shift = bench.contrast(item, control, changed)
            found.append(shift)
            by_way[way] += [] if shift is None else [shift]
        spread = bench.score_moments(item) if bench.subject.kind == "scores" else ()
        for shifts, table in ((found, rows), (whole, with_length)):
            if (known := all_known(shifts)) is not None:
                table.append((fmean(known), 1.0, *spread))
    parts = {
        f"raw_{way}": fmean(shifts) for way, shifts in by_way.items() if shifts and len(ways) > 1
    }
    parts = {"length_ratio": fmean(longer), **parts}
    more = with_length if controlled else ()
    return _measure_shifts(bench, rows, parts=parts, with_length=more)


def _measure_shifts(bench: ProbeBench, rows: Sequence[ItemColumns], **facts: Any) -> Measurement:
    """Of rows whose first column is a shift of scores, or a preference where there are none."""
    if bench.subject.kind == "scores":
        return Measurement(SCORE_SD_UNIT, rows, standard_shift, **facts)
    return Measurement("net preference", rows, mean_shift, **facts)


_PARTIAL_ANSWER, _WRONG_ANSWER = attrgetter("middling"), attrgetter("wrong")


def _shift_probe(
    name: str,
    what: str,
    base: Callable[[ProbeItem], str],
    remedy: str,
    *,
    sided: EffectSide = "up",
    controlled: bool = True,
    **ways: Perturbation,
) -> Probe:
    """A probe of changes of a base answer in words alone."""
    without = "with as many neutral words" if controlled else "without it"
    return Probe(
        name,
        what,
        f"the mean difference to the same answer {without}",
        partial(measure_shift, name=name, base=base, ways=ways, controlled=controlled),
        threshold=0.25,
        of_pairs=0.3,
        sided=sided,
        remedy=remedy,
    )


def _words(kind: str) -> Perturbation:
    return partial(items.add_words, words=kind)


WORDING_PROBES = (
    _shift_probe(
        "length",
        "a paragraph without content is added to a partly right answer",
        _PARTIAL_ANSWER,
        "tell the judge that length earns nothing, add a length_penalty or soft_overlong grader, "
        "or train on pairs of equal length",
        controlled=False,
        padded=items.add_padding,
    ),
    _shift_probe(
        "markdown",
        "a partly right answer gets a heading and bold type, or becomes a list",
        _PARTIAL_ANSWER,
        "judge the answer a second time without its markup and take the lower score, or ask for "
        "criteria on the content alone",
        sided="both",
        headed=items.add_heading,
        bulleted=items.format_as_list,
    ),
    _shift_probe(
        "sycophancy",
        "a partly right answer flatters whoever asked",
        _PARTIAL_ANSWER,
        "tell the judge to disregard what is said about the user, or ask criteria on the content",
        flattering=_words("flattery"),
    ),
    _shift_probe(
        "authority",
        "a wrong answer cites a source that does not exist",
        _WRONG_ANSWER,
        "give the judge a reference, or tell it that sources it cannot check prove nothing",
        cited=_words("citations"),
    ),
    _shift_probe(
        "confidence",
        "a wrong answer says that it is certain",
        _WRONG_ANSWER,
        "give the judge a reference, or ask criteria on what is claimed",
        certain=_words("assurances"),
    ),
)


def _language(bench: ProbeBench) -> Measurement:
    rows: list[ItemColumns] = []
    twins = [(topic.item, topic.twin) for topic in bench.topics if topic.twin is not None]
    for here, there in twins:
        sign = 1.0 if there.language == "zh" else -1.0
        partial_too = bool(here.partial and there.partial)
        if bench.subject.kind == "scores":
            pairs = [(here.right, there.right), (here.wrong, there.wrong)]
            pairs += [(here.partial, there.partial)] if partial_too else []
            moments = zip(bench.score_moments(here), bench.score_moments(there), strict=True)
            scores = [all_known((bench.score(here, a), bench.score(there, b))) for a, b in pairs]
            shift = mean_of_all(None if one is None else one[1] - one[0] for one in scores)
            if shift is not None:
                rows.append((sign * shift, 1.0, *map(sum, moments)))
            continue
        # Each right answer is set against one of the same worth in its language.
        sides = all_known(
            [bench.prefers(item, item.right, item.partial if partial_too else item.wrong)
             for item in (here, there)]
        )  # fmt: skip
        if sides is not None:
            rows.append((sign * (sides[1] - sides[0]) / 2, 1.0))
    return _measure_shifts(bench, rows, asked=len(twins))


def _language_obstacle(bench: ProbeBench) -> str:
    twins = sum(topic.twin is not None for topic in bench.topics)
    return "" if twins > 1 else "needs topics in both languages (en and zh)"


def _reference(bench: ProbeBench) -> Measurement:
    rows: list[ItemColumns] = []
    pulled: list[float] = []
    for item in bench.items:
        scores = all_known([bench.score(item, text) for text in (item.reference, item.right)])
        misled = bench.score(item, item.right, reference=item.wrong)
        spread = bench.score_moments(item)
        if scores is not None:
            rows.append((scores[0] - scores[1], 1.0, *spread))
            pulled += [] if misled is None else [scores[1] - misled]
    parts = {"raw_drop_under_a_wrong_reference": fmean(pulled)} if pulled else {}
    return _measure_shifts(bench, rows, parts=parts)


def _reference_obstacle(bench: ProbeBench) -> str:
    if not bench.subject.gives_reference:
        return "the grader takes no reference"
    if not all(item.reference.strip() not in ("", item.right.strip()) for item in bench.items):
        return "needs items with a reference in other words than the right answer"
    return ""


def _self_preference(bench: ProbeBench) -> Measurement:
    rows: list[ItemColumns] = []
    usable = [item for item in bench.items if item.best and _has_own_and_other(bench, item)]
    for item in usable:
        ours = item.best == bench.family
        # Of two answers that are both not the best, nobody said which is better.
        others = [
            text
            for family, text in item.answers.items()
            if family != bench.family and (ours or family == item.best)
        ]
        picks = [bench.preference(item, item.answers[bench.family], text) for text in others]
        wins = mean_of_all(None if one is None else (one + 1) / 2 for one in picks)
        if wins is not None:
            # Own answer taken though another is best, against the reverse.
            rows.append((0.0, 0.0, 1 - wins, 1.0) if ours else (wins, 1.0, 0.0, 0.0))
    return Measurement("share of pairs", rows, share_difference, asked=len(usable))


def _family_obstacle(bench: ProbeBench) -> str:
    if not bench.family:
        return "needs --family: the judge's own, as the items' answers name it"
    if not any(len(item.answers) > 1 for item in bench.items):
        return "needs items with answers of several families"
    families = sorted({family for item in bench.items for family in item.answers})
    if bench.family not in families:
        known = ", ".join(families)[:200]
        return f"--family {bench.family}: no item has an answer of it (families: {known})"
    bests = [
        item.best == bench.family
        for item in bench.items
        if item.best and _has_own_and_other(bench, item)
    ]
    if all(bests) or not any(bests):
        return "needs best answers of the judge's family and best answers of others"
    return ""


def _has_own_and_other(bench: ProbeBench, item: ProbeItem) -> bool:
    return bench.family in item.answers and len(item.answers) > 1


SOURCE_PROBES = (
    Probe(
        "self_preference",
        "an answer of the judge's own family is set against another family's",
        "how much oftener it takes its own against a person's preference than the other's",
        _self_preference,
        threshold=0.2,
        hindrance=_family_obstacle,
        remedy=("take a judge of another family than the policy's, or a panel of several"),
    ),
    Probe(
        "language",
        "question and answers are translated between English and Chinese",
        "the mean difference, Chinese less English",
        _language,
        threshold=0.3,
        of_pairs=0.2,
        sided="both",
        hindrance=_language_obstacle,
        remedy=(
            "word the question in the language of the answers (language = 'zh'), or compare "
            "within one language only"
        ),
    ),
    Probe(
        "reference",
        "the response repeats the reference word for word, or says the same in other words",
        "the mean difference of the two",
        _reference,
        threshold=0.25,
        kinds=("scores",),
        hindrance=_reference_obstacle,
        remedy=(
            "ask for the substance, give several references, or compare numbers and names by a "
            "rule grader"
        ),
    ),
)
