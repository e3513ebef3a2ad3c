"""Validation of the resource requests, limits and claims of containers and pods.

Quantities must be valid and not negative. Huge pages and devices cannot be overcommitted, so their limit must equal
their request. The pod-level resources must cover the pod's containers. Kubelet counterparts:
`validateResourceRequirements` and `validatePodResources` in pkg/apis/core/validation.
"""

from collections.abc import Callable, Mapping
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.model.wire import QuantityLike
from podkeeper.rules import resources
from podkeeper.rules.validate.names import (
    NOT_NEGATIVE,
    Problems,
    dns_label,
    label_key,
    missing,
    not_found,
    repeated,
    unsupported,
    unwanted,
    wrong,
)

_CONTAINER_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_POD_RESOURCES: Final = ("cpu", "memory", "hugepages-<size>")


def readable(field: str, wire: QuantityLike) -> Quantity | Problem:
    """Parse a quantity. Return the field error if it is malformed."""
    try:
        return parse_quantity(wire)
    except BadInput as error:
        return Problem(error.problems[0].message, field)


def container_resources(field: str, given: core.ResourceRequirements, claims: frozenset[str]) -> Problems:
    yield from _requirements(field, given, _container_resource_name)
    yield from _claims(f"{field}.claims", given.claims, claims)


def overhead(field: str, given: Mapping[str, QuantityLike] | None) -> Problems:
    for name, wire in (given or {}).items():
        yield from _container_resource_name(f"{field}[{name}]", name)
        yield from _amount(f"{field}[{name}]", name, wire)


def pod_resources(spec: core.PodSpec) -> Problems:
    given = spec.resources
    if given is None:
        return
    if given.claims is not None:
        yield unwanted("spec.resources.claims", "claims may not be set for Resources at pod-level")
    yield from _requirements("spec.resources", given, _pod_resource_name)
    try:
        yield from _consistency(spec, given)
    except BadInput:
        return  # a container's quantity is malformed; `_amount` reports it at its own field


def _requirements(field: str, given: core.ResourceRequirements, name_rule: Callable[[str, str], Problems]) -> Problems:
    limits, requests = given.limits or {}, given.requests or {}
    for name, wire in limits.items():
        yield from name_rule(f"{field}.limits[{name}]", name)
        yield from _amount(f"{field}.limits[{name}]", name, wire)
    for name, wire in requests.items():
        if wire == limits.get(name):
            continue  # defaulted from the limit, so its errors are reported there
        at = f"{field}.requests[{name}]"
        yield from name_rule(at, name)
        yield from _amount(at, name, wire)
        yield from _request_against_limit(at, name, wire, limits.get(name))
    named = limits.keys() | requests.keys()
    if any(map(resources.is_huge_pages, named)) and not named & {"cpu", "memory"}:
        yield unwanted(field, "HugePages require cpu or memory")


def _amount(field: str, name: str, wire: QuantityLike) -> Problems:
    amount = readable(field, wire)
    if isinstance(amount, Problem):
        yield amount
        return
    if amount < ZERO:
        yield wrong(field, str(amount), NOT_NEGATIVE)
    if not resources.is_native(name) and amount.milli_value % 1000:
        yield wrong(field, str(amount), "must be an integer")
    if resources.is_huge_pages(name) and not _is_whole_pages(name, amount):
        yield wrong(field, str(amount), "must be a positive integer multiple of the page size")


def _is_whole_pages(name: str, amount: Quantity) -> bool:
    try:
        page = parse_quantity(name.removeprefix(resources.HUGE_PAGES_PREFIX))
    except BadInput:
        return False
    return page > ZERO and page.milli_value % 1000 == 0 and amount.value % page.value == 0


def _request_against_limit(field: str, name: str, wire: QuantityLike, limit_wire: QuantityLike | None) -> Problems:
    shareable = resources.is_native(name) and not resources.is_huge_pages(name)
    if limit_wire is None:
        if not shareable:
            yield missing(field, f"a limit of {name} must be set, because it cannot be overcommitted")
        return
    request, limit = readable(field, wire), readable(field, limit_wire)
    if isinstance(request, Problem) or isinstance(limit, Problem):
        return  # `_amount` reports it
    if not shareable and request != limit:
        yield wrong(field, str(request), f"must be equal to {name} limit of {limit}")
    elif request > limit:
        yield wrong(field, str(request), f"must be less than or equal to {name} limit of {limit}")


def _container_resource_name(field: str, name: str) -> Problems:
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not resources.is_huge_pages(name):
            detail = "must be a standard resource for containers (cpu, memory, ephemeral-storage, hugepages-<size>) "
            yield wrong(field, name, f"{detail}or fully qualified (e.g. example.com/device)")
            return
    elif not resources.is_native(name) and name.startswith("requests."):
        yield wrong(field, name, "must not start with 'requests.'")
    yield from label_key(field, name)


def _pod_resource_name(field: str, name: str) -> Problems:
    if not resources.may_be_pod_level(name):
        yield unsupported(field, name, _POD_RESOURCES)


def _claims(field: str, given: tuple[core.ResourceClaim, ...] | None, known: frozenset[str]) -> Problems:
    seen: set[str] = set()
    for index, claim in enumerate(given or ()):
        at = f"{field}[{index}]"
        if not claim.name:
            yield missing(at)
            continue
        key = f"{claim.name}/{claim.request}" if claim.request else claim.name
        if claim.request:
            yield from dns_label(f"{at}.request", claim.request)
        narrower = not claim.request and any(other.startswith(f"{claim.name}/") for other in seen)
        if claim.name in seen or key in seen or narrower:
            yield repeated(at, key)
        seen.add(key)
        if claim.name not in known:
            yield not_found(at, claim.name)


def _consistency(spec: core.PodSpec, given: core.ResourceRequirements) -> Problems:
    """Check that the pod-level resources cover the resources of the containers."""
    requests = resources.container_total(spec, resources.requests_of)
    yield from _covered("spec.resources.requests", requests, given.requests)
    limits = resources.container_total(spec, resources.limits_of)
    huge_pages = {name: amount for name, amount in limits.items() if resources.is_huge_pages(name)}
    yield from _covered("spec.resources.limits", huge_pages, given.limits)
    pod_limits = resources.amounts_of(given.limits)
    for index, container in enumerate(spec.containers):
        for name, limit in resources.limits_of(container).items():
            if name in pod_limits and limit > pod_limits[name]:
                at = f"spec.containers[{index}].resources.limits[{name}]"
                yield wrong(
                    at, str(limit), f"must be less than or equal to {name} limit of the pod ({pod_limits[name]})"
                )


def _covered(field: str, needed: resources.Amounts, given: Mapping[str, QuantityLike] | None) -> Problems:
    for name, amount in resources.amounts_of(given).items():
        if name in needed and needed[name] > amount:
            detail = (
                f"must be greater than or equal to aggregate container {field.rpartition('.')[2]} of {needed[name]}"
            )
            yield wrong(f"{field}[{name}]", str(amount), detail)
