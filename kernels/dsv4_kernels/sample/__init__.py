"""Choice of the next token: greedy, or Gumbel with temperature, top-k and top-p."""

from dsv4_kernels.sample.reference import sample_reference

__all__ = ["sample_reference"]
