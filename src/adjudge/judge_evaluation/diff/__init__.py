"""``adjudge diff``: the same rollouts under two specs, judges or prompts, sample by sample."""
