"""The live page of a run folder: what it answers, and its server."""
