"""The verl backend for judges: its commands, its files, its rewards, and what it leaves."""
