"""Studies of judges: what they are swayed by, and what that does to a policy."""
