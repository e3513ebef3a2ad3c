"""The node's own docker configuration: credentials that every pod's images may be pulled with.

    config.json: in the agent's root, ~/.docker, /.docker;  else .dockercfg: in the agent's root, ~, /

The first that is there and can be read counts, alone, and is read again after five minutes. The Go ancestor is
pkg/credentialprovider/provider.go; it also looks in the directory it happens to be started in.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from podkeeper.ports.clock import Clock
from podkeeper.rules.keyring import has_registries, is_whole

log = logging.getLogger(__name__)

LIFETIME_SECONDS: Final = 300.0
_NEWER: Final = "config.json"
_OLDER: Final = ".dockercfg"
_LONGEST_BYTES: Final = 10 * 2**20


def usual_places(root: Path) -> tuple[Path, ...]:
    """Where the node's configuration may lie, the first to look at in front."""
    try:
        homes = [Path.home()]
    except RuntimeError:  # whoever we run as has none
        homes = []
    return (
        root / _NEWER,
        *(home / ".docker" / _NEWER for home in homes),
        Path("/.docker") / _NEWER,
        root / _OLDER,
        *(home / _OLDER for home in homes),
        Path("/") / _OLDER,
    )


class NodeDockerConfig:
    """Reads the node's docker configuration, now and then."""

    def __init__(self, places: Sequence[Path], clock: Clock) -> None:
        self._places = tuple(places)
        self._clock = clock
        self._found: tuple[str, ...] = ()
        self._read_at: float | None = None

    async def configs(self) -> Sequence[str]:
        """The configuration, if there is one."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= LIFETIME_SECONDS:
            self._read_at = now
            self._found = await asyncio.to_thread(self._read)
        return self._found

    def _read(self) -> tuple[str, ...]:
        for place in self._places:
            try:
                with place.open("rb") as file:
                    content = file.read(_LONGEST_BYTES)
                config = content.decode()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                log.warning("the node's docker configuration %s cannot be read: %s", place, type(error).__name__)
                continue
            if place.name == _NEWER and not has_registries(config):
                continue  # it may hold other settings of docker's
            if is_whole(config):
                return (config,)
            log.warning("the node's docker configuration %s is passed over: it is not what it should be", place)
        return ()
