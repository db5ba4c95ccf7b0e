"""Several trainings in one file: each stage begins with what an earlier one left."""
