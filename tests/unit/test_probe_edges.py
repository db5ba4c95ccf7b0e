"""Probes where answers are missing, scores are all equal, or items are the user's own."""

import msgspec
import pytest
from tests.unit.helpers.probe_graders import Referring, Scorer, probed, refused

from adjudge.graders import PairwiseGrader
from adjudge.judge_evaluation.probes.bench import ProbeQuestion
from adjudge.judge_evaluation.probes.items import (
    CHANGES,
    ProbeItem,
    ProbeTopic,
    choose_topics,
    shipped_items,
)
from adjudge.judges import ScriptedModel
from adjudge.types import GraderResult


def honest(item: ProbeItem, question: ProbeQuestion) -> float:
    texts = {item.right: 4.0, item.reference: 4.0, item.partial: 2.0}
    return next((worth for text, worth in texts.items() if text and text in question.response), 0.0)


def numbered(count: int, **fields: object) -> list[ProbeTopic]:
    item = ProbeItem(prompt="q", right="right", partial="partly", wrong="wrong")
    changed = [{"topic": str(n), **fields} for n in range(count)]
    return [ProbeTopic(msgspec.structs.replace(item, **one)) for one in changed]


@pytest.mark.parametrize("name", ["master_keys", "length", "injection", "discrimination"])
def test_a_lost_answer_is_counted_once_however_often_it_is_looked_at(name: str) -> None:
    topics = choose_topics(shipped_items(), 12)
    asked = []

    def answer(item: ProbeItem, question: ProbeQuestion) -> GraderResult:
        asked.append(question)
        return refused()

    found = probed(name, Scorer(), answer, topics)
    assert found.missing == 12
    assert 0 < found.lost["refused"] <= len(asked)


def test_what_a_judge_tells_apart_is_unknown_where_it_refused() -> None:
    for name in ("master_keys", "injection"):
        found = probed(name, Scorer(), refused)
        assert (found.verdict, found.why) == ("uncertain", "0 items answered; 8 are needed")
        some = probed(
            name, Scorer(), lambda item, q: 3.0 if item.topic[-1] in "0123" else refused()
        )
        assert some.verdict == "uncertain"


def test_the_share_of_missing_keys_is_one_of_the_items() -> None:
    items = [topic.item.id for topic in choose_topics(shipped_items())]
    lost = set(items[:9])  # of 40: more than a fifth

    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult | float:
        return refused() if q.response == "Solution" and item.id in lost else honest(item, q)

    found = probed("master_keys", Scorer(), answer, threshold=0.3)
    assert (found.verdict, found.why) == ("uncertain", "9 of 40 items have no answer")


@pytest.mark.parametrize("pairs", [False, True])
def test_an_item_without_an_answer_about_its_control_is_missing(pairs: bool) -> None:
    topics = choose_topics(shipped_items())
    lost = {topic.item.id for topic in topics[:5]}

    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult | float:
        words = [before for before, _ in CHANGES["flattery_controls"][item.language]]
        control = any(text.startswith(tuple(words)) for text in (q.response, q.other))
        if item.id in lost and control and q.draw == 1:
            return refused()
        return 0.5 if pairs else honest(item, q)

    grader = PairwiseGrader(ScriptedModel("{}")) if pairs else None
    found = probed("sycophancy", grader or Scorer(), answer, topics)
    assert (found.n, found.missing, found.lost) == (35, 5, {"refused": 5})
    assert (found.effect, found.parts["with_length"]) == (0.0, 0.0)


def test_rounding_is_no_shift_and_no_certainty() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> float:
        # The mean of three times 0.7 or 0.1 is another number than 0.7 or 0.1.
        return {4.0: 0.9, 2.0: 0.7 if len(item.topic) % 2 else 0.1, 0.0: 0.2}[honest(item, q)]

    found = probed("length", Scorer(), answer, threshold=0.0)
    assert found.effect == 0.0
    assert found.low is not None
    assert found.low < -0.05  # nothing varied: as wide as the unseen allow
    stable = probed("repeatability", Scorer(), answer)
    assert stable.effect == 0.0
    assert stable.high is not None
    assert stable.high > 0.05


def test_translations_are_compared_answer_by_answer() -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult | float:
        gone = item.wrong if item.language == "zh" else item.right
        few = item.topic < choose_topics(shipped_items())[6].item.topic
        return refused() if few and q.response == gone else honest(item, q)

    found = probed("language", Scorer(), answer)
    assert found.effect == pytest.approx(0.0)
    assert found.missing > 0


@pytest.mark.parametrize("pairs", [False, True])
def test_a_translation_without_a_partly_right_answer_is_no_shift(pairs: bool) -> None:
    def answer(item: ProbeItem, q: ProbeQuestion) -> GraderResult | float:
        if not pairs:
            return honest(item, q)
        # Sure of right against wrong; against what is partly right, a coin: ½.
        return 0.5 if item.partial and item.partial in (q.response, q.other) else 1.0

    topics = [
        msgspec.structs.replace(
            topic, twin=topic.twin and msgspec.structs.replace(topic.twin, partial="")
        )
        for topic in choose_topics(shipped_items(), language="en")
    ]
    grader = PairwiseGrader(ScriptedModel("{}")) if pairs else None
    found = probed("language", grader or Scorer(), answer, topics)
    assert (found.effect, found.missing, found.n) == (0.0, 0, len(topics))


def test_a_reference_that_is_the_right_answer_shows_nothing() -> None:
    same = numbered(40, reference="right ")
    found = probed("reference", Referring(), honest, same)
    assert found.verdict == "not applicable"
    assert "other words" in found.why
    other = probed("reference", Referring(), honest, numbered(40, reference="rightly"))
    assert other.verdict == "pass"


def of_three(number: int) -> ProbeTopic:
    best = ("own", "first")[number % 2]
    answers = {"own": "of own", "first": "of first", "last": "of last"}
    return numbered(1, topic=str(number), answers=answers, best=best)[0]


THREE = list(map(of_three, range(40)))


def test_answers_that_are_both_not_the_best_say_nothing_of_a_preference() -> None:
    def knowing(item: ProbeItem, q: ProbeQuestion) -> float:
        worth = {"of last": 0.0, "of own": 1.0, f"of {item.best}": 3.0}
        return worth.get(q.response, 2.0)

    found = probed("self_preference", Scorer(), knowing, THREE, family="own")
    assert (found.verdict, found.effect) == ("pass", 0.0)


def test_an_item_with_own_answers_only_is_not_missing() -> None:
    alone = numbered(40, answers={"own": "of own"}, best="own")
    topics = [
        *map(of_three, range(40)),
        *(
            ProbeTopic(msgspec.structs.replace(one.item, topic=f"a{one.item.topic}"))
            for one in alone
        ),
    ]
    fair = probed(
        "self_preference", Scorer(), lambda item, q: float(q.response == f"of {item.best}"), topics,
        family="own",
    )  # fmt: skip
    assert (fair.n, fair.missing) == (40, 0)


def test_an_interval_that_cannot_be_had_says_so() -> None:
    odd = choose_topics(shipped_items())[0].item.id
    found = probed(
        "length", Scorer(), lambda item, q: float(item.id == odd and q.response == item.right)
    )
    assert (found.verdict, found.low) == ("uncertain", None)
    assert "no interval" in found.why


def test_a_family_that_no_item_names_is_said_with_those_that_are() -> None:
    found = probed("self_preference", Scorer(), lambda *_: 1.0, THREE, family="Own")
    assert found.verdict == "not applicable"
    assert found.why == "--family Own: no item has an answer of it (families: first, last, own)"
