"""Speculative decoding: drafters, verification, acceptance statistics (dsv4-spec 7)."""
