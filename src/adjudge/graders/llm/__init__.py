"""Graders that ask a judge."""
