"""The detector of outages, and who gets a call when there are several servers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adjudge.judges.endpoint.calls import OutageDetector, Replica, pick_replica


@given(st.lists(st.sampled_from(["send", "ok", "bad", "gone", "wait"]), max_size=80))
def test_never_more_than_one_probe_is_out(events: list[str]) -> None:
    detector = OutageDetector(failures=2, cooldown_s=1.0)
    now, out = 0.0, []
    for event in events:
        if event == "wait":
            now += 1.0
        elif event == "send":
            if detector.admits(now):
                out.append(detector.begin())
        elif out:
            probe = out.pop(0)
            if event == "ok":
                detector.answered(probe)
            elif event == "bad":
                detector.failed(now, probe)
            else:
                detector.abandoned(probe)
        assert sum(out) <= 1
        assert not (sum(out) and detector.admits(now))


def servers(n: int) -> list[Replica]:
    return [Replica(f"http://{i}", OutageDetector(1, 1.0)) for i in range(n)]


def test_a_lost_server_moves_only_its_own_groups() -> None:
    all_four = servers(4)
    groups = [f"group {i}" for i in range(200)]
    before = {group: pick_replica(all_four, 0.0, group, None) for group in groups}
    all_four[2].detector.failed(0.0)
    after = {group: pick_replica(all_four, 0.0, group, None) for group in groups}
    moved = {group for group in groups if before[group] is not after[group]}
    assert moved == {group for group in groups if before[group] is all_four[2]}
    assert 20 < len(moved) < 80
