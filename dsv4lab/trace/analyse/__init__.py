"""Analyses of a timeline, each a pure function to a record."""
