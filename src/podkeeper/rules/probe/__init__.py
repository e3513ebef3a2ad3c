"""Probes: decisions, requests and results.

`worker` is the state machine, `flags` sets status flags, the rest builds requests and reads results.
"""
