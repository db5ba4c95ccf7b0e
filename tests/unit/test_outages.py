"""The detector of outages, and who gets a call when there are several servers."""

from __future__ import annotations

from adjudge.judges.endpoint.calls import OutageDetector, Replica, pick_replica


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
