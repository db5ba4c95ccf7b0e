"""Checks: what can be wrong with rewards, judges and steps, each with its measure and its test."""
