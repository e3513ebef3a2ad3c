"""Validation of what containers and pods ask for: requests, limits and claims.

Quantities must be readable and not negative; what cannot be shared out twice (huge pages, devices)
must be limited to exactly what is requested; what the pod asks as a whole must cover its
containers. The Go ancestors are `validateResourceRequirements` and `validatePodResources` in
pkg/apis/core/validation.
"""

from collections.abc import Callable, Mapping
from typing import Final

from podkeeper.model.errors import BadInput, Problem
from podkeeper.model.k8s import core
from podkeeper.model.quantity import ZERO, Quantity, parse_quantity
from podkeeper.model.wire import QuantityLike
from podkeeper.rules import resources
from podkeeper.rules.validate.names import Problems, dns_label, label_key, listed, missing, repeated, unwanted, wrong

_CONTAINER_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_POD_RESOURCES: Final = ("cpu", "memory", "hugepages-<size>")


def readable(field: str, wire: QuantityLike) -> Quantity | Problem:
    """The quantity, or what is wrong with it."""
    try:
        return parse_quantity(wire)
    except BadInput as error:
        return Problem(error.problems[0].message, field)


def container_resources(field: str, given: core.ResourceRequirements, claims: frozenset[str]) -> Problems:
    """Everything wrong with the resources of a container."""
    yield from _requirements(field, given, _container_resource_name)
    yield from _claims(f"{field}.claims", given.claims, claims)


def overhead(field: str, given: Mapping[str, QuantityLike] | None) -> Problems:
    """Everything wrong with what the sandbox of a pod costs."""
    for name, wire in (given or {}).items():
        yield from _container_resource_name(f"{field}[{name}]", name)
        yield from _amount(f"{field}[{name}]", name, wire)


def pod_resources(spec: core.PodSpec) -> Problems:
    """Everything wrong with the resources a pod asks as a whole."""
    given = spec.resources
    if given is None:
        return
    if given.claims is not None:
        yield unwanted("spec.resources.claims", "for the pod as a whole")
    yield from _requirements("spec.resources", given, _pod_resource_name)
    try:
        yield from _consistency(spec, given)
    except BadInput:
        return  # a container's quantity cannot be read; that is reported where it stands


def _requirements(field: str, given: core.ResourceRequirements, name_rule: Callable[[str, str], Problems]) -> Problems:
    limits, requests = given.limits or {}, given.requests or {}
    for name, wire in limits.items():
        yield from name_rule(f"{field}.limits[{name}]", name)
        yield from _amount(f"{field}.limits[{name}]", name, wire)
    for name, wire in requests.items():
        if wire == limits.get(name):
            continue  # it was taken from the limit, where everything is said
        at = f"{field}.requests[{name}]"
        yield from name_rule(at, name)
        yield from _amount(at, name, wire)
        yield from _request_against_limit(at, name, wire, limits.get(name))
    named = limits.keys() | requests.keys()
    if any(map(resources.is_huge_pages, named)) and not named & {"cpu", "memory"}:
        yield Problem("cannot be huge pages alone; right would be cpu or memory beside them", field)


def _amount(field: str, name: str, wire: QuantityLike) -> Problems:
    amount = readable(field, wire)
    if isinstance(amount, Problem):
        yield amount
        return
    if amount < ZERO:
        yield wrong(field, str(amount), "zero or more")
    if not resources.is_native(name) and amount.milli_value % 1000:
        yield wrong(field, str(amount), "a whole number")
    if resources.is_huge_pages(name) and not _is_whole_pages(name, amount):
        yield wrong(field, str(amount), f"a multiple of the page size in {name!r}")


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
            yield Problem(f"cannot be requested without a limit; right would be the same limit of {name}", field)
        return
    request, limit = readable(field, wire), readable(field, limit_wire)
    if isinstance(request, Problem) or isinstance(limit, Problem):
        return  # said where it stands
    if not shareable and request != limit:
        yield wrong(field, str(request), f"exactly the limit of {limit}")
    elif request > limit:
        yield wrong(field, str(request), f"at most the limit of {limit}")


def _container_resource_name(field: str, name: str) -> Problems:
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not resources.is_huge_pages(name):
            yield wrong(field, name, f"{listed((*_CONTAINER_RESOURCES, 'hugepages-<size>'))}, or example.com/device")
            return
    elif not resources.is_native(name) and name.startswith("requests."):
        yield wrong(field, name, "a device name that does not begin with 'requests.'")
    yield from label_key(field, name)


def _pod_resource_name(field: str, name: str) -> Problems:
    if not resources.may_be_pod_level(name):
        yield wrong(field, name, listed(_POD_RESOURCES))


def _claims(field: str, given: tuple[core.ResourceClaim, ...] | None, known: frozenset[str]) -> Problems:
    seen: set[str] = set()
    for index, claim in enumerate(given or ()):
        at = f"{field}[{index}]"
        if not claim.name:
            yield missing(at, "the name of one of spec.resourceClaims")
            continue
        key = f"{claim.name}/{claim.request}" if claim.request else claim.name
        if claim.request:
            yield from dns_label(f"{at}.request", claim.request)
        narrower = not claim.request and any(other.startswith(f"{claim.name}/") for other in seen)
        if claim.name in seen or key in seen or narrower:
            yield repeated(at, key)
        seen.add(key)
        if claim.name not in known:
            yield wrong(at, claim.name, "the name of one of spec.resourceClaims")


def _consistency(spec: core.PodSpec, given: core.ResourceRequirements) -> Problems:
    """What the pod states must cover what its containers state."""
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
                yield wrong(at, str(limit), f"at most the pod's limit of {pod_limits[name]}")


def _covered(field: str, needed: resources.Amounts, given: Mapping[str, QuantityLike] | None) -> Problems:
    for name, amount in resources.amounts_of(given).items():
        if name in needed and needed[name] > amount:
            yield wrong(f"{field}[{name}]", str(amount), f"at least {needed[name]}, which its containers need together")
