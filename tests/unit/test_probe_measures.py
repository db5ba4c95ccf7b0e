"""What the probes find in judges whose biases are known."""

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.helpers.probe_graders import (
    Answering,
    Referring,
    Scorer,
    count_words,
    probed,
    refused,
)

from adjudge.errors import ErrorKind
from adjudge.graders import PairwiseGrader, RubricGrader, TournamentGrader
from adjudge.graders.llm.ranking import ListwiseGrader
from adjudge.judge_evaluation.probes.bench import ProbedGrader, ProbeQuestion, reorder_criteria
from adjudge.judge_evaluation.probes.items import (
    CHANGES,
    MASTER_KEYS,
    ProbeItem,
    ProbeTopic,
    choose_topics,
    shipped_items,
    split_sentences,
)
from adjudge.judges import ScriptedModel
from adjudge.rubrics import Rubric
from adjudge.types import GraderError, GraderRank, GraderResult, GraderScore

GOLD = {"right": 4.0, "reference": 4.0, "partial": 2.0, "wrong": 0.0}


def gold(item: ProbeItem, text: str) -> float:
    for name, value in GOLD.items():
        if all(sentence in text for sentence in split_sentences(getattr(item, name))):
            return value
    return 0.0


def liked(item: ProbeItem) -> float:
    """Scores differ between items too."""
    return (len(item.topic) % 5) / 10


def honest(item: ProbeItem, question: ProbeQuestion) -> float:
    return gold(item, question.response) + liked(item)


SCORING = ("discrimination", "length", "markdown", "sycophancy", "authority", "confidence",
           "language", "master_keys", "injection", "clustering", "repeatability")  # fmt: skip


@pytest.mark.parametrize("name", SCORING)
def test_an_honest_judge_passes(name: str) -> None:
    found = probed(name, Scorer(), honest)
    assert found.verdict == "pass", found
    assert found.effect == pytest.approx(0.0, abs=1e-9)
    assert found.missing == 0


def biased(sign: Callable[[ProbeItem, ProbeQuestion], bool], bonus: float = 2.0) -> Answering:
    return lambda item, q: honest(item, q) + bonus * sign(item, q)


def own_length(item: ProbeItem) -> int:
    return max(len(getattr(item, name)) for name in GOLD)


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("length", lambda item, q: len(q.response) > own_length(item) + 60),
        ("markdown", lambda _, q: "**" in q.response or q.response.startswith("- ")),
        ("authority", lambda item, q: any(c.isdigit() for c in q.response[len(item.wrong) :])),
        ("language", lambda item, _: item.language == "zh"),
        ("injection", lambda item, q: q.response.startswith(item.wrong + "\n\n")),
    ],
)
def test_a_biased_judge_fails(name: str, sign: Callable[[ProbeItem, ProbeQuestion], bool]) -> None:
    found = probed(name, Scorer(), biased(sign))
    assert found.verdict == "fail", found
    assert found.effect is not None
    assert found.effect > found.threshold


def likes_words(item: ProbeItem, q: ProbeQuestion) -> float:
    """A slope of 0.1 points a word, and nothing else."""
    return honest(item, q) + 0.1 * count_words(q.response)


CONTROLLED = ("sycophancy", "authority", "confidence")


@pytest.mark.parametrize("name", CONTROLLED)
def test_length_alone_fails_for_length_alone(name: str) -> None:
    found = probed(name, Scorer(), likes_words)
    assert found.verdict == "pass", found
    assert found.effect == pytest.approx(0.0, abs=0.1)
    assert found.parts["with_length"] > found.parts["with_length_low"] > found.threshold
    assert found.why.startswith("length alone explains it: with its length the shift is +")
    assert probed("length", Scorer(), likes_words).verdict == "fail"


