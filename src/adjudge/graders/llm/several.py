"""Several asks at once of which one may fail, and what their failures come to together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from adjudge.engine.tasks import run_all
from adjudge.errors import PASSING_KINDS, REDRAW_KINDS, ErrorKind, GradingFailure, is_passing
from adjudge.graders.llm.judged import summed
from adjudge.types import Provenance

__all__ = ["curable", "each", "joined_failure", "noted", "redrawable", "spent"]

T = TypeVar("T")


async def each(asks: Iterable[Callable[[], Awaitable[T]]]) -> list[T | GradingFailure]:
    """Await all at once, in order; a failure stands in its ask's place and cancels no other.

    ``auth`` alone is raised, and cancels: with a refused key no other ask does better.
    """
    asks = list(asks)
    done: dict[int, T | GradingFailure] = {}

    async def one(place: int, ask: Callable[[], Awaitable[T]]) -> None:
        try:
            done[place] = await ask()
        except GradingFailure as failure:
            if failure.kind is ErrorKind.AUTH:
                raise
            done[place] = failure

    await run_all(one(place, ask) for place, ask in enumerate(asks))
    return [done[place] for place in range(len(asks))]


def joined_failure(
    failures: Sequence[GradingFailure],
    message: str,
    metadata: Mapping[str, Any],
    *,
    answered: Sequence[Provenance | None] = (),
    otherwise: ErrorKind = ErrorKind.INCOMPLETE,
) -> GradingFailure:
    """One failure for an answer whose parts failed; ``answered``: where its other parts came from.

    Its kind: the first one's where all failed in ways that pass by themselves, so that the run asks
    again; where nothing was answered, the kind that all share; else ``otherwise``, marked
    ``redraw`` where a fresh draw may cure it. ``suspect`` where any was. What was spent is summed.
    """
    kinds = [failure.kind for failure in failures]
    shared = not answered and len(set(kinds)) == 1
    kind = kinds[0] if shared or all(map(_passing, failures)) else otherwise
    metadata = {**metadata, "suspect": any(failure.suspect for failure in failures)}
    if _redrawable(failures):
        metadata["redraw"] = True
    if shared and "status" in failures[0].metadata:
        metadata["status"] = failures[0].metadata["status"]
    return GradingFailure(kind, message, metadata, provenance=spent(answered, failures))


def redrawable(kinds: Iterable[ErrorKind]) -> bool:
    """Whether parts that failed in these ways may all answer when they are asked anew."""
    kinds = set(kinds)
    return bool(kinds & REDRAW_KINDS) and kinds <= PASSING_KINDS | REDRAW_KINDS


def _redrawable(failures: Sequence[GradingFailure]) -> bool:
    drawn = [failure for failure in failures if curable(failure)]
    rest = [failure for failure in failures if not curable(failure)]
    return bool(drawn) and all(map(_passing, rest))


def curable(failure: GradingFailure) -> bool:
    """Whether a fresh draw may cure a part that failed."""
    return failure.kind in REDRAW_KINDS or bool(failure.metadata.get("redraw"))


def spent(
    answered: Iterable[Provenance | None], failures: Iterable[GradingFailure] = ()
) -> Provenance | None:
    """The sum of what answers and failures cost; ``None`` where nothing is known of it."""
    known = [one for one in (*answered, *(f.provenance for f in failures)) if one is not None]
    return summed(known) if known else None


def noted(failure: GradingFailure) -> dict[str, Any]:
    """What a result's metadata keeps of a part that failed: kind, message, the raw replies."""
    note: dict[str, Any] = {"kind": str(failure.kind), "error": str(failure)}
    if "raw" in failure.metadata:
        note["raw"] = failure.metadata["raw"]
    return note


def _passing(failure: GradingFailure) -> bool:
    return is_passing(failure.kind, failure.metadata)
