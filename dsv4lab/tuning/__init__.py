"""Tuning sessions: measure plan × hardware queues × concurrency level, trust the answer, keep every record."""
