"""What a study measured, turned into numbers with intervals. Pure functions, nothing is read."""

from adjudge.studies.matrix.analysis.analyse import analyse
from adjudge.studies.matrix.analysis.comparing import Comparison, against

__all__ = ["Comparison", "against", "analyse"]
