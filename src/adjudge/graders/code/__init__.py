"""Graders of Python code: cases run in a sandbox, and the programs that run there."""
