"""The engine behind OpenAI's HTTP endpoints: ``dsv4lab serve``."""
