"""Overlap plans, and what runs them: the scoreboard, stream programs, queue threads, audit."""
