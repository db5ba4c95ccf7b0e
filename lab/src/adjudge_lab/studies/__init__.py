"""Studies: policies trained against judges that differ, and replays of judge prompts."""
