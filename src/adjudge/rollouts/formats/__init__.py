"""Formats of rollout files: one reader each, recognised by what a record holds."""
