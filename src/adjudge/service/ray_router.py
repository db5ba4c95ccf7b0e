"""Which replica gets a request under ``adjudge serve --ray``: the one that got its like.

Imported by Ray Serve alone.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from adjudge.text import encode_exactly

_MAX_OWNERS = 65_536


class AffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Requests with the same key (a call's first argument) go to the same replica.

    By highest random weight (Thaler and Ravishankar 1998): every process that routes chooses alike
    without talking to others, and a replica that comes or goes moves only its own share of the
    keys. Keys of groups stay where they were begun, as long as that replica is there.
    """

    def initialize_state(self, **_: Any) -> None:
        """Nothing is remembered yet."""
        self._owners: OrderedDict[str, Any] = OrderedDict()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The key's own replica, and no other."""
        if not candidate_replicas:
            return []
        if pending_request is None or not pending_request.args:
            return [candidate_replicas]
        return [[self._owner(str(pending_request.args[0]), candidate_replicas)]]

    def _owner(self, key: str, replicas: list[RunningReplica]) -> RunningReplica:
        known = self._owners.get(key)
        for replica in replicas:
            if known is not None and replica.replica_id == known:
                return replica
        owner = max(replicas, key=lambda replica: _route_weight(key, replica.replica_id.unique_id))
        if key.startswith("group "):
            self._owners[key] = owner.replica_id
            self._owners.move_to_end(key)
            if len(self._owners) > _MAX_OWNERS:
                self._owners.popitem(last=False)
        return owner


def _route_weight(key: str, replica: str) -> bytes:
    return blake2b(encode_exactly(key), key=replica.encode()[:64], digest_size=8).digest()
