"""Files of rollouts as samples: one reader a format, recognised by what a record holds."""
