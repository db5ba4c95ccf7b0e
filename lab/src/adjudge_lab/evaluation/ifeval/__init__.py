"""IFEval over whole files: responses generated, scored with intervals, compared, written."""
