"""Reading config maps and secrets, and making files of their keys.

A reader, a name and the spec's choice of keys come in; files go out. What is missing raises TryLater in the words of
the reference; what is optional and missing is simply not there. The Go ancestors are `MakePayload` in
pkg/volume/{configmap,secret}.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping

from podkeeper.model.errors import NotFound, TryLater
from podkeeper.model.k8s.core import ConfigMap, KeyToPath, Secret
from podkeeper.ports.api import Reader
from podkeeper.volumes.atomic_writer import Files, ProjectedFile


async def config_map_content(objects: Reader, name: str, namespace: str, optional: bool) -> dict[str, bytes]:
    """All keys of a config map."""
    try:
        found = await objects.get(ConfigMap, name, namespace)
    except NotFound as error:
        if optional:
            return {}
        raise TryLater(f'configmap "{name}" not found') from error
    content = {key: text.encode() for key, text in (found.data or {}).items()}
    return content | _decoded(found.binary_data, f'configmap "{name}"')


async def secret_content(objects: Reader, name: str, namespace: str, optional: bool) -> dict[str, bytes]:
    """All keys of a secret; what is written as plain text comes on top, as the API would store it."""
    try:
        found = await objects.get(Secret, name, namespace)
    except NotFound as error:
        if optional:
            return {}
        raise TryLater(f'secret "{name}" not found') from error
    content = _decoded(found.data, f'secret "{name}"')
    return content | {key: text.encode() for key, text in (found.string_data or {}).items()}


def chosen_files(
    content: Mapping[str, bytes], items: Iterable[KeyToPath] | None, mode: int, optional: bool, missing: str
) -> Files:
    """The files of all keys, or of those that were chosen; `missing` is said of a key that is not there."""
    chosen = tuple(items or ())
    if not chosen:
        return {key: ProjectedFile(data, mode) for key, data in content.items()}
    files = {}
    for item in chosen:
        if item.key in content:
            files[item.path] = ProjectedFile(content[item.key], mode if item.mode is None else item.mode)
        elif not optional:
            raise TryLater(f"{missing}: {item.key}")
    return files


def together(errors: Iterable[Exception]) -> str:
    """Several errors in one text, as the reference writes them."""
    texts = tuple(dict.fromkeys(map(str, errors)))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _decoded(encoded: Mapping[str, str] | None, what: str) -> dict[str, bytes]:
    try:
        return {key: base64.b64decode(text) for key, text in (encoded or {}).items()}
    except binascii.Error as error:
        raise TryLater(f"cannot read {what}: it is not base64: {error}") from error
