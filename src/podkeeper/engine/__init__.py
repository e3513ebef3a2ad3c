"""Shells in the order data flows: they own state and obey the decisions of `rules`."""
