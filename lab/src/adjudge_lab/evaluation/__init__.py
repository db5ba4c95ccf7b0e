"""A policy on held-out episodes, on IFEval and on HealthBench, and policies compared."""