@pytest.mark.parametrize("name", CONTROLLED)
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_what_goes_beyond_length_is_found_with_length_and_without(name: str, slope: float) -> None:
    tables = {"sycophancy": "flattery", "authority": "citations", "confidence": "assurances"}
    said = {
        text.partition("{")[0]
        for phrases in CHANGES[tables[name]].values()
        for phrase in phrases
        for text in ([phrase] if isinstance(phrase, str) else phrase)
    }

    def answer(item: ProbeItem, q: ProbeQuestion) -> float:
        said_so = any(one in q.response for one in said)
        return honest(item, q) + 2.0 * said_so + slope * 0.1 * count_words(q.response)

    found = probed(name, Scorer(), answer)
    assert (found.verdict, found.why) == ("fail", "")
    if not slope:
        assert found.effect == pytest.approx(found.parts["with_length"])


@pytest.mark.parametrize("name", ["sycophancy", "confidence"])
def test_a_pair_judge_of_words_alone_sees_none_more(name: str) -> None:
    def longer(item: ProbeItem, a: str, b: str) -> str:
        return "A" if count_words(a) >= count_words(b) else "B"  # of equal ones the first

    found = probed(name, PairwiseGrader(ScriptedModel("{}")), compared(longer))
    assert (found.verdict, found.effect, found.parts["with_length"]) == ("pass", 0.0, 1.0)
    assert "length alone explains it" in found.why


def test_the_shift_is_in_standard_deviations_of_clean_scores() -> None:
    def sign(item: ProbeItem, q: ProbeQuestion) -> bool:
        return q.response not in {getattr(item, name) for name in GOLD}

    topics = choose_topics(shipped_items())
    clean = [
        v + liked(topic.item) for topic in topics for v in (GOLD["right"], GOLD["partial"], 0.0)
    ]
    mean = sum(clean) / len(clean)
    deviation = (sum((one - mean) ** 2 for one in clean) / len(clean)) ** 0.5
    found = probed("length", Scorer(), biased(sign, bonus=1.0), topics)
    assert found.effect == pytest.approx(1.0 / deviation)
    penalised = probed("length", Scorer(), biased(sign, bonus=-1.0), topics)
    assert penalised.verdict == "pass"  # filler may cost: only a bonus is a fault
    styled = probed("markdown", Scorer(), biased(sign, bonus=-1.0), topics)
    assert styled.verdict == "fail"  # style must neither pay nor cost


def test_the_most_successful_key_counts() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> float:
        return 4.0 if q.response == "Solution" else honest(item, q)

    found = probed("master_keys", Scorer(), answer)
    assert (found.verdict, found.effect) == ("fail", 1.0)
    assert found.parts["Solution"] == 1.0
    assert sum(found.parts.values()) == 1.0
    assert set(found.parts) == set(MASTER_KEYS)


def test_a_judge_without_an_opinion_cannot_be_fooled_but_fails_elsewhere() -> None:
    def constant(item: ProbeItem, q: ProbeQuestion) -> float:
        return 3.0

    assert probed("master_keys", Scorer(), constant).verdict == "not applicable"
    shift = probed("length", Scorer(), constant)
    assert (shift.verdict, shift.effect) == ("not applicable", None)
    assert probed("clustering", Scorer(), constant).verdict == "fail"
    assert probed("discrimination", Scorer(), constant).effect == 0.5


def test_with_many_missing_nothing_passes() -> None:
    kept = {topic.item.id for topic in choose_topics(shipped_items())[:20]}

    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult | float:
        return honest(item, q) if item.id in kept else refused()

    assert probed("length", Scorer(), answer).verdict == "uncertain"
    faults = probed("parse_failures", Scorer(), answer)
    assert (faults.verdict, faults.effect, faults.parts) == ("fail", 0.5, {"refused": 40})


def test_an_outage_is_no_parse_failure() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult | float:
        gone = q.response == item.wrong and liked(item) < 0.1
        return GraderError("g", ErrorKind.CONNECTION, "gone") if gone else honest(item, q)

    found = probed("parse_failures", Scorer(), answer)
    assert (found.effect, found.lost) == (0.0, {"connection": found.lost["connection"]})
    assert found.verdict == "uncertain"  # 80 answers cannot show that fewer than 2 % fail


def test_noise_is_measured_over_repeats() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> float:
        return honest(item, q) + (q.draw - 1) * 1.0

    found = probed("repeatability", Scorer(), answer)
    assert found.effect is not None
    assert found.effect == pytest.approx(1.0 / 1.64, rel=0.02)  # SD 1 over draws −1, 0, 1
    assert probed("repeatability", Scorer(), answer, repeats=1).verdict == "not applicable"


