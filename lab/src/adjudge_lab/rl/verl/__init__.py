"""The verl backend: its command, its files, its version."""
