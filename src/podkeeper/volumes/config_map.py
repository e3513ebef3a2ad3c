"""Config map volumes: one file per key. The Go ancestor is pkg/volume/configmap."""

from typing import Final

from podkeeper.model.k8s.core import ConfigMapProjection, ConfigMapVolumeSource
from podkeeper.ports.api import Reader
from podkeeper.volumes.atomic_writer import Files
from podkeeper.volumes.objects import chosen_files, config_map_content

KIND: Final = "configmap"


async def config_map_files(
    source: ConfigMapVolumeSource | ConfigMapProjection, namespace: str, mode: int, objects: Reader
) -> Files:
    """The files that a config map gives a volume. Raises TryLater."""
    optional = bool(source.optional)
    content = await config_map_content(objects, source.name or "", namespace, optional)
    return chosen_files(content, source.items, mode, optional, "configmap references non-existent config key")
