"""Decisions about container logs: reading, rotation, symlinks."""
