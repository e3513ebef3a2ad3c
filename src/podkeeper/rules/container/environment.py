"""The environment of a container, and its command with variables expanded.

    envFrom, in order  ->  env, in order, each may use the earlier ones  ->  command and args

Inputs are a container's spec, the ConfigMaps and Secrets it refers to (`env_references_of`) and a `PodContext`. The
output keeps the order of declaration. A later name replaces an earlier one, and `env` replaces `envFrom`. A missing
required reference raises `NotConfigurable` with the message for the container's status.

Service variables are not created: a standalone node has no services, and in a cluster DNS replaces them.

Kubelet counterpart: `makeEnvironmentVariables` in pkg/kubelet/kubelet_pods.go.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import ConfigMap, Container, EnvFromSource, EnvVar, EphemeralContainer, Secret
from podkeeper.rules.container.downward import PodContext, field_value, resource_value
from podkeeper.rules.container.expansion import add_length, expand, expand_all


class ObjectKind(StrEnum):
    """The kinds that a container's environment can refer to, as written in `not found` messages."""

    CONFIG_MAP = "configmap"
    SECRET = "secret"


@dataclass(frozen=True, slots=True)
class EnvReference:
    """A ConfigMap or Secret in the pod's namespace."""

    kind: ObjectKind
    name: str


Objects = Mapping[EnvReference, ConfigMap | Secret]
"""The existing objects. An object that is not in this mapping does not exist."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """Environment, command and arguments of a container's first process. An empty command means the image's own."""

    env: Mapping[str, str]
    command: tuple[str, ...]
    args: tuple[str, ...]


def env_references_of(container: Container | EphemeralContainer) -> tuple[EnvReference, ...]:
    """Return the objects that a container's environment refers to, without duplicates."""
    references = (*map(_source_reference, container.env_from or ()), *map(_key_reference, container.env or ()))
    return tuple(dict.fromkeys(reference for reference in references if reference is not None))


def invocation_of(container: Container | EphemeralContainer, context: PodContext, objects: Objects) -> Invocation:
    env = environment_of(container, context, objects)
    return Invocation(env, expand_all(container.command, env, "command"), expand_all(container.args, env, "args"))


def environment_of(container: Container | EphemeralContainer, context: PodContext, objects: Objects) -> dict[str, str]:
    env: dict[str, str] = {}
    # `envFrom` first, so that variables of `env` replace and can use its values.
    for source in container.env_from or ():
        env.update(_all_keys(source, objects))
    length = 0
    for variable in container.env or ():
        value = _value(variable, env, container, context, objects)
        if value is not None:
            env[variable.name] = value
            # Many variables could each be as long as the kernel allows.
            length = add_length(length, value, "env")
    return env


def _value(
    variable: EnvVar,
    env: Mapping[str, str],
    container: Container | EphemeralContainer,
    context: PodContext,
    objects: Objects,
) -> str | None:
    """Return the value of a variable, None if it is optional and its source is missing."""
    # As in the kubelet, an explicit value counts before `valueFrom`.
    if variable.value:
        return expand(variable.value, env, f"variable {variable.name}")
    source = variable.value_from
    if source is None:
        return ""
    if source.field_ref is not None:
        return field_value(source.field_ref, context)
    if source.resource_field_ref is not None:
        return resource_value(source.resource_field_ref, container, context)
    if source.file_key_ref is not None:
        raise NotConfigurable(f"cannot set variable {variable.name}: fileKeyRef is not supported")
    return _key_value(variable, context, objects)


def _key_value(variable: EnvVar, context: PodContext, objects: Objects) -> str | None:
    reference = _key_reference(variable)
    source = variable.value_from
    selector = None if source is None else source.config_map_key_ref or source.secret_key_ref
    if reference is None or selector is None:
        return ""  # an empty source
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
        f"couldn't find key {selector.key} in {kind} {context.pod.metadata.namespace or ''}/{reference.name}"
    )


def _all_keys(source: EnvFromSource, objects: Objects) -> Iterator[tuple[str, str]]:
    """Yield every key of an object as a variable. The API server has checked that keys are valid names."""
    reference = _source_reference(source)
    selector = source.config_map_ref or source.secret_ref
    if reference is None or selector is None:
        return
    found = _found(reference, bool(selector.optional), objects)
    if found is not None:
        for key, value in _content(found).items():
            yield f"{source.prefix or ''}{key}", value


def _found(reference: EnvReference, optional: bool, objects: Objects) -> ConfigMap | Secret | None:
    found = objects.get(reference)
    if found is None and not optional:
        raise NotConfigurable(f'{reference.kind} "{reference.name}" not found')
    return found


def _content(found: ConfigMap | Secret) -> Mapping[str, str]:
    """Return the data of an object. Bytes that are not UTF-8 become surrogates, as in `os.environ`."""
    if isinstance(found, ConfigMap):
        return found.data or {}
    return {key: _decoded(found, key, text) for key, text in (found.data or {}).items()}


def _decoded(secret: Secret, key: str, text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode(errors="surrogateescape")
    except binascii.Error as error:
        raise NotConfigurable(f"cannot read key {key} of secret {secret.metadata.name}: it is not base64") from error


def _source_reference(source: EnvFromSource) -> EnvReference | None:
    if source.config_map_ref is not None:
        return EnvReference(ObjectKind.CONFIG_MAP, source.config_map_ref.name or "")
    if source.secret_ref is not None:
        return EnvReference(ObjectKind.SECRET, source.secret_ref.name or "")
    return None


def _key_reference(variable: EnvVar) -> EnvReference | None:
    source = variable.value_from
    if source is None or variable.value:
        return None
    if source.config_map_key_ref is not None:
        return EnvReference(ObjectKind.CONFIG_MAP, source.config_map_key_ref.name or "")
    if source.secret_key_ref is not None:
        return EnvReference(ObjectKind.SECRET, source.secret_key_ref.name or "")
    return None
