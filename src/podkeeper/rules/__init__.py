"""Decisions as pure functions.

They do not await, log, read a clock or depend on a runtime.
"""
