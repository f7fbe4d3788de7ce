"""Requests, scheduling and sampling, and the worker process behind a client."""
