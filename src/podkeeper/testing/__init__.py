"""Shipped for tests, yours and ours: virtual time, fakes, an in-memory API."""
