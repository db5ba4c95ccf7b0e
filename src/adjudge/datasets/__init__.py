"""Preference, rating, comparison and demonstration data: row types, files, synthetic rows."""
