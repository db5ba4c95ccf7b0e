"""Judges trained from preferences, ratings and demonstrations, and what proves them."""
