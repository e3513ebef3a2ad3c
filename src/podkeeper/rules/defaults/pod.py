"""Defaults of the API server for pods.

The input is a decoded pod. The output is the same pod with every default that the API server would store:
policies, grace period, probe timings, pull policies, file modes, and requests taken from limits. Quantities are in
canonical form. An invalid one stays as it is, for validation to report. Setting the defaults twice changes nothing.

Where Go cannot distinguish them, an empty string or a zero counts as absent.

Kubelet counterparts: pkg/apis/core/v1/defaults.go, its generated caller, and the repairs in conversion.go (a negative
grace period, the old name of the service account, the plain text of a Secret).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from podkeeper.model.errors import BadInput
from podkeeper.model.k8s import core
from podkeeper.model.quantity import Quantity
from podkeeper.model.wire import QuantityLike
from podkeeper.rules import resources
from podkeeper.rules.defaults.parts import default_container, default_volume, each, if_given

# DefaultTerminationGracePeriodSeconds of the API.
GRACE_SECONDS: Final = 30


def default_pod(pod: core.Pod) -> core.Pod:
    spec = _defaulted_requests(pod.spec)
    grace = GRACE_SECONDS if spec.termination_grace_period_seconds is None else spec.termination_grace_period_seconds
    account = spec.service_account_name or spec.service_account
    if spec.host_network:
        spec = _with_host_ports(spec)
    spec = msgspec.structs.replace(
        spec,
        containers=tuple(map(default_container, spec.containers)),
        init_containers=each(default_container, spec.init_containers),
        ephemeral_containers=each(default_container, spec.ephemeral_containers),
        volumes=each(default_volume, spec.volumes),
        overhead=resources.canonical_resources(spec.overhead),
        resources=if_given(resources.canonical_requirements, spec.resources),
        restart_policy=spec.restart_policy or "Always",
        dns_policy=spec.dns_policy or "ClusterFirst",
        security_context=core.PodSecurityContext() if spec.security_context is None else spec.security_context,
        termination_grace_period_seconds=1 if grace < 0 else grace,
        scheduler_name=spec.scheduler_name or "default-scheduler",
        enable_service_links=True if spec.enable_service_links is None else spec.enable_service_links,
        service_account_name=account,
        service_account=account,
    )
    return msgspec.structs.replace(pod, spec=spec)


# ---- values derived from the pod itself ----------------------------------------------------------


def _with_host_ports(spec: core.PodSpec) -> core.PodSpec:
    """Set the host port of every container port. In the host network, both are equal."""

    def on_host(port: core.ContainerPort) -> core.ContainerPort:
        return msgspec.structs.replace(port, host_port=port.host_port or port.container_port or None)

    def exposed(container: core.Container) -> core.Container:
        return msgspec.structs.replace(container, ports=each(on_host, container.ports))

    return msgspec.structs.replace(
        spec, containers=tuple(map(exposed, spec.containers)), init_containers=each(exposed, spec.init_containers)
    )


def _defaulted_requests(spec: core.PodSpec) -> core.PodSpec:
    """Take missing requests from the limits: first per container, then for the pod as a whole."""
    spec = msgspec.structs.replace(
        spec,
        containers=tuple(map(_requests_from_limits, spec.containers)),
        init_containers=each(_requests_from_limits, spec.init_containers),
    )
    try:
        return _completed_pod_level(spec)
    except BadInput:
        return spec  # a quantity is invalid, and validation will report it


def _requests_from_limits(container: core.Container) -> core.Container:
    limits, requests = container.resources.limits, container.resources.requests
    if not limits:
        return container
    own = msgspec.structs.replace(container.resources, requests={**limits, **(requests or {})})
    return msgspec.structs.replace(container, resources=own)


def _completed_pod_level(spec: core.PodSpec) -> core.PodSpec:
    """Complete pod-level limits (huge pages) and requests, if the pod has pod-level resources."""
    if spec.resources is None or not (spec.resources.limits or spec.resources.requests):
        return spec
    limits, requests = spec.resources.limits or {}, spec.resources.requests or {}
    huge_pages = {
        name: amount
        for name, amount in resources.container_total(spec, resources.limits_of).items()
        if resources.is_huge_pages(name) and name not in requests
    }
    limits = {**_texts(huge_pages), **limits}
    if limits:
        of_containers = {
            name: amount
            for name, amount in resources.container_total(spec, resources.requests_of).items()
            if resources.may_be_pod_level(name) and not resources.is_huge_pages(name)
        }
        of_pod = {name: value for name, value in limits.items() if resources.may_be_pod_level(name)}
        requests = {**of_pod, **_texts(of_containers), **requests}
    completed = msgspec.structs.replace(
        spec.resources,
        limits=limits or spec.resources.limits,
        requests=requests or spec.resources.requests,
    )
    return msgspec.structs.replace(spec, resources=completed)


def _texts(amounts: Mapping[str, Quantity]) -> dict[str, QuantityLike]:
    return {name: str(amount) for name, amount in amounts.items()}
