"""Predictions: costs from shapes, what-if from a baseline trace, calibration. Never imports torch."""
