"""Overlap lab for the unified-KV DeepSeek-V4 runtime."""
