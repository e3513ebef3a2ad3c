"""Errors of this package.

Their messages can be shown in a container status as they are.
"""


class LaunchError(Exception):
    """A process cannot be started. The message names the step and the reason."""


class SubPathError(Exception):
    """A sub-path leads out of its volume."""
