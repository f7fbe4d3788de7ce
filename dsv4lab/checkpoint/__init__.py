"""Weights: names, shards, loading checked against the configuration, synthetic checkpoints."""
