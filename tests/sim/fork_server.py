"""Stop the fork server of worker pools."""

from multiprocessing import forkserver


def stop_fork_server() -> None:
    """Let the next pool start a new fork server: a process with other addresses and the current environment."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as Python's own tests do
