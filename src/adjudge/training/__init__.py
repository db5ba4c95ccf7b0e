"""Training with judge rewards; torch, transformers and TRL are imported when a run starts."""
