"""IFEval's verifiable instructions: 25 checks, strict and loose, and the evaluation over a file."""
