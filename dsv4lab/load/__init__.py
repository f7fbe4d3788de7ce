"""Load on any OpenAI-compatible server, and servers of the user as things to measure."""
