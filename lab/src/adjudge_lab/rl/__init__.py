"""Reinforcement learning of a policy with judges' rewards, as one run file says.

torch, transformers and TRL are imported when a run starts.
"""
