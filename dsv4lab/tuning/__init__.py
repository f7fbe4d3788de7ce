"""Tuning sessions: what to measure, the correctness gate, sweeps, stores and reports."""
