"""Reward code that turns a judge's failures into numbers, found by reading it; nothing is run."""