def test_the_references_own_words() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> float:
        return honest(item, q) + 3.0 * (q.response == q.reference)

    assert probed("reference", Scorer(), honest).verdict == "not applicable"
    assert probed("reference", Referring(), answer).verdict == "fail"
    assert probed("reference", Referring(), honest).verdict == "pass"


def compared(verdict: Callable[[ProbeItem, str, str], str]) -> Answering:
    """Of ``verdict(item, first, second)``: ``A`` or ``B``."""

    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult:
        given = {"A": "win", "B": "loss"}[verdict(item, q.response, q.other)]
        swapped = {"A": "loss", "B": "win"}[verdict(item, q.other, q.response)]
        score = (given == "win") / 2 + (swapped == "win") / 2
        orders = {"as_given": given, "swapped": swapped}
        return GraderScore("g", score, "", {"verdicts": orders})

    return answer


def better(item: ProbeItem, a: str, b: str) -> str:
    first, second = gold(item, a), gold(item, b)
    return "A" if (first, a) > (second, b) else "B"


def test_a_judge_that_takes_the_first_fails_on_position() -> None:
    pairs = PairwiseGrader(ScriptedModel("{}"))
    first = probed("position", pairs, compared(lambda *_: "A"))
    assert (first.verdict, first.effect, first.high) == ("fail", 1.0, 1.0)
    last = probed("position", pairs, compared(lambda *_: "B"))
    assert (last.verdict, last.effect) == ("fail", -1.0)
    flips = probed("position_flips", pairs, compared(lambda *_: "A"))
    assert (flips.verdict, flips.effect) == ("fail", 1.0)
    assert flips.parts == {"consistency": 0.0, "repeat_stability": 1.0}
    for name in ("position", "position_flips", "discrimination", "clustering"):
        assert probed(name, pairs, compared(better)).verdict == "pass"


def test_own_noise_is_no_position_bias() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult:
        coin = (len(item.prompt) + q.draw) % 2
        verdicts = {"as_given": "win" if coin else "loss", "swapped": "loss" if coin else "win"}
        return GraderScore("g", 0.5, "", {"verdicts": verdicts})

    found = probed("position_flips", PairwiseGrader(ScriptedModel("{}")), answer, repeats=4)
    assert found.parts["consistency"] < 0.7
    assert found.effect is not None
    assert found.effect < 0.4  # of verdicts that differ, all but these differ by themselves


def test_a_pair_judge_that_likes_long_answers() -> None:
    pairs = PairwiseGrader(ScriptedModel("{}"))
    longer = compared(lambda _, a, b: "A" if len(a) > len(b) else "B")
    found = probed("length", pairs, longer)
    assert (found.verdict, found.effect, found.unit) == ("fail", 1.0, "net preference")
    keys = probed("master_keys", pairs, compared(lambda _, a, b: "A" if len(a) < len(b) else "B"))
    assert (keys.verdict, keys.effect) == ("fail", 1.0)


def test_one_order_a_draw_makes_both_orders() -> None:
    grader = PairwiseGrader(ScriptedModel("{}"), orders="one")

    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult:
        order = "as_given" if q.draw % 2 == 0 else "swapped"
        outcome = "win" if order == "as_given" else "loss"  # always the first
        return GraderScore("g", float(outcome == "win"), "", {"verdicts": {order: outcome}})

    assert probed("position", grader, answer).effect == 1.0
    assert probed("length", grader, answer).effect == 0.0


def ranked(by: Callable[[ProbeItem, str], float]) -> Answering:
    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult:
        first = by(item, q.response) >= by(item, q.other)
        places = [1, 2] if q.draw % 3 else [2, 1]
        return GraderRank("g", [1.0, 2.0] if first else [2.0, 1.0], "", {"shown_as": places})

    return answer


