"""Errors of this package.

A container status can show their messages unchanged.
"""


class LaunchError(Exception):
    """A process cannot be started. The message names the step and the reason."""


class SubPathError(Exception):
    """A sub-path leads out of its volume."""
