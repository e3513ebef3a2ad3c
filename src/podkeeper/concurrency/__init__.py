"""Mechanisms for concurrent work: slots, backoff, timers, threads.

Standard library only.
"""
