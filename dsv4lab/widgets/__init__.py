"""Notebook widgets: figures composed with controls."""
