"""Loaders, one file per trace format, each giving a timeline."""
