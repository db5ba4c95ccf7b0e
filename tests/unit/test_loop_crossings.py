"""A reward call goes to the engine's loop once, however much it asks there."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.helpers.reward_functions import FakeClock, build, samples

from adjudge import FunctionGrader, GradingFailure, GradingRunner, RewardSample, RewardSpec
from adjudge.engine import loop
from adjudge.trainers.scoring import Scorer
from adjudge.trainers.trl import PicklableReward, make_reward

SPEC = {
    "graders": [
        {"name": "repetition", "type": "ngram_repetition"},
        {
            "name": "quality",
            "type": "llm",
            "template": "How good is {response}?",
            "score_range": [0.0, 1.0],
        },
    ],
    "judges": {"main": {"type": "scripted", "script": '{"reason": "clear", "score": 0.5}'}},
}
COMPLETIONS = ["a", "b", "c", "d"]


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many coroutines were sent to the engine since the last time."""
    sent: list[Any] = []

    class CountedJob(loop.Job):
        def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
            sent.append(coroutine)
            super().__init__(coroutine)

    def count() -> int:
        found = len(sent)
        sent.clear()
        return found

    monkeypatch.setattr(loop, "Job", CountedJob)
    return count


def test_a_trainer_s_call_crosses_once(crossings: Callable[[], int]) -> None:
    spec = RewardSpec.from_dict(SPEC)
    reward = make_reward(spec)
    asyncio.run(reward(prompts=["p"] * 4, completions=COMPLETIONS))
    assert crossings() == 1
    PicklableReward(spec)(prompts=["p"] * 4, completions=COMPLETIONS)
    assert crossings() == 1
    rollouts = [RewardSample(i, i, "p", text) for i, text in enumerate(COMPLETIONS)]
    Scorer(spec).score(rollouts, ["g"] * 4)
    assert crossings() == 1


def test_asking_again_and_waiting_cross_no_further(crossings: Callable[[], int]) -> None:
    clock = FakeClock()

    def judge(n: int) -> float:
        if clock.now < 10:
            raise GradingFailure("server_error", "503")
        return 1.0

    made = build({"j": FunctionGrader(judge, score_range=(0, 1))}, clock=clock)
    rows = samples(*({"n": n} for n in range(40)))
    made.compute(rows)
    assert crossings() == 1
    asyncio.run(made.compute_batch_scores(rows))
    assert crossings() == 1


def test_the_runner_crosses_once_for_all_datasets(crossings: Callable[[], int]) -> None:
    runner = GradingRunner({"n": FunctionGrader(lambda n: n)}, show_progress=False)
    runner.run_multiple_datasets([[{"n": 1}, {"n": 2}], [{"n": 3}]])
    assert crossings() == 1


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    or threading.current_thread() is not threading.main_thread(),
    reason="Ctrl-C is for somebody else here",
)
def test_ctrl_c_ends_a_call_that_blocks_a_running_loop() -> None:
    async def cell() -> None:
        before = signal.getsignal(signal.SIGINT)
        try:
            loop.run_blocking(asyncio.sleep(30))
        finally:
            assert signal.getsignal(signal.SIGINT) is before

    main = threading.main_thread().ident
    assert main is not None
    ctrl_c = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
    ctrl_c.start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
