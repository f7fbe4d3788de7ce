"""Accuracy of two arms on the same questions: exact tokens first, then right answers, paired."""
