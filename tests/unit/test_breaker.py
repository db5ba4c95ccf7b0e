"""The circuit breaker, and who gets a call when there are several servers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adjudge.judges.endpoint.calls import CircuitBreaker, Replica, pick_replica


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, cooldown_s=1.0, max_cooldown_s=4.0)
    for _ in range(3):
        breaker.failed(now, probe=False)
    assert not breaker.closed
    return breaker


def test_only_failures_in_a_row_open_it() -> None:
    breaker = CircuitBreaker(failures=3, cooldown_s=1.0, max_cooldown_s=4.0)
    for _ in range(10):
        breaker.failed(0.0, probe=False)
        breaker.failed(0.0, probe=False)
        breaker.succeeded(probe=False)
    assert breaker.closed
    assert breaker.opened == 0


def test_a_failed_probe_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now, waits = opened(), 1.0, []
    for _ in range(4):
        assert breaker.begin()
        breaker.failed(now, probe=True)
        wait = next(s for s in range(1, 100) if breaker.admits(now + s))
        waits.append(wait)
        now += wait
    assert waits == [2, 4, 4, 4]
    breaker.begin()
    breaker.succeeded(probe=True)
    for _ in range(3):
        breaker.failed(now, probe=False)
    assert breaker.admits(now + 1.0)  # the next outage starts from the beginning
    assert breaker.opened == 2


@given(st.lists(st.sampled_from(["send", "ok", "bad", "gone", "wait"]), max_size=80))
def test_never_more_than_one_probe_is_out(events: list[str]) -> None:
    breaker = CircuitBreaker(failures=2, cooldown_s=1.0, max_cooldown_s=8.0)
    now, out = 0.0, []
    for event in events:
        if event == "wait":
            now += 1.0
        elif event == "send":
            if breaker.admits(now):
                out.append(breaker.begin())
        elif out:
            probe = out.pop(0)
            if event == "ok":
                breaker.succeeded(probe)
            elif event == "bad":
                breaker.failed(now, probe)
            else:
                breaker.abandoned(probe)
        assert sum(out) <= 1
        assert not (sum(out) and breaker.admits(now))


def replicas(n: int) -> list[Replica]:
    return [Replica(f"http://{i}", CircuitBreaker(1, 1.0, 4.0)) for i in range(n)]


def test_a_lost_server_moves_only_its_own_groups() -> None:
    servers = replicas(4)
    groups = [f"group {i}" for i in range(200)]
    before = {group: pick_replica(servers, 0.0, group, None) for group in groups}
    servers[2].breaker.failed(0.0, probe=False)
    after = {group: pick_replica(servers, 0.0, group, None) for group in groups}
    moved = {group for group in groups if before[group] is not after[group]}
    assert moved == {group for group in groups if before[group] is servers[2]}
    assert 20 < len(moved) < 80


def test_the_server_to_avoid_is_better_than_none() -> None:
    one, two = servers = replicas(2)
    assert pick_replica(servers, 0.0, None, avoid=one) is two
    two.breaker.failed(0.0, probe=False)
    assert pick_replica(servers, 0.0, None, avoid=one) is one
    one.breaker.failed(0.0, probe=False)
    assert pick_replica(servers, 0.0, None, None) is None
    assert pick_replica([], 0.0, None, None) is None
