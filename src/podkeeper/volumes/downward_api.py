"""Downward API volumes: what a pod may read of itself. The Go ancestor is pkg/volume/downwardapi.

Only what a file can keep up to date is offered: metadata, and resources of a named container. Addresses and the
node's name are for the environment.
"""

import posixpath
from collections.abc import Iterable
from typing import Final

from podkeeper.model.errors import NotConfigurable, TryLater
from podkeeper.model.k8s.core import DownwardAPIVolumeFile
from podkeeper.rules.downward import Surroundings, field_value, resource_value
from podkeeper.volumes.atomic_writer import Files, ProjectedFile
from podkeeper.volumes.objects import together

KIND: Final = "downward-api"


def downward_files(items: Iterable[DownwardAPIVolumeFile] | None, seen: Surroundings, mode: int) -> Files:
    """The files that a pod's own fields give a volume. Raises TryLater with everything that is wrong."""
    files, errors = {}, []
    for item in items or ():
        try:
            data = _text(item, seen).encode()
        except NotConfigurable as error:
            errors.append(error)
            continue
        path = posixpath.normpath(item.path) if item.path else ""
        files[path] = ProjectedFile(data, mode if item.mode is None else item.mode)
    if errors:
        raise TryLater(together(errors))
    return files


def _text(item: DownwardAPIVolumeFile, seen: Surroundings) -> str:
    if item.field_ref is not None:
        if not item.field_ref.field_path.startswith("metadata."):
            raise NotConfigurable(f"unsupported fieldPath: {item.field_ref.field_path}")
        return field_value(item.field_ref, seen)
    selector = item.resource_field_ref
    if selector is None:
        return ""
    if not selector.container_name:
        raise NotConfigurable("container  not found")  # in a volume there is none it could mean
    return resource_value(selector, seen.pod.spec.containers[0], seen)
