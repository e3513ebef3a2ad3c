"""Configuration, wiring and the command line.

Only this package imports all others.
"""
