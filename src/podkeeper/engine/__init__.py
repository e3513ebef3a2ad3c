"""Asyncio shells: they own the state and execute the decisions of `rules`."""
