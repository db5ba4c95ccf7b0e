"""Judges validated on benchmarks: who is asked, on what, in which folder, and what it came to."""
