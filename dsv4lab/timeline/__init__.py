"""Records that every room shares: timelines, stream programs, results. Never imports torch."""
