"""What trains or generates on adjudge's rewards: RL runs, judges, policy evaluation, studies."""
