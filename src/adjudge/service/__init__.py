"""A judge service: judges for any trainer, over HTTP; what can be set about it."""

from __future__ import annotations

from pydantic import Field

from adjudge.config_tables import CheckedTable
from adjudge.errors import ConfigError
from adjudge.wire import MAX_GROUP_SIZE

SERVICE_PORT = 8888
DRAIN_S = 30.0
"""Seconds after SIGTERM in which accepted requests are answered."""

_LARGEST = 1e6  # seconds, megabytes: what timers and sizes can bear


class ServiceSettings(CheckedTable):
    """How the service listens, batches and refuses; ``ConfigError`` on a wrong value.

    ``host``: the address to listen on; a public one needs a key.
    ``port``: 0 picks a free one.
    ``client``: variables that hold keys of clients, ``NAME`` or ``NAME=WEIGHT``; each has a share
    of the queue by its weight (1). Without them, each run has (``metadata.run_id``).
    ``max_batch_size``: requests in one batch, where the judge takes batches.
    ``batch_timeout``: seconds that the oldest request waits until its batch closes.
    ``concurrency``: requests that are judged at once, where they are judged one by one.
    ``queue_size``: requests that may wait, and groups that may be open; more get 429.
    ``deadline_s``: seconds from a request's arrival to its answer; then the answer is ``timeout``.
    ``group_size``: samples of a group, where a trainer's format does not say (0: unknown).
    ``group_timeout_s``: seconds that the first sample of a group waits for the others.
    ``max_body_mb``: the largest request; one image may have half of it.
    """

    host: str = "127.0.0.1"
    port: int = Field(SERVICE_PORT, ge=0, le=65_535)
    client: tuple[str, ...] = ()
    max_batch_size: int = Field(16, ge=1)
    batch_timeout: float = Field(0.01, ge=0, le=_LARGEST)
    concurrency: int = Field(64, ge=1)
    queue_size: int = Field(1000, ge=1)
    deadline_s: float = Field(60.0, gt=0, le=_LARGEST)
    group_size: int = Field(0, ge=0, le=MAX_GROUP_SIZE)
    group_timeout_s: float = Field(300.0, gt=0, le=_LARGEST)
    max_body_mb: float = Field(16.0, gt=0, le=_LARGEST)

    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        self.client_weights  # noqa: B018  (checks them, and does not show what may be a key)

    @property
    def max_held(self) -> int:
        """Bytes of requests that may be in memory at once: sixteen of the largest."""
        return int(16 * self.max_body_mb * 1e6)

    @property
    def max_values(self) -> int:
        """Numbers and texts in one body; a list or an object counts as ten.

        Reading more would keep all other requests waiting.
        """
        return max(1_000, int(31_250 * self.max_body_mb))

    @property
    def client_weights(self) -> dict[str, float]:
        """The weight of each variable in ``client``; raises :class:`ConfigError`."""
        weights: dict[str, float] = {}
        for one in self.client:
            name, _, weight = one.partition("=")
            try:
                weights[name] = float(weight or 1)
            except ValueError:
                weights[name] = 0.0
            if not name.isidentifier() or not 0 < weights[name] <= _LARGEST:
                raise ConfigError(
                    "client: must be the name of an environment variable, with a weight above 0 "
                    "or without one. Write NAME or NAME=WEIGHT."
                )
        return weights
