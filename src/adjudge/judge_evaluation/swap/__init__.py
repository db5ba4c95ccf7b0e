"""Judge swap without training: stored rollouts under several judges, and what that changes."""
