"""The simulation of many ranks before one service, small."""

from benchmarks.ranks import Plan, simulate


def test_room_and_time_decide_whether_rewards_are_missing() -> None:
    """The same 64 samples: a queue too short refuses, a deadline too short gives up."""
    enough = simulate(Plan("enough", 1), 8, 8, 0.001)
    assert (enough["missing"], enough["refused"], enough["connections"]) == (0.0, 0, 8)
    short = simulate(Plan("short", 1, concurrency=8, queue=8), 8, 8, 0.001)
    assert short["refused"] > 0
    hurried = simulate(Plan("hurried", 1, concurrency=4, seconds=3.0), 8, 8, 0.001)
    assert hurried["missing"] > 0.5
    assert set(hurried["kinds"]) == {"timeout"}


def test_the_judge_sees_no_more_calls_than_the_limit() -> None:
    """Hedges included, however many ranks there are."""
    assert simulate(Plan("limited", 1, concurrency=16), 8, 8, 0.001)["judge_calls"] <= 16
