"""Test tools for podkeeper and for your own runtime: virtual time, fakes, an in-memory API, port contracts."""
