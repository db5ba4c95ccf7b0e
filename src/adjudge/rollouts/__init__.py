"""Files of rollouts as samples."""
