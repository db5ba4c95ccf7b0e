"""Policies trained against judges that differ in a known way: one plan, one report."""
