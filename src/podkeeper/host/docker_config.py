"""The Docker configuration of the node: credentials for the images of all pods.

    config.json in the state directory, ~/.docker, /.docker;  otherwise .dockercfg in the state directory, ~, /

Only the first readable file is used. It is read again after five minutes. Kubelet counterpart:
pkg/credentialprovider/provider.go, which also searches the working directory.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from podkeeper.ports.clock import Clock
from podkeeper.rules.images.keyring import has_registries, is_readable

log = logging.getLogger(__name__)

# As in the kubelet.
LIFETIME_SECONDS: Final = 300.0
_CONFIG_JSON: Final = "config.json"
_DOCKERCFG: Final = ".dockercfg"
_MAX_BYTES: Final = 10 * 2**20


def default_paths(root: Path) -> tuple[Path, ...]:
    """Return the paths of the configuration in search order."""
    try:
        homes = [Path.home()]
    except RuntimeError:  # the user has no home directory
        homes = []
    return (
        root / _CONFIG_JSON,
        *(home / ".docker" / _CONFIG_JSON for home in homes),
        Path("/.docker") / _CONFIG_JSON,
        root / _DOCKERCFG,
        *(home / _DOCKERCFG for home in homes),
        Path("/") / _DOCKERCFG,
    )


class NodeDockerConfig:
    """Reads and caches the Docker configuration of the node."""

    def __init__(self, paths: Sequence[Path], clock: Clock) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._configs: tuple[str, ...] = ()
        self._read_at: float | None = None

    async def configs(self) -> Sequence[str]:
        """Return the configuration, or nothing if there is none."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= LIFETIME_SECONDS:
            self._read_at = now
            self._configs = await asyncio.to_thread(self._read)
        return self._configs

    def _read(self) -> tuple[str, ...]:
        for path in self._paths:
            try:
                with path.open("rb") as file:
                    content = file.read(_MAX_BYTES)
                config = content.decode()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                # Only the class of the error, because its text may contain parts of the file, which has passwords.
                log.warning("cannot read the Docker configuration %s: %s", path, type(error).__name__)
                continue
            if path.name == _CONFIG_JSON and not has_registries(config):
                continue  # the file has only other settings of Docker
            if is_readable(config):
                return (config,)
            log.warning("the Docker configuration %s is ignored: invalid content", path)
        return ()
