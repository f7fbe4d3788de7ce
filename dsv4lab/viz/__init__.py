"""Figures: pure functions from records to plotly figures."""
