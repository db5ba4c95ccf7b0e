"""Rule graders: pure functions of a sample."""
