"""Validation of environment variables, their sources, and field selectors.

Downward API volumes use the same selectors. Kubelet counterparts: `ValidateEnv`, `ValidateEnvFrom` and the field and
resource selectors in pkg/apis/core/validation.
"""

from collections.abc import Collection, Mapping
from typing import Final

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO
from podkeeper.rules.validate.names import (
    Problems,
    data_key,
    dns_label,
    dns_subdomain,
    env_name,
    label_key,
    missing,
    no_backsteps,
    not_found,
    supported,
    unsupported,
    wrong,
)
from podkeeper.rules.validate.resources import readable

ENV_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
FILE_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
)

_RESOURCES: Final = tuple(
    f"{part}.{name}" for part in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage")
)
_HUGE_PAGES: Final = ("limits.hugepages-", "requests.hugepages-")
_CPU_DIVISORS: Final = ("1m", "1")
_BYTE_DIVISORS: Final = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")


def variables(field: str, given: tuple[core.EnvVar, ...], volumes: Mapping[str, core.Volume]) -> Problems:
    for index, variable in enumerate(given):
        at = f"{field}[{index}]"
        yield from env_name(f"{at}.name", variable.name)
        source = variable.value_from
        if source is None:
            continue
        at = f"{at}.valueFrom"
        yield from _exactly_one(at, source)
        if variable.value:
            yield wrong(at, "", "may not be specified when `value` is not empty")
        if source.field_ref is not None:
            yield from field_selector(f"{at}.fieldRef", source.field_ref, ENV_FIELDS)
        if source.resource_field_ref is not None:
            yield from resource_selector(f"{at}.resourceFieldRef", source.resource_field_ref)
        if source.config_map_key_ref is not None:
            yield from _key_selector(f"{at}.configMapKeyRef", source.config_map_key_ref)
        if source.secret_key_ref is not None:
            yield from _key_selector(f"{at}.secretKeyRef", source.secret_key_ref)
        if source.file_key_ref is not None:
            yield from _file_selector(f"{at}.fileKeyRef", source.file_key_ref, volumes)


def sources(field: str, given: tuple[core.EnvFromSource, ...]) -> Problems:
    """Check the config maps and secrets in `envFrom`."""
    for index, source in enumerate(given):
        at = f"{field}[{index}]"
        if source.prefix:
            yield from env_name(f"{at}.prefix", source.prefix)
        references = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
        present = [(name, reference) for name, reference in references if reference is not None]
        if not present:
            yield wrong(at, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(present) > 1:
            yield wrong(at, [name for name, _ in present], "may not have more than one field specified at a time")
        for name, reference in present:
            yield from dns_subdomain(f"{at}.{name}.name", reference.name or "")


def field_selector(field: str, selector: core.ObjectFieldSelector, allowed: Collection[str]) -> Problems:
    if selector.api_version != "v1":
        yield unsupported(f"{field}.apiVersion", selector.api_version, ("v1",))
        return
    path = "spec.nodeName" if selector.field_path == "spec.host" else selector.field_path
    whole, bracket, subscript = path.removesuffix("']").partition("['")
    if path.endswith("']") and bracket and whole:
        if whole not in ("metadata.annotations", "metadata.labels"):
            yield wrong(f"{field}.fieldPath", path, "only metadata.labels and metadata.annotations support subscripts")
        else:
            yield from label_key(
                f"{field}.fieldPath", subscript.lower() if whole == "metadata.annotations" else subscript
            )
    elif path not in allowed:
        known = (*allowed, "metadata.labels['<key>']", "metadata.annotations['<key>']")
        at = f"{field}.fieldPath"
        yield unsupported(at, path, known) if path else missing(at, supported(known))


def resource_selector(field: str, selector: core.ResourceFieldSelector, *, in_volume: bool = False) -> Problems:
    resource = selector.resource
    if in_volume and not selector.container_name:
        yield missing(f"{field}.containerName")
    elif resource not in _RESOURCES and not resource.startswith(_HUGE_PAGES):
        known = (*_RESOURCES, *(f"{prefix}<size>" for prefix in _HUGE_PAGES))
        at = f"{field}.resource"
        yield unsupported(at, resource, known) if resource else missing(at, supported(known))
    divisor = readable(f"{field}.divisor", selector.divisor)
    if isinstance(divisor, Problem):
        yield divisor
    elif divisor != ZERO and (resource in _RESOURCES or resource.startswith(_HUGE_PAGES)):
        allowed = _CPU_DIVISORS if resource.endswith(".cpu") else _BYTE_DIVISORS
        if str(divisor) not in allowed:
            yield unsupported(f"{field}.divisor", str(divisor), allowed)


def _exactly_one(field: str, source: core.EnvVarSource) -> Problems:
    kinds = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
    given = (
        source.field_ref,
        source.resource_field_ref,
        source.config_map_key_ref,
        source.secret_key_ref,
        source.file_key_ref,
    )
    present = [name for name, part in zip(kinds, given, strict=True) if part is not None]
    if not present:
        yield wrong(field, "", f"must specify one of: {', '.join(f'`{name}`' for name in kinds)}")
    elif len(present) > 1:
        yield wrong(field, present, "may not have more than one field specified at a time")


def _key_selector(field: str, selector: core.ConfigMapKeySelector | core.SecretKeySelector) -> Problems:
    yield from dns_subdomain(f"{field}.name", selector.name or "")
    yield from data_key(f"{field}.key", selector.key)


def _file_selector(field: str, selector: core.FileKeySelector, volumes: Mapping[str, core.Volume]) -> Problems:
    yield from env_name(f"{field}.key", selector.key)
    yield from dns_label(f"{field}.volumeName", selector.volume_name)
    if not selector.path:
        yield missing(f"{field}.path")
    yield from no_backsteps(f"{field}.path", selector.path)
    volume = volumes.get(selector.volume_name)
    if volume is None:
        yield not_found(f"{field}.volumeName", selector.volume_name)
    elif volume.empty_dir is None:
        yield wrong(f"{field}.volumeName", selector.volume_name, "referenced volume must be of type emptyDir")
