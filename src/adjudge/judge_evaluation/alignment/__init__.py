"""Judges against people: labels of any tool, how far both agree, and where they do not."""
