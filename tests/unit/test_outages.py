"""Who gets a call when there are several servers."""

from __future__ import annotations

from adjudge.judges.endpoint.calls import Servers
from adjudge.judges.endpoint.settings import CallPolicy


def test_a_lost_server_moves_only_its_own_groups() -> None:
    urls = [f"http://{i}" for i in range(4)]
    servers = Servers(urls, CallPolicy(breaker_failures=1))
    groups = [f"group {i}" for i in range(200)]
    before = {group: servers.pick(0.0, group, None) for group in groups}
    servers.all[2].failed(0.0)
    after = {group: servers.pick(0.0, group, None) for group in groups}
    moved = {group for group in groups if before[group] is not after[group]}
    assert moved == {group for group in groups if before[group] is servers.all[2]}
    assert 20 < len(moved) < 80
