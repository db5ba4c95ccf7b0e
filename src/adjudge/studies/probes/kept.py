"""What was answered already, the judge's own failures included, so that a probe resumes."""

from __future__ import annotations

from adjudge.runner.journal import Journal
from adjudge.studies.probes.scale import JUDGE_FAULTS

__all__ = ["ProbeJournal"]


class ProbeJournal(Journal):
    """A journal that keeps failures of the judge's own making, too.

    They are what is measured here: asked again on every resumption, they would become fewer with
    each, and a judge that fails would pass in the end. Other failures are asked again.
    """

    keeps = JUDGE_FAULTS
