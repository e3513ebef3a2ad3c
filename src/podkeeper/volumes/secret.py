"""Secret volumes: one file per key, in memory.

Kubelet counterpart: pkg/volume/secret.
"""

from collections.abc import Iterable
from typing import Final

from podkeeper.model.k8s.core import KeyToPath
from podkeeper.ports.api import ObjectReader
from podkeeper.volumes.atomic_writer import Files
from podkeeper.volumes.objects import secret_content, selected_files

KIND: Final = "secret"


async def secret_files(
    name: str, items: Iterable[KeyToPath] | None, optional: bool, namespace: str, mode: int, objects: ObjectReader
) -> Files:
    """Return the files of a Secret volume or projection. Raises TryLater."""
    content = await secret_content(objects, name, namespace, optional)
    return selected_files(content, items, mode, optional, "references non-existent secret key")
