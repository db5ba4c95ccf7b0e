"""A run's folder: what goes in, what comes out, and the report."""
