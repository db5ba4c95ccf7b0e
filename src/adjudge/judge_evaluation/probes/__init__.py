"""Probes: controlled changes to an answer that a good judge ignores, or must notice."""
