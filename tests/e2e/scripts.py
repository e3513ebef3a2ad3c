"""Small programs for containers, and the diary in which they note what happens to them.

The diary is a file of the host's that a pod mounts: it tells the order of things, and outlives the pod.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Wire = Mapping[str, Any]
"""Fields as the wire spells them."""

LINGER = "while :; do sleep 0.02; done"
"""Stay, and hear signals soon."""

POLITE = f"trap 'exit 0' TERM; {LINGER}"
"""Stay until asked to end."""


def sh(script: str) -> Wire:
    """Fields of a container that runs a script."""
    return {"command": ["sh", "-c", script]}


def named(name: str, script: str, **fields: Any) -> Wire:
    """One more container of a pod."""
    return {"name": name, "image": "host", **sh(script), **fields}


class Diary:
    """What containers noted: `echo word >>/diary/all`."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o777)
        self._file = directory / "all"
        self.mounts: list[Wire] = [{"name": "diary", "mountPath": "/diary"}]
        self.volumes: list[Wire] = [{"name": "diary", "hostPath": {"path": str(directory)}}]

    @property
    def words(self) -> list[str]:
        """All that was noted, in order."""
        return self._file.read_text().split() if self._file.exists() else []

    def writes(self, name: str, script: str, **fields: Any) -> Wire:
        """A container that may note things."""
        return named(name, script, volumeMounts=self.mounts, **fields)

    def add(self, word: str) -> None:
        """Note something from outside."""
        with self._file.open("a") as file:
            file.write(f"{word}\n")


def note(word: str) -> Wire:
    """A handler that writes into the diary."""
    return {"exec": {"command": ["sh", "-c", f"echo {word} >>/diary/all"]}}
