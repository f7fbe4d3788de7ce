"""Kernels of the unified-KV DeepSeek-V4 runtime, one folder per op, each with a plain torch reference."""
