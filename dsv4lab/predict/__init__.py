"""Predictions: costs from shapes, what-if from a baseline trace, calibration of the queue model. Never imports torch."""
