"""Downward API volumes: files with fields of the pod itself.

Only fields that can be refreshed in a file are supported: metadata, and resources of a named container. IP addresses
and the node name are only available as environment variables. Kubelet counterpart: pkg/volume/downwardapi.
"""

import posixpath
from collections.abc import Iterable
from typing import Final

from podkeeper.model.errors import NotConfigurable, TryLater
from podkeeper.model.k8s.core import DownwardAPIVolumeFile
from podkeeper.rules.container.downward import PodContext, field_value, resource_value
from podkeeper.rules.joined import joined_messages
from podkeeper.volumes.atomic_writer import Files, ProjectedFile

KIND: Final = "downward-api"


def downward_files(items: Iterable[DownwardAPIVolumeFile] | None, surroundings: PodContext, mode: int) -> Files:
    """Return the files with fields of a pod. Raises TryLater with all errors."""
    files, errors = {}, []
    for item in items or ():
        try:
            data = _text(item, surroundings).encode()
        except NotConfigurable as error:
            errors.append(error)
            continue
        path = posixpath.normpath(item.path) if item.path else ""
        files[path] = ProjectedFile(data, mode if item.mode is None else item.mode)
    if errors:
        raise TryLater(joined_messages(map(str, errors)))
    return files


def _text(item: DownwardAPIVolumeFile, surroundings: PodContext) -> str:
    if item.field_ref is not None:
        if not item.field_ref.field_path.startswith("metadata."):
            raise NotConfigurable(f"unsupported fieldPath: {item.field_ref.field_path}")
        return field_value(item.field_ref, surroundings)
    selector = item.resource_field_ref
    if selector is None:
        return ""
    if not selector.container_name:
        # The kubelet's message: a volume has no default container, so the name is empty.
        raise NotConfigurable("container  not found")
    return resource_value(selector, surroundings.pod.spec.containers[0], surroundings)
