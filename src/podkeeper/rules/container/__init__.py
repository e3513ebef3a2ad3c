"""Decisions about one container: configuration, hooks, restarts, grace."""
