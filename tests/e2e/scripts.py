"""Scripts for containers, and the event log: a file of the host to which containers append words.

The event log records the order of events across containers. It is a hostPath volume and outlives the pod.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Wire = Mapping[str, Any]
"""Fields in their wire spelling."""

LINGER = "while :; do sleep 0.02; done"
"""Run forever and handle signals without delay."""

POLITE = f"trap 'exit 0' TERM; {LINGER}"
"""Run until SIGTERM, then exit with 0."""


def sh(script: str) -> Wire:
    """Return the command of a container that runs a script."""
    return {"command": ["sh", "-c", script]}


def named(name: str, script: str, **fields: Any) -> Wire:
    """Return a container that runs a script."""
    return {"name": name, "image": "host", **sh(script), **fields}


class EventLog:
    """The file that containers write with `echo word >>/events/all`."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o777)
        self._file = directory / "all"
        self.mounts: list[Wire] = [{"name": "events", "mountPath": "/events"}]
        self.volumes: list[Wire] = [{"name": "events", "hostPath": {"path": str(directory)}}]

    @property
    def words(self) -> list[str]:
        """All words, in the order of writing."""
        return self._file.read_text().split() if self._file.exists() else []

    def writes(self, name: str, script: str, **fields: Any) -> Wire:
        """Return a container that mounts the event log."""
        return named(name, script, volumeMounts=self.mounts, **fields)

    def add(self, word: str) -> None:
        """Write a word from outside of containers."""
        with self._file.open("a") as file:
            file.write(f"{word}\n")


def note(word: str) -> Wire:
    """Return a hook or probe handler that writes a word."""
    return {"exec": {"command": ["sh", "-c", f"echo {word} >>/events/all"]}}
