"""Benchmarks of judges, `adjudge eval judge`: items with known labels, official scores."""
