"""What the judges of a run folder cost, in this invocation and in those before it.

``spending.json`` has an entry an invocation, with what its endpoints counted: calls that failed,
were sent again or were cancelled included. It is written once a second while calls are made.

A kill makes no call free where the run has a :class:`SpendCeiling`. Before a send goes out, its
reservation is in the file: room for some more sends is written at a time, so that few sends wait
for a write. What a killed invocation cost at most is then ``cost_usd + reserved_usd``, at every
moment. What the results in the journal cost is the least that the folder is booked with.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from adjudge.engine.loop import run_blocking
from adjudge.errors import RunFolderError
from adjudge.files import iter_rows, write_json
from adjudge.judges.endpoint.connections import start_call_counter
from adjudge.judges.endpoint.settings import COUNTERS, SpendCeiling
from adjudge.runner.progress import Tally
from adjudge.runs.folder import JOURNAL_FILE
from adjudge.runs.rows import RunObserver
from adjudge.types import Provenance

SPENDING_FILE = "spending.json"
WRITE_EVERY_S = 1.0

_log = logging.getLogger("adjudge")

EndpointCounts = Mapping[str, Any]
"""``base_urls`` and ``models`` of an endpoint, and its counters by name."""


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class Invocation(msgspec.Struct, kw_only=True):
    """One process's calls. ``ended``: it wrote its last numbers, so nothing was out any more.

    ``cost_usd``: what is known of its cost; ``reserved_usd``: the most that calls cost which were
    out when this was written, or went out before it was written again. ``uncounted``: those of
    these sends that ``endpoints`` do not have.
    """

    started: str
    ended: bool = False
    cost_usd: _Amount = 0.0
    reserved_usd: _Amount = 0.0
    uncounted: _Count = 0
    endpoints: list[dict[str, list[str] | _Count | _Amount | dict[str, _Count | _Amount]]] = []

    @property
    def booked_usd(self) -> float:
        """Its cost; of one that was killed with the calls that were out."""
        return self.cost_usd + (0.0 if self.ended else self.reserved_usd)

    def count(self, name: str) -> Any:
        """The sum of a counter over its endpoints."""
        return sum(entry[name] for entry in self.endpoints)


class _Provided(msgspec.Struct):
    provenance: Provenance | None = None


class _JournalLine(msgspec.Struct):
    r: _Provided


class FolderSpending(RunObserver):
    """Counts the judge calls of one invocation beside those of earlier ones in ``folder``.

    A context manager, to be entered under the folder's lock. The one place that makes a ``budget``
    the folder's: it starts with what earlier invocations spent. ``combine`` makes the whole table
    of calls from this process's, where others call for it. What results cost is known sooner from
    the ``tally``, and is all that is known of judges without an endpoint. Without ``folder``
    nothing is read or written. Code outside the engine's loop uses it.
    """

    def __init__(
        self,
        folder: Path | None,
        budget: SpendCeiling | None = None,
        tally: Tally | None = None,
        *,
        combine: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
    ) -> None:
        self._path = None if folder is None else folder / SPENDING_FILE
        self._budget = budget
        self._combine, self._tally = combine, tally
        self._calls = run_blocking(start_call_counter())
        self._earlier: list[Invocation] = []
        self._charged = 0.0
        self._now = Invocation(started=datetime.now(UTC).isoformat(timespec="seconds"))
        self._written: bytes | None = None
        self._held_usd, self._held_sends = 0.0, 0
        """How far spending and sends may go until the file is written again."""
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adjudge-spending", daemon=True)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._earlier = _read_invocations(self._path)
            self._book_journal(self._path.with_name(JOURNAL_FILE))
            if (budget := self._budget) is not None:
                spent = self._charged = sum(one.booked_usd for one in self._earlier)
                budget.spent += spent
                if spent and budget.ceiling is not None:
                    _log.warning(
                        "%s: earlier invocations spent %.4f USD; %.4f USD of the budget of %g USD "
                        "are left",
                        self._path.parent,
                        spent,
                        max(0.0, budget.ceiling - spent),
                        budget.ceiling,
                    )
                budget.on_change = partial(self._hold, budget)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._stop.set()
            self._thread.join()
            table = self.read()
            with self._writing:
                self._count(table)
                self._now.ended = True
                self._write()

    def _hold(self, budget: SpendCeiling) -> None:
        """Write, where spending and sends have come to what is in the file."""
        with self._writing:
            total = budget.spent - self._charged + budget.reserved
            if budget.sends > self._held_sends or total > self._held_usd:
                self._write()

    def read(self) -> list[dict[str, Any]]:
        """The table of calls of this invocation, once those that were cancelled have ended."""
        return self._combine(run_blocking(self._calls.read()))

    def summarise(self, table: Sequence[EndpointCounts]) -> dict[str, Any]:
        """``spending`` of ``summary.json``: the folder's numbers, with ``table`` of now.

        Money is ``None`` where replies had no price and nothing else is known. ``killed``: how many
        earlier invocations could not write their last numbers. ``endpoints``: all invocations'.
        """
        with self._writing:
            self._count(table)
        everyone = [*self._earlier, self._now]
        endpoints = _merge_endpoints(everyone)
        earlier, now = sum(one.booked_usd for one in self._earlier), self._now.cost_usd
        is_known = earlier + now > 0 or not any(one["unpriced"] for one in endpoints)
        ceiling = None if self._budget is None else self._budget.ceiling
        return {
            "invocations": len(everyone),
            "killed": sum(not one.ended for one in self._earlier),
            "calls": sum(one["calls"] for one in endpoints)
            + sum(one.uncounted for one in self._earlier),
            "input_tokens": sum(one["input_tokens"] for one in endpoints),
            "output_tokens": sum(one["output_tokens"] for one in endpoints),
            "unpriced": sum(one["unpriced"] for one in endpoints),
            "cost_usd": earlier + now if is_known else None,
            "this_invocation_usd": now if is_known else None,
            "earlier_usd": earlier if is_known else None,
            "budget_usd": ceiling,
            "left_usd": None if ceiling is None else max(0.0, ceiling - earlier - now),
            "endpoints": endpoints,
        }

    def on_end(self, summary: dict[str, Any]) -> None:
        """``endpoints``, those of this invocation, and ``spending``, the folder's."""
        summary["endpoints"] = self.read()
        summary["spending"] = self.summarise(summary["endpoints"])

    def _book_journal(self, path: Path) -> None:
        """Book a killed invocation with what its results cost beyond all that is booked."""
        is_bounded = self._budget is not None and self._budget.ceiling is not None
        if self._earlier[-1].ended if self._earlier else not is_bounded:
            return
        booked = sum(one.booked_usd for one in self._earlier)
        rows = iter_rows(path, _JournalLine, first=2, checked=True, damaged=[])
        paid = (row.r.provenance.paid for row in rows if row.r.provenance is not None)
        results = sum(usage.cost_usd or 0.0 for usage in paid if usage is not None)
        if results > booked:
            if not self._earlier:
                self._earlier.append(Invocation(started=self._now.started))
            self._earlier[-1].cost_usd += results - booked

    def _count(self, table: Sequence[EndpointCounts]) -> None:
        names = ("base_urls", "models", *COUNTERS) if table else ()
        self._now.endpoints = [{name: one[name] for name in names} for one in table]
        counted: float = sum(one["cost_usd"] for one in table)
        if self._budget is not None:  # exact; endpoints may count the calls of others, too
            counted = self._budget.spent - self._charged
        self._now.cost_usd = max(counted, 0.0 if self._tally is None else self._tally.cost_usd)

    def _write(self) -> None:
        """Write, with room for more sends; under the lock."""
        now, budget, held = self._now, self._budget, (0.0, 0)
        if budget is not None:
            held = self._room(budget)
            now.cost_usd = max(now.cost_usd, held[0] if now.ended else budget.spent - self._charged)
            now.reserved_usd = max(0.0, held[0] - now.cost_usd)
            now.uncounted = 0 if now.ended else max(0, held[1] - now.count("sends"))
        if self._path is None or not (
            now.endpoints or now.cost_usd or now.uncounted or self._earlier
        ):
            return
        data = msgspec.json.encode(now)
        if data != self._written:
            write_json(self._path, {"invocations": [*self._earlier, now]})
            self._written = data
        self._held_usd, self._held_sends = held

    def _room(self, budget: SpendCeiling) -> tuple[float, int]:
        """How far spending and sends may go after a write; never beyond the ceiling."""
        reserved = budget.reserved  # before what is spent, which a call that ends changes first
        spent = budget.spent - self._charged
        total = spent + reserved
        if self._now.ended or not budget.sends:
            return total, budget.sends
        more = max(reserved / 4, spent / 32)
        if budget.ceiling is not None:
            more = max(0.0, min(more, budget.ceiling - self._charged - total - 1e-9))
        return total + more, budget.sends + max(budget.out, budget.sends // 32)

    def _run(self) -> None:
        while not self._stop.wait(WRITE_EVERY_S):
            table = self.read()
            try:
                with self._writing:
                    self._count(table)
                    self._write()
            except OSError as error:  # the run's last numbers will be written, or stop it
                _log.warning("%s: cannot be written: %s", self._path, error)


def _read_invocations(path: Path) -> list[Invocation]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, list[Invocation]])
        _merge_endpoints(found["invocations"])  # complains of what cannot be added up
        return found["invocations"]
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path}: cannot be read, so what this run has cost is not known ({error}). Restore "
            "the file, or give another output folder with -o."
        ) from None


def _merge_endpoints(invocations: Sequence[Invocation]) -> list[dict[str, Any]]:
    """What all invocations asked of each endpoint."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    entries: list[EndpointCounts] = [entry for one in invocations for entry in one.endpoints]
    for entry in entries:
        names = {name: entry[name] for name in ("base_urls", "models")}
        total = found.setdefault((*entry["base_urls"], "", *entry["models"]), names)
        for name in COUNTERS:
            if isinstance(entry[name], Mapping):
                total[name] = dict(Counter(total.get(name, {})) + Counter(entry[name]))
            else:
                total[name] = total.get(name, 0) + entry[name]
    return list(found.values())
