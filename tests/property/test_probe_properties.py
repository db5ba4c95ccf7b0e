"""Intervals and verdicts of probes over all inputs."""

from hypothesis import given
from hypothesis import strategies as st

from adjudge.judge_evaluation.probes.items import ItemLanguage, ProbeItem, choose_topics
from adjudge.stats.estimates import estimate_share

trials = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(
    lambda pair: (float(min(pair)), float(pair[1]))
)
LANGUAGES: tuple[ItemLanguage, ...] = ("en", "zh")
finite = st.floats(-100, 100, allow_nan=False)


@given(st.lists(trials, min_size=1, max_size=40), st.floats(0.5, 0.999))
def test_a_share_lies_in_its_interval(rows: list[tuple[float, ...]], level: float) -> None:
    found = estimate_share(rows, level=level)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1


@given(st.lists(st.booleans(), min_size=2, max_size=20), st.integers(0, 99), st.data())
def test_chosen_topics_are_of_the_file(both: list[bool], seed: int, data: st.DataObject) -> None:
    items = [
        ProbeItem(prompt="q", right="a", wrong="b", topic=str(number), language=language)
        for number, twice in enumerate(both)
        for language in LANGUAGES[not twice :]
    ]
    n = data.draw(st.integers(2, len(both)))
    topics = choose_topics(items, n, seed=seed)
    assert len(topics) == n
    assert len({topic.item.topic for topic in topics}) == n
    languages = [topic.item.language for topic in topics if topic.twin is not None]
    assert abs(languages.count("en") - languages.count("zh")) <= 1
