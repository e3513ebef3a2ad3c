"""Decisions about images: references, credentials, pulls, access, GC."""
