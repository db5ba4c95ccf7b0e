"""NeMo-Gym's routes of a real `adjudge serve`: groups by name, whether rows verify again."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.service_processes import post

from adjudge.service.server import start_service

RIGHT = '[[graders]]\nname = "right"\ntype = "answer"\n'


def spec(folder: Path, more: str = "") -> str:
    path = folder / "reward.toml"
    path.write_text(RIGHT + more)
    return str(path)


def row(text: str, **fields: Any) -> dict[str, Any]:
    said = {"type": "message", "role": "assistant", "content": text}
    return {
        "responses_create_params": {"input": "2 + 2?"},
        "response": {"output": [said]},
        "expected_answer": "4",
        **fields,
    }


def test_the_members_of_a_group_meet_by_their_names(tmp_path: Path) -> None:
    with start_service(spec(tmp_path, '[reward]\ngroup = "centre"\n'), group_size=4) as url:
        assert post(f"{url}/reverify_mode") == (200, "unsupported")
        texts = ["\\boxed{4}", "\\boxed{5}", "\\boxed{5}", "\\boxed{5}"]
        sent = [row(text, _ng_group_id="g", _ng_rollout_index=i) for i, text in enumerate(texts)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda one: post(f"{url}/verify", one), sent))
        assert [one["reward"] for _, one in found] == [0.75, -0.25, -0.25, -0.25]
        assert found[0][1]["_ng_group_id"] == "g"
        assert post(f"{url}/verify", sent[0]) == found[0]  # sent again: the same seat and answer
        status, answer = post(f"{url}/verify", row("4"))
        assert (status, answer["error"]["kind"]) == (422, "unsupported")


FRAGILE = """from pathlib import Path
from adjudge import GradingFailure
def length(response):
    if response == "odd" or (Path(__file__).parent / "down").exists():
        raise GradingFailure("unparsable" if response == "odd" else "server_error", "no score")
    return len(response)
"""


def test_a_rollout_is_judged_anew_when_its_judge_is_well_again(tmp_path: Path) -> None:
    """What NeMo-RL does after a 503: it plays the rollout again under the same names."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    (tmp_path / "down").touch()
    path = tmp_path / "reward.toml"
    path.write_text("""[[graders]]
name = "length"
type = "fragile:length"
[reward]
group = "centre"
""")

    def both(url: str, *texts: str) -> list[tuple[int, Any, str | None]]:
        def verify(place: int) -> tuple[int, Any, str | None]:
            sent = row(texts[place], _ng_group_id="g", _ng_rollout_index=place)
            request = urllib.request.Request(f"{url}/verify", json.dumps(sent).encode())
            try:
                with urllib.request.urlopen(request) as response:
                    return response.status, json.load(response)["reward"], None
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)["error"]["kind"], error.headers["retry-after"]

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(verify, range(len(texts))))

    with start_service(str(path), group_size=2) as url:
        assert both(url, "a", "bbb") == [(503, "server_error", "1")] * 2
        (tmp_path / "down").unlink()
        assert both(url, "a", "odd") == [(200, 0.0, None), (503, "unparsable", None)]
        assert both(url, "aaaaa") == [(200, 0.0, None)]  # a new text, beside the failed one
        assert both(url, "aaaaa", "bbb") == [(200, 0.0, None), (200, -1.0, None)]


def test_a_group_of_unknown_size_is_refused_with_the_option(tmp_path: Path) -> None:
    with start_service(spec(tmp_path, '[reward]\ngroup = "centre"\n')) as url:
        status, answer = post(f"{url}/verify", row("4", _ng_group_id="g", _ng_rollout_index=0))
        assert status == 422
        assert "Start the service with --group-size N" in answer["error"]["message"]


def test_a_spec_without_groups_judges_each_row_and_again(tmp_path: Path) -> None:
    with start_service(spec(tmp_path)) as url:
        assert post(f"{url}/reverify_mode") == (200, "stateless")
        sent = row("\\boxed{4}", _ng_group_id="g", _ng_rollout_index=0)
        assert post(f"{url}/verify", sent) == (200, {**sent, "reward": 1.0})
        _, found = post(f"{url}/aggregate_metrics", {"verify_responses": [{"reward": 1.0}]})
        assert found["key_metrics"] == {"mean/reward": 1.0}


def test_a_vector_of_rewards_is_named_in_each_row_and_group(tmp_path: Path) -> None:
    """What NeMo-RL's GDPO reads by place: the same graders in the same order in every row."""
    brief = """[[graders]]
name = "brief"
type = "length_penalty"
min_length = 0
max_length = 9
penalty_rate = 0.5
weight = 0.1
"""
    rows = [row("\\boxed{4}"), row("\\boxed{5} ", reward_components={"old": 1.0})]
    expected = [{"right": 1.0, "brief": 0.0}, {"right": 0.0, "brief": -0.5}]
    with start_service(spec(tmp_path, brief)) as url:
        for sent, components in zip(rows, expected, strict=True):
            status, found = post(f"{url}/verify", sent)
            assert (status, found["reward_components"]) == (200, components)
            assert found["reward"] == components["right"] + 0.1 * components["brief"]
            assert list(found["reward_components"]) == ["right", "brief"]
    gdpo = brief + '[reward]\ngroup = "gdpo"\n'
    with start_service(spec(tmp_path, gdpo), group_size=2) as url:
        group = [{**one, "_ng_group_id": "g", "_ng_rollout_index": i} for i, one in enumerate(rows)]
        with ThreadPoolExecutor(2) as pool:
            answers = [one for _, one in pool.map(lambda one: post(f"{url}/verify", one), group)]
    assert [one["reward_components"] for one in answers] == expected
    assert [one["reward"] for one in answers] == pytest.approx([1.1 / 2**0.5, -1.1 / 2**0.5])
