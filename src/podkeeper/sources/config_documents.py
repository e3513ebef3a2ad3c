"""Convert documents to config maps and secrets, as an API server stores them.

The namespace defaults to `default`, and a secret's `stringData` is merged into its `data`. Objects that an API server
would reject raise `BadInput` with file and line. Messages never contain values of secrets. Kubelet counterparts:
`ValidateConfigMap` and `ValidateSecret` in pkg/apis/core/validation.
"""

import base64
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.manifest import Document, decode
from podkeeper.rules.static.pod import DEFAULT_NAMESPACE
from podkeeper.rules.validate import names

# MaxSecretSize of the API, which also applies to config maps.
MAX_BYTES: Final = 1024 * 1024
"""The maximum size of all values of one object."""

_DEFAULT_SECRET_TYPE: Final = "Opaque"
_SECRET_FIELDS: Final = ("data", "stringData")


def config_map_from(document: Document) -> ConfigMap:
    """Return the config map of a document. Raises `BadInput` with all problems."""
    found = decode(document, ConfigMap)
    _refuse(document, _config_map_problems(found))
    return replace(found, metadata=_with_namespace(found.metadata))


def secret_from(document: Document) -> Secret:
    """Return the secret of a document. Raises `BadInput` with all problems."""
    try:
        found = decode(document, Secret)
    except BadInput as error:
        # "from None", because the original error contains the value.
        raise BadInput(*map(_without_value, error.problems)) from None
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in (found.string_data or {}).items()}
    # As in the API server, stringData wins over data.
    data = {**(found.data or {}), **encoded} or None
    found = replace(found, data=data, string_data=None, type=found.type or _DEFAULT_SECRET_TYPE)
    _refuse(document, _secret_problems(found))
    return replace(found, metadata=_with_namespace(found.metadata))


def _with_namespace(metadata: ObjectMeta) -> ObjectMeta:
    return replace(metadata, namespace=metadata.namespace or DEFAULT_NAMESPACE)


def _refuse(document: Document, problems: Iterator[Problem]) -> None:
    if found := tuple(map(document.locate, problems)):
        raise BadInput(*found)


def _config_map_problems(found: ConfigMap) -> Iterator[Problem]:
    yield from _identity_problems(found.metadata)
    data, binary = found.data or {}, found.binary_data or {}
    for field, keys in (("data", data), ("binaryData", binary)):
        for key in keys:
            yield from names.data_key(f"{field}[{key}]", key)
    for key in data.keys() & binary.keys():
        yield names.repeated(f"binaryData[{key}]", key)
    yield from _size_problems(sum(map(_bytes_of_text, data.values())) + sum(map(_bytes_of_base64, binary.values())))


def _secret_problems(found: Secret) -> Iterator[Problem]:
    yield from _identity_problems(found.metadata)
    data = found.data or {}
    for key in data:
        yield from names.data_key(f"data[{key}]", key)
    yield from _size_problems(sum(map(_bytes_of_base64, data.values())))


def _identity_problems(metadata: ObjectMeta) -> Iterator[Problem]:
    yield from names.dns_subdomain("metadata.name", metadata.name or "")
    yield from names.dns_label("metadata.namespace", metadata.namespace or DEFAULT_NAMESPACE)


def _size_problems(size: int) -> Iterator[Problem]:
    if size > MAX_BYTES:
        yield names.too_long("data", MAX_BYTES)


def _bytes_of_text(text: str) -> int:
    return len(text.encode())


def _bytes_of_base64(text: str) -> int:
    plain = "".join(text.split())
    return len(plain) * 3 // 4 - plain[-2:].count("=")


def _without_value(problem: Problem) -> Problem:
    """Remove the value from a problem of a secret."""
    field = problem.field.partition("[")[0].partition(".")[0]
    if field not in _SECRET_FIELDS:
        return problem
    expected = "base64 (use stringData for plain text)" if field == "data" else "a string (in quotes)"
    return Problem(f"Invalid value: (hidden): must be {expected}", *_location(problem))


def _location(problem: Problem) -> tuple[str, str, int]:
    return problem.field, problem.file, problem.line
