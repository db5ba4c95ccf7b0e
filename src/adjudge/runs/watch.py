"""A run that is watched from outside: its metrics as they come, and the checks of its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from adjudge.checks.steps import SentinelAction, StepAlarm, StepWatch
from adjudge.runs.view.run_reader import JsonlTail

_BUDGET = 1 << 30

_decoder = msgspec.json.Decoder(dict[str, float | None])


class RunWatch:
    """The checks of the steps in ``metrics.jsonl`` of ``folder``, by what is appended to it.

    ``gold`` and ``action`` as for :class:`StepWatch`, which :attr:`checks` is. A step that
    several processes have rows of is their mean, weighted by ``samples``, and is seen once a row
    of a later step is there. A file that was written anew is watched from its start.
    """

    def __init__(
        self, folder: Path, *, gold: str | None = None, action: SentinelAction = "warn"
    ) -> None:
        self._path = folder / "metrics.jsonl"
        self._new_checks = partial(StepWatch, action, gold=gold)
        self._start()

    def _start(self) -> None:
        self._tail = JsonlTail(self._path)
        self.checks = self._new_checks()
        self._open: dict[int, list[dict[str, float]]] = defaultdict(list)
        self._lag = 0
        self._last: int | None = None
        self.steps = 0

    def read(self, *, to_the_end: bool = False) -> list[StepAlarm]:
        """The alarms of what is new; ``to_the_end``: nothing more comes of the last step."""
        rows = list(self._tail.lines(_BUDGET))
        if self._tail.rewritten:
            self._start()
            rows = list(self._tail.lines(_BUDGET))
        raised: list[StepAlarm] = []
        for _, line in rows:
            self._take(line)
            raised += self._observe(self._closed())
        return raised + (self._observe(sorted(self._open)) if to_the_end else [])

    def _take(self, line: bytes) -> None:
        try:
            found = _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        row = {name: value for name, value in found.items() if value is not None}
        step = int(row.get("step", self.steps))
        if self._last is None or step > self._last:
            self._open[step].append(row)
            if len(self._open[step]) > 1:
                self._lag = 1  # several processes, of which one may be a step behind

    def _closed(self) -> Sequence[int]:
        newest = max(self._open, default=0)
        return sorted(step for step in self._open if step < newest - self._lag)

    def _observe(self, steps: Sequence[int]) -> list[StepAlarm]:
        raised: list[StepAlarm] = []
        for step in steps:
            row = merge_metric_rows(self._open.pop(step))
            self._last, self.steps = step, self.steps + 1
            raised += self.checks.observe(step, row)
        return raised


def merge_metric_rows(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of the metrics of one step's rows, each over the rows that have it, weighted by
    ``samples``.

    >>> merge_metric_rows([{"samples": 1, "reward": 0.0}, {"samples": 3, "reward": 1.0}])["reward"]
    0.75
    """
    if len(rows) == 1:
        return dict(rows[0])
    sums: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for row in rows:
        weight = row.get("samples", 1.0)
        for name, value in row.items():
            sums[name] += weight * value
            weights[name] += weight
    return {name: sums[name] / weights[name] for name in sums if weights[name]}
