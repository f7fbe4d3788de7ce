"""Traces on disk: loading, analysis, comparison, export."""
