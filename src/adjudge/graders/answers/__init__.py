"""Graders of a final answer: extraction, numbers, arithmetic, mathematical equality."""