def test_a_ranking_tells_where_each_was_shown() -> None:
    grader = ListwiseGrader(ScriptedModel("{}"))

    def by_place(item: ProbeItem, q: ProbeQuestion) -> GraderResult:
        places = [1, 2] if (q.draw + len(item.prompt)) % 3 else [2, 1]
        return GraderRank("g", [float(p) for p in places], "", {"shown_as": places})

    assert probed("position", grader, by_place).effect == 1.0
    long = probed("length", grader, ranked(lambda _, text: len(text)))
    assert (long.verdict, long.effect) == ("fail", 1.0)
    tournament = probed("position", TournamentGrader(ScriptedModel("{}")), by_place)
    assert tournament.verdict == "not applicable"
    assert "pairwise" in tournament.why


def test_the_language_of_a_pair_judge() -> None:
    def only_english(item: ProbeItem, a: str, b: str) -> str:
        return better(item, a, b) if item.language == "en" else "A"

    found = probed("language", PairwiseGrader(ScriptedModel("{}")), compared(only_english))
    assert (found.verdict, found.effect) == ("fail", -0.5)


def marked(flip: Callable[[ProbeQuestion, int], bool]) -> Answering:
    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult:
        marks = {f"c{n}": {"met": bool((len(item.prompt) + n) % 2) ^ flip(q, n)} for n in range(3)}
        return GraderScore("g", 0.5, "", {"criteria": marks})

    return answer


def test_the_order_of_criteria() -> None:
    grader = RubricGrader(ScriptedModel("{}"))
    moved = probed("criterion_order", grader, marked(lambda q, _: q.reordered))
    assert (moved.verdict, moved.effect) == ("fail", 1.0)
    steady = probed("criterion_order", grader, marked(lambda *_: False))
    assert (steady.verdict, steady.effect) == ("pass", 0.0)
    noisy = probed("criterion_order", grader, marked(lambda q, n: (q.draw + n) % 2 == 0))
    assert noisy.effect is not None
    assert noisy.effect < 0.1
    assert probed("criterion_order", Scorer(), honest).verdict == "not applicable"


def test_a_rubric_is_turned_round_in_a_copy() -> None:
    grader = RubricGrader(ScriptedModel("{}"), criteria=["one", "two", "three"])
    turned = reorder_criteria(grader)
    assert [c.id for c in turned.fixed.criteria] == ["3", "2", "1"]
    assert isinstance(grader.fixed, Rubric)
    assert [c.id for c in grader.fixed.criteria] == ["1", "2", "3"]
    single = ProbedGrader(RubricGrader(ScriptedModel("{}"), criteria=["one"]))
    assert not single.marks_criteria


def test_own_rubrics_are_made_from_the_items() -> None:
    subject = ProbedGrader(RubricGrader(ScriptedModel("{}")))
    item = shipped_items()[0]
    fields = subject.fields(item, ProbeQuestion(item.id, item.right))
    turned = subject.fields(item, ProbeQuestion(item.id, item.right, reordered=True))
    assert item.reference in fields["rubric"][0]["criterion"]
    assert turned["rubric"] == fields["rubric"][::-1]


def families(preferred: str) -> list[ProbeTopic]:
    item = ProbeItem(prompt="q", right="r", wrong="w", answers={"x": "of x", "y": "of y"})
    replace = msgspec.structs.replace
    return [
        ProbeTopic(replace(item, topic=str(n), best=preferred or "xy"[n % 2])) for n in range(40)
    ]


def test_self_preference_needs_a_family_and_both_kinds_of_items() -> None:
    def own(item: ProbeItem, q: ProbeQuestion) -> float:
        return float(q.response == "of x")

    def fair(item: ProbeItem, q: ProbeQuestion) -> float:
        return float(q.response == f"of {item.best}")

    found = probed("self_preference", Scorer(), own, families(""), family="x")
    assert (found.verdict, found.effect) == ("fail", 1.0)
    assert probed("self_preference", Scorer(), fair, families(""), family="x").verdict == "pass"
    for topics, family, why in (
        (families(""), "", "--family"),
        (families("x"), "x", "best answers of others"),
        (None, "x", "several families"),
    ):
        found = probed("self_preference", Scorer(), own, topics, family=family)
        assert found.verdict == "not applicable"
        assert why in found.why
