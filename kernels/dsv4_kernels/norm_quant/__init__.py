"""RMSNorm, with and without fp8 group quantisation, and the quantisation alone."""

from dsv4_kernels.norm_quant.reference import quant_reference, rms_norm_quant_reference, rms_norm_reference

__all__ = ["quant_reference", "rms_norm_quant_reference", "rms_norm_reference"]
