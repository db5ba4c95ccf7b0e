"""What was answered already, the judge's own failures included, so that a probe resumes."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from adjudge.runner.journal import Journal
from adjudge.studies.probes.scale import JUDGE_FAULTS
from adjudge.types import GraderError, GraderResult, encode_result

__all__ = ["ProbeJournal"]


class ProbeJournal(Journal):
    """A journal that keeps failures of the judge's own making, too.

    They are what is measured here: asked again on every resumption, they would become fewer with
    each, and a judge that fails would pass in the end. Other failures are asked again.
    """

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """Remember ``result``; of failures only the judge's own."""
        if not isinstance(result, GraderError):
            super().put(sample, grader, draw, result)
        elif result.kind in JUDGE_FAULTS:
            # What no JSON can hold is asked again.
            with suppress(TypeError, ValueError, OverflowError, RecursionError):
                said = msgspec.Raw(encode_result(result))
                line = msgspec.json.encode({"s": sample, "g": grader, "d": draw, "r": said})
                self.flush()
                with self.path.open("ab") as file:
                    file.write(line + b"\n")
