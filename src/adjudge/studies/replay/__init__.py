"""Dumped judge prompts, asked again or only read again."""
