"""Kernels of the DeepSeek-V4 runtime, each with a plain torch reference of the same name."""
