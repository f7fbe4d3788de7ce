"""Expert selection."""

from dsv4_kernels.moe_route.reference import moe_route_reference

__all__ = ["moe_route_reference"]
