"""Intervals and verdicts of probes over all inputs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from adjudge.judge_evaluation.probes import items as changes
from adjudge.judge_evaluation.probes.items import ItemLanguage, ProbeItem, choose_topics
from adjudge.judge_evaluation.probes.probe import (
    Measurement,
    decide_verdict,
    detectable_effect,
    mean_shift,
)
from adjudge.stats.bootstrap import bootstrap
from adjudge.stats.estimates import Estimate, estimate_largest_share, estimate_share

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


@given(st.lists(st.lists(trials, min_size=1, max_size=20), min_size=1, max_size=5))
def test_the_largest_share_is_one_of_them(parts: list[list[tuple[float, ...]]]) -> None:
    found = estimate_largest_share(parts)
    assert found.value == max(estimate_share(rows).value or 0.0 for rows in parts)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.high


@given(
    st.lists(st.lists(trials, min_size=8, max_size=40), min_size=1, max_size=3),
    st.floats(0, 2),
    st.floats(0.5, 0.999),
)
def test_a_detectable_share_lies_beyond_the_limit(
    parts: list[list[tuple[float, ...]]], limit: float, level: float
) -> None:
    shares = {str(at): rows for at, rows in enumerate(parts)}
    found = detectable_effect(Measurement("share", shares=shares), Estimate(), limit, level=level)
    assert found is None or limit < found <= 1


@settings(max_examples=30)
@given(st.lists(finite, min_size=2, max_size=30), st.integers(0, 5))
def test_the_bootstrap_is_that_of_the_values(values: list[float], seed: int) -> None:
    rows = [(value, 1.0) for value in values]
    found = bootstrap(rows, mean_shift, resamples=60, seed=seed)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.high
    if min(values) != max(values):
        assert min(values) - 1e-6 <= found.low
        assert found.high <= max(values) + 1e-6


@given(finite, finite, st.floats(0, 50), st.booleans())
def test_a_verdict_is_never_both(one: float, other: float, limit: float, two: bool) -> None:
    low, high = min(one, other), max(one, other)
    verdict = decide_verdict(Estimate((low + high) / 2, low, high), limit, two_sided=two)
    mirrored = decide_verdict(Estimate(0.0, -high, -low), limit, two_sided=True)
    if two:
        assert verdict == mirrored
    if verdict == "fail":
        assert low > limit or (two and high < -limit)
    wider = decide_verdict(Estimate(0.0, low - 1, high + 1), limit, two_sided=two)
    assert verdict == wider or wider == "uncertain"


@given(st.text(max_size=200))
def test_sentences_lose_nothing_but_space(text: str) -> None:
    kept = "".join(changes.split_sentences(text))
    assert "".join(kept.split()) == "".join(text.split())


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
