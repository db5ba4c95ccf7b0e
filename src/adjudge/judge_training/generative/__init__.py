"""Judges that write: what they are asked, how they are read, rewarded and trained."""
