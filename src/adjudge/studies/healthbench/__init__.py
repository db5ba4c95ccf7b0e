"""HealthBench: a model's answers marked criterion by criterion, and the official aggregate."""
