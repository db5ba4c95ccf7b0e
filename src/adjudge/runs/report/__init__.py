"""The page of a grading run."""
