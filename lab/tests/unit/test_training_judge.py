"""The judges of the example runs say what their files promise, through the whole line to a judge.

They go by the words of the prompt that they get; these tests notice when its shape changes.
"""

from pathlib import Path

from tests.unit.helpers.mock_provider import start_mock_here

from adjudge.engine.loop import run_blocking
from adjudge.trainers.scoring import Scorer
from adjudge_lab.environments import Policy
from adjudge_lab.rl.held_out import EvaluatedEpisode, judge_episodes
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.rl.tiny import CapitalsTask
from adjudge_lab.synthetic import COUNTRY_CAPITALS

EXAMPLES = Path(__file__).parents[3] / "examples"


def rewards(example: str, answers: list[str]) -> list[float | None]:
    """What the judge of an example says of answers about France."""
    run = load_run_file(EXAMPLES / example)
    assert run.judge.mock is not None
    sound = run.judge.mock.model_copy(update={"fail": [], "latency": []})
    with start_mock_here(sound.settings()) as base_url:
        scorer = Scorer(build_reward_spec(run, base_url))
        return [one.reward for one in run_blocking(judged(scorer, answers))]


def saying(text: str) -> Policy:
    return lambda _: text


async def judged(scorer: Scorer, answers: list[str]) -> list[EvaluatedEpisode]:
    france = sorted(COUNTRY_CAPITALS).index("France")
    task = CapitalsTask()
    episodes = [await task.play(france, saying(said)) for said in answers]
    return await judge_episodes(scorer, episodes)


def test_the_rubric_gives_a_point_for_style_and_one_for_truth() -> None:
    assert rewards(
        "rl_tiny.toml",
        [
            "Sure! The capital of France is Paris.",
            "Sure! The capital of France is Rome.",
            "The capital of France is Paris.",
            "Paris.",
            "Sure! The capital of France is ParisSure! The capital of France is Paris",
            "",
        ],
    ) == [1.0, 0.5, 0.5, 0.0, 0.5, 0.0]


def test_the_biased_judge_prefers_length() -> None:
    found = rewards("rl_tiny_biased.toml", ["Paris.", "Paris. " * 5, "Paris. " * 20])
    present = [one for one in found if one is not None]
    assert len(present) == 3
    assert present == sorted(set(present))
