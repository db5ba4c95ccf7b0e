"""What a trainer does with a missing reward: its own code, driven with groups that lack some."""
