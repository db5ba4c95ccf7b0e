"""Several asks at once: what they cost together, and what the failures among them come to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from adjudge.engine.loop import run_all
from adjudge.errors import PASSING_KINDS, REDRAW_KINDS, ErrorKind, GradingFailure, is_passing
from adjudge.graders.llm.judge_grader import sum_provenance
from adjudge.types import Provenance

_T = TypeVar("_T")


async def ask_all(asks: Iterable[Callable[[], Awaitable[_T]]]) -> list[_T | GradingFailure]:
    """Await all at once, in order; a failure stands in its ask's place and cancels no other.

    ``auth`` alone is raised, and cancels: with a refused key no other ask does better.
    """
    asks = list(asks)
    done: dict[int, _T | GradingFailure] = {}

    async def one(place: int, ask: Callable[[], Awaitable[_T]]) -> None:
        try:
            done[place] = await ask()
        except GradingFailure as failure:
            if failure.kind is ErrorKind.AUTH:
                raise
            done[place] = failure

    await run_all(one(place, ask) for place, ask in enumerate(asks))
    return [done[place] for place in range(len(asks))]


def join_failures(
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
    kind = kinds[0] if shared or all(map(_is_passing_failure, failures)) else otherwise
    metadata = {**metadata, "suspect": any(failure.suspect for failure in failures)}
    if _are_failures_redrawable(failures):
        metadata["redraw"] = True
    if shared and "status" in failures[0].metadata:
        metadata["status"] = failures[0].metadata["status"]
    return GradingFailure(kind, message, metadata, provenance=sum_costs(answered, failures))


def are_redrawable(kinds: Iterable[ErrorKind]) -> bool:
    """Whether parts that failed in these ways may all answer when they are asked anew."""
    kinds = set(kinds)
    return bool(kinds & REDRAW_KINDS) and kinds <= PASSING_KINDS | REDRAW_KINDS


def _are_failures_redrawable(failures: Sequence[GradingFailure]) -> bool:
    drawn = [failure for failure in failures if is_redrawable(failure)]
    rest = [failure for failure in failures if not is_redrawable(failure)]
    return bool(drawn) and all(map(_is_passing_failure, rest))


def is_redrawable(failure: GradingFailure) -> bool:
    """Whether a fresh draw may cure a part that failed."""
    return failure.kind in REDRAW_KINDS or bool(failure.metadata.get("redraw"))


def sum_costs(
    answered: Iterable[Provenance | None], failures: Iterable[GradingFailure] = ()
) -> Provenance | None:
    """The sum of what answers and failures cost; ``None`` where nothing is known of it."""
    known = [one for one in (*answered, *(f.provenance for f in failures)) if one is not None]
    return sum_provenance(known) if known else None


def describe_failure(failure: GradingFailure) -> dict[str, Any]:
    """What a result's metadata keeps of a part that failed: kind, message, the raw replies."""
    note: dict[str, Any] = {"kind": str(failure.kind), "error": str(failure)}
    if "raw" in failure.metadata:
        note["raw"] = failure.metadata["raw"]
    return note


def _is_passing_failure(failure: GradingFailure) -> bool:
    return is_passing(failure.kind, failure.metadata)
