"""ConfigMap volumes: one file per key. Kubelet counterpart: pkg/volume/configmap."""

from typing import Final

from podkeeper.model.k8s.core import ConfigMapProjection, ConfigMapVolumeSource
from podkeeper.ports.api import ObjectReader
from podkeeper.volumes.atomic_writer import Files
from podkeeper.volumes.objects import config_map_content, selected_files

KIND: Final = "configmap"


async def config_map_files(
    source: ConfigMapVolumeSource | ConfigMapProjection, namespace: str, mode: int, objects: ObjectReader
) -> Files:
    """Return the files of a ConfigMap volume or projection. Raises TryLater."""
    optional = bool(source.optional)
    content = await config_map_content(objects, source.name or "", namespace, optional)
    return selected_files(content, source.items, mode, optional, "configmap references non-existent config key")
