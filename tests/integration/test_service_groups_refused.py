"""Who cannot send groups learns at the start, or at the first answer, that a service needs them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adjudge import RewardSpec
from adjudge.client.grader import fetch_service_info
from adjudge.errors import ConfigError
from adjudge.rewards import RewardSample
from adjudge.service.server import start_service
from adjudge.trainers.scoring import Scorer, load_spec
from adjudge.trainers.trl import make_reward

SPEC = """
[[graders]]
name = "match"
type = "string_match"

[reward]
group = "centre"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = tmp_path_factory.mktemp("groups") / "groups.toml"
    path.write_text(SPEC)
    with start_service(str(path), group_timeout_s=7.0, deadline_s=5.0) as running:
        yield running


def test_a_service_says_what_it_compares(url: str) -> None:
    info = fetch_service_info(url + "/")
    assert info is not None
    assert info.compares_groups == "reward.group = 'centre'"
    assert (info.graders, info.group_timeout_s, info.deadline_s) == (["match"], 7.0, 5.0)


@pytest.mark.parametrize("made", [make_reward, load_spec, Scorer])
def test_an_address_as_a_spec_is_refused_with_the_ways_out(url: str, made: object) -> None:
    assert callable(made)
    with pytest.raises(ConfigError, match="compares groups .*the spec's file .*verl 0.9.1"):
        made(url)


def test_a_served_grader_of_ones_own_spec_is_refused_at_its_first_answer(url: str) -> None:
    grader = {"name": "s", "type": "adjudge.client.grader:ServedGrader", "url": url}
    spec = RewardSpec.from_dict({"graders": [grader], "reward": {"normalise": False}})
    with pytest.raises(ConfigError, match="compares groups"):
        Scorer(spec).score([RewardSample(0, 0, "p", "4", None, {"reference": "4"})], ["g"])


def test_an_address_where_nothing_answers_is_taken_as_it_is() -> None:
    """A trainer may start before its service; then its rewards wait."""
    assert fetch_service_info("http://127.0.0.1:9") is None
    assert load_spec("http://127.0.0.1:9").where == "http://127.0.0.1:9"
