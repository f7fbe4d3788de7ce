"""RMSNorm."""

from dsv4_kernels.norm_quant.reference import rms_norm_reference

__all__ = ["rms_norm_reference"]
