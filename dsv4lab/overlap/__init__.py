"""A sequential list of ops, any overlap: ops and resources, plans, the scoreboard, streams, audit."""
