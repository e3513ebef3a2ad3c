"""Secret volumes: one file per key, in memory. The Go ancestor is pkg/volume/secret."""

from collections.abc import Iterable
from typing import Final

from podkeeper.model.k8s.core import KeyToPath
from podkeeper.ports.api import Reader
from podkeeper.volumes.atomic_writer import Files
from podkeeper.volumes.objects import chosen_files, secret_content

KIND: Final = "secret"


async def secret_files(
    name: str, items: Iterable[KeyToPath] | None, optional: bool, namespace: str, mode: int, objects: Reader
) -> Files:
    """The files that a secret gives a volume. Raises TryLater."""
    content = await secret_content(objects, name, namespace, optional)
    return chosen_files(content, items, mode, optional, "references non-existent secret key")
