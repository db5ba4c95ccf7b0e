"""LLaMA-Factory's own reward client against our ``/llamafactory``; run by `make test-formats`."""

import pytest
from tests.contract.formats.served import Judge, client_module, serving

pytest.importorskip("torch", reason="torch is not installed here; run `make test-formats`")
ppo_utils = client_module("llamafactory.train.ppo.ppo_utils", "make test-formats")


def test_scores_arrive_in_order() -> None:
    judge = Judge()
    texts = ["2 + 2? four</s>", "2 + 2? 4</s>"]
    with serving(judge) as url:
        scores = ppo_utils.get_rewards_from_server(f"{url}/llamafactory", texts)
    assert scores.tolist() == [11.0, 8.0]
    assert [one.prompt for one in judge.asked] == [None, None]  # the trainer sends none


def test_a_failed_judge_ends_the_run_by_an_exception() -> None:
    judge = Judge(failures=1)
    with serving(judge) as url, pytest.raises(KeyError, match="scores"):
        ppo_utils.get_rewards_from_server(f"{url}/llamafactory", ["a", "b"])
    assert len(judge.asked) == 2
