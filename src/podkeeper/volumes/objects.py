"""Read ConfigMaps and Secrets and turn their keys into files.

Input: a reader, a name and the selected keys. Output: files. A missing object or key raises TryLater with the kubelet's
message, unless it is optional. Kubelet counterparts: `MakePayload` in pkg/volume/{configmap,secret}.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping

from podkeeper.model.errors import NotFound, TryLater
from podkeeper.model.k8s.core import ConfigMap, KeyToPath, Secret
from podkeeper.ports.api import ObjectReader
from podkeeper.volumes.atomic_writer import Files, ProjectedFile


async def config_map_content(objects: ObjectReader, name: str, namespace: str, optional: bool) -> dict[str, bytes]:
    """Return all keys of a ConfigMap. Raises TryLater."""
    try:
        found = await objects.get(ConfigMap, name, namespace)
    except NotFound as error:
        if optional:
            return {}
        raise TryLater(f'configmap "{name}" not found') from error
    content = {key: text.encode() for key, text in (found.data or {}).items()}
    return content | _decoded(found.binary_data, f'configmap "{name}"')


async def secret_content(objects: ObjectReader, name: str, namespace: str, optional: bool) -> dict[str, bytes]:
    """Return all keys of a Secret. `stringData` overrides `data`, as in the API server. Raises TryLater."""
    try:
        found = await objects.get(Secret, name, namespace)
    except NotFound as error:
        if optional:
            return {}
        raise TryLater(f'secret "{name}" not found') from error
    content = _decoded(found.data, f'secret "{name}"')
    return content | {key: text.encode() for key, text in (found.string_data or {}).items()}


def selected_files(
    content: Mapping[str, bytes], items: Iterable[KeyToPath] | None, mode: int, optional: bool, missing: str
) -> Files:
    """Return the files of all keys, or of the selected ones. `missing` is the message for a missing key."""
    selected = tuple(items or ())
    if not selected:
        return {key: ProjectedFile(data, mode) for key, data in content.items()}
    files = {}
    for item in selected:
        if item.key in content:
            files[item.path] = ProjectedFile(content[item.key], mode if item.mode is None else item.mode)
        elif not optional:
            raise TryLater(f"{missing}: {item.key}")
    return files


def _decoded(encoded: Mapping[str, str] | None, what: str) -> dict[str, bytes]:
    try:
        return {key: base64.b64decode(text) for key, text in (encoded or {}).items()}
    except binascii.Error as error:
        raise TryLater(f"cannot read {what}: not base64: {error}") from error
