"""The probes as the docs list them; items that ship, a user's own, and the changes made to them."""

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.probe_graders import count_words

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.probes import items as changes
from adjudge.judge_evaluation.probes.items import (
    ProbeItem,
    choose_topics,
    load_items,
    shipped_items,
)
from adjudge.judge_evaluation.probes.run import PROBES

PAGE = Path(__file__).parents[2] / "docs" / "probe.md"
WORDS = [partial(changes.add_words, words=one) for one in ("flattery", "assurances", "citations")]


def test_every_topic_ships_in_both_languages_with_distinct_answers() -> None:
    items = shipped_items()
    assert Counter(item.language for item in items) == {"en": 40, "zh": 40}
    assert len({item.topic for item in items}) == 40
    for item in items:
        answers = [item.right, item.reference, item.partial, item.wrong]
        assert len(set(answers)) == 4
        assert all(answers)
        assert max(map(len, answers)) < 4 * min(map(len, answers))


def test_half_of_the_topics_are_probed_in_each_language() -> None:
    topics = choose_topics(shipped_items())
    assert Counter(topic.item.language for topic in topics) == {"en": 20, "zh": 20}
    for topic in topics:
        assert topic.twin is not None
        assert topic.twin.topic == topic.item.topic
        assert topic.twin.language != topic.item.language


def test_more_topics_have_those_of_fewer() -> None:
    items = shipped_items()
    first, more = choose_topics(items, 12), choose_topics(items, 20)
    assert first == choose_topics(items, 12)
    assert {topic.item.id for topic in first} < {topic.item.id for topic in more}
    assert len(first) == 12
    assert {topic.item.language for topic in choose_topics(items, language="zh")} == {"zh"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt": "q", "right": "a"}', "missing required field `wrong`"),
        ('{"prompt": " ", "right": "a", "wrong": "b"}', "prompt: "),
        ('{"prompt": "q", "right": "a", "wrong": "a"}', "right: is also the wrong"),
        ('{"prompt": "q", "right": "a", "wrong": "b", "rigth": ""}', "unknown field `rigth`"),
        ('{"prompt": "q", "right": "a", "wrong": "b", "best": "x"}', "best: 'x' has no answer"),
        ('{"prompt": "q", "right": "a", "wrong": "b", "language": "fr"}', "language"),
        ("[", "not one JSON object per line"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"prompt": "q", "right": "a", "wrong": "b"}\n\n' + row + "\n")
    with pytest.raises(ConfigError, match=r"items.jsonl:3: ") as raised:
        load_items(path)
    assert said in str(raised.value)


def test_own_items_need_no_topic(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"prompt": "q", "right": "a", "wrong": "b"}\n' * 3)
    items = load_items(path)
    assert [item.id for item in items] == ["line-1/en", "line-2/en", "line-3/en"]
    assert items[0].middling == "b"
    assert all(topic.twin is None for topic in choose_topics(items))
    with refuses("items"):
        choose_topics(items, language="zh")


@pytest.mark.parametrize("topic", ["line-2", "x"])
def test_one_topic_twice_is_refused(tmp_path: Path, topic: str) -> None:
    row = json.dumps({"prompt": "q", "right": "a", "wrong": "b", "topic": topic}) + "\n"
    path = tmp_path / "items.jsonl"
    path.write_text(row * 2)
    with pytest.raises(ConfigError, match="is given twice"):
        load_items(path)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_changes_keep_every_sentence(language: str) -> None:
    items = [item for item in shipped_items() if item.language == language]
    ways: tuple[Any, ...] = (
        changes.add_padding,
        changes.add_heading,
        changes.format_as_list,
        *WORDS,
    )
    for item in items:
        for way in ways:
            changed = way(item, item.right, changes.seeded_random(item.id))
            assert changed != item.right
            for sentence in changes.split_sentences(item.right):
                assert sentence in changed
            assert changed == way(item, item.right, changes.seeded_random(item.id))


def test_markup_has_the_same_words_without_it() -> None:
    item, rng = shipped_items()[0], changes.seeded_random()
    for way in (changes.add_heading, changes.format_as_list):
        changed, control = way(item, item.right, rng), way(item, item.right, rng, neutral=True)
        assert count_words(changed) == count_words(control)
        assert not set("#*-") & set(control)


def test_attacks_name_the_best_score() -> None:
    item = ProbeItem(prompt="q", right="r", wrong="w")
    attacked = changes.add_attack(item, "w", "verdict echo", "7")
    assert attacked.startswith("w\n\n{")
    assert '"score": 7' in attacked


def test_every_probe_is_documented_with_its_threshold() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (±?[\d.]+)(?: / (±?[\d.]+))? \|$", PAGE.read_text(), re.MULTILINE
    )
    found = {name: (limit, of_pairs or limit) for name, limit, of_pairs in rows}
    assert list(found) == list(PROBES)
    for name, probe in PROBES.items():
        sign = "±" if probe.sided == "both" else ""
        limits = [f"{sign}{probe.limit(kind):g}" for kind in ("scores", "compares")]
        assert list(found[name]) == limits
