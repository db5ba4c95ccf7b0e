"""Judges with one output: Bradley-Terry training, and what the output means."""
