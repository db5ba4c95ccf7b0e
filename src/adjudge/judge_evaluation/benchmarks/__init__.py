"""Benchmarks of judges, `adjudge eval JUDGE`: items with known labels, official scores."""
