"""IFEval's verifiable instructions: 25 checks, strict and loose."""
