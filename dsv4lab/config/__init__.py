"""Frozen configuration in, resolved configuration out."""
