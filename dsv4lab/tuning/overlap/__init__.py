"""Overlap against serial decoding on this machine: plans and serial controls in turn, on a GPU as graphs."""
