"""Decisions, pure: nothing here awaits, logs, reads a clock or knows which runtime is in use."""
