"""Defaults that the API server sets in objects."""
