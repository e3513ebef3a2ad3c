"""The environment of a container, and its command with variables put in.

    envFrom, in order  ->  env, in order, each able to use what stands before it  ->  command and args

A container's spec, the config maps and secrets it refers to (`references_of` says which) and its surroundings come
in; names and values go out, in the order they were declared. A later name replaces an earlier one, and `env` replaces
`envFrom`. A reference that must be there and is not raises `NotConfigurable` with the words the container's status
shows. Variables for services are not made: a node without a cluster has none, and DNS serves the others.

The Go ancestor is `makeEnvironmentVariables` in pkg/kubelet/kubelet_pods.go.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import ConfigMap, Container, EnvFromSource, EnvVar, EphemeralContainer, Secret
from podkeeper.rules.downward import Surroundings, field_value, resource_value
from podkeeper.rules.expansion import expand, expand_all


class ObjectKind(StrEnum):
    """What a container's environment can refer to; the words are those of `not found` messages."""

    CONFIG_MAP = "configmap"
    SECRET = "secret"


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """A config map or secret in the pod's own namespace."""

    kind: ObjectKind
    name: str


Objects = Mapping[ObjectReference, ConfigMap | Secret]
"""The objects there are; one that is missing is not found."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a container's first process is started; an empty command is the image's own."""

    env: Mapping[str, str]
    command: tuple[str, ...]
    args: tuple[str, ...]


def references_of(container: Container | EphemeralContainer) -> tuple[ObjectReference, ...]:
    """The objects whose content a container's environment shows, each once."""
    references = (*map(_source_reference, container.env_from or ()), *map(_key_reference, container.env or ()))
    return tuple(dict.fromkeys(reference for reference in references if reference is not None))


def invocation_of(container: Container | EphemeralContainer, seen: Surroundings, objects: Objects) -> Invocation:
    """The environment, command and arguments of a container."""
    env = environment_of(container, seen, objects)
    return Invocation(env, expand_all(container.command, env), expand_all(container.args, env))


def environment_of(container: Container | EphemeralContainer, seen: Surroundings, objects: Objects) -> dict[str, str]:
    """The variables of a container and their values."""
    env: dict[str, str] = {}
    for source in container.env_from or ():
        env.update(_all_keys(source, objects))
    for variable in container.env or ():
        value = _value(variable, env, container, seen, objects)
        if value is not None:
            env[variable.name] = value
    return env


def _value(
    variable: EnvVar,
    env: Mapping[str, str],
    container: Container | EphemeralContainer,
    seen: Surroundings,
    objects: Objects,
) -> str | None:
    """The value of a variable; None when it is optional and there is none."""
    if variable.value:
        return expand(variable.value, env)
    source = variable.value_from
    if source is None:
        return ""
    if source.field_ref is not None:
        return field_value(source.field_ref, seen)
    if source.resource_field_ref is not None:
        return resource_value(source.resource_field_ref, container, seen)
    if source.file_key_ref is not None:
        raise NotConfigurable(f"cannot set variable {variable.name}: this node does not read fileKeyRef")
    return _key_value(variable, seen, objects)


def _key_value(variable: EnvVar, seen: Surroundings, objects: Objects) -> str | None:
    """The value under one key of an object."""
    reference = _key_reference(variable)
    source = variable.value_from
    selector = None if source is None else source.config_map_key_ref or source.secret_key_ref
    if reference is None or selector is None:
        return ""  # a source that names nothing
    found = _found(reference, bool(selector.optional), objects)
    if found is None:
        return None
    content = _content(found)
    if selector.key in content:
        return content[selector.key]
    if selector.optional:
        return None
    kind = "ConfigMap" if reference.kind is ObjectKind.CONFIG_MAP else "Secret"
    raise NotConfigurable(
        f"couldn't find key {selector.key} in {kind} {seen.pod.metadata.namespace or ''}/{reference.name}"
    )


def _all_keys(source: EnvFromSource, objects: Objects) -> Iterator[tuple[str, str]]:
    """Every key of an object, each a variable; the API has seen to it that keys can be names."""
    reference = _source_reference(source)
    selector = source.config_map_ref or source.secret_ref
    if reference is None or selector is None:
        return
    found = _found(reference, bool(selector.optional), objects)
    if found is not None:
        for key, value in _content(found).items():
            yield f"{source.prefix or ''}{key}", value


def _found(reference: ObjectReference, optional: bool, objects: Objects) -> ConfigMap | Secret | None:
    found = objects.get(reference)
    if found is None and not optional:
        raise NotConfigurable(f'{reference.kind} "{reference.name}" not found')
    return found


def _content(found: ConfigMap | Secret) -> Mapping[str, str]:
    """What an object holds, as text; bytes that are none survive as surrogates, as in the process's own environment."""
    if isinstance(found, ConfigMap):
        return found.data or {}
    return {key: _decoded(found, key, text) for key, text in (found.data or {}).items()}


def _decoded(secret: Secret, key: str, text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode(errors="surrogateescape")
    except binascii.Error as error:
        raise NotConfigurable(f"cannot read key {key} of secret {secret.metadata.name}: it is no base64") from error


def _source_reference(source: EnvFromSource) -> ObjectReference | None:
    if source.config_map_ref is not None:
        return ObjectReference(ObjectKind.CONFIG_MAP, source.config_map_ref.name or "")
    if source.secret_ref is not None:
        return ObjectReference(ObjectKind.SECRET, source.secret_ref.name or "")
    return None


def _key_reference(variable: EnvVar) -> ObjectReference | None:
    source = variable.value_from
    if source is None or variable.value:
        return None
    if source.config_map_key_ref is not None:
        return ObjectReference(ObjectKind.CONFIG_MAP, source.config_map_key_ref.name or "")
    if source.secret_key_ref is not None:
        return ObjectReference(ObjectKind.SECRET, source.secret_key_ref.name or "")
    return None
