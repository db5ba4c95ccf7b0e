"""Preference, rating, comparison and demonstration data: row types and files."""
