"""Validation of a pod: metadata and the top-level fields of the spec.

Input: a decoded pod, with or without its defaults. Output: all field errors, with field names as in the API. No errors
means that the API server would store the pod. Validation never raises.

`containers` (with `env`, `hooks`, `resources`, `security`), `volumes` (with `storage`) and `placement` check the other
fields. Windows options are not checked. Neither are deprecated annotations that have a field. Kubelet counterpart:
`ValidatePodCreate` in pkg/apis/core/validation.
"""

import re
from enum import Enum, auto
from typing import Final

from podkeeper.model.errors import Problem
from podkeeper.model.k8s import core, meta
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION
from podkeeper.rules.defaults.pod import default_pod
from podkeeper.rules.validate.containers import containers
from podkeeper.rules.validate.names import (
    Problems,
    address,
    annotations,
    choice,
    dns_label,
    dns_subdomain,
    label_key,
    labels,
    missing,
    not_negative,
    optional_choice,
    repeated,
    search_path,
    too_long,
    too_many,
    unwanted,
    within,
    wrong,
)
from podkeeper.rules.validate.placement import placement
from podkeeper.rules.validate.resources import overhead, pod_resources
from podkeeper.rules.validate.security import pod_security
from podkeeper.rules.validate.volumes import volumes

MAX_NAMESERVERS: Final = 3
MAX_SEARCHES: Final = 32
MAX_SEARCH_CHARACTERS: Final = 2048
MAX_HOSTNAME: Final = 64

_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_INTEGER: Final = re.compile(r"-[0-9]{1,12}|0|[1-9][0-9]{0,11}")
_MAX_UID: Final = 128  # leaves room for prefixes in the file names of logs and cgroups
_STANDARD_FINALIZERS: Final = ("kubernetes", "orphan", "foregroundDeletion")
_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")


class RequestKind(Enum):
    """Which request is validated. An update may add fields that a create may not have."""

    CREATE = auto()
    UPDATE = auto()


def validate_pod(pod: core.Pod, kind: RequestKind = RequestKind.CREATE) -> tuple[Problem, ...]:
    """Return all field errors of a pod. Missing fields are defaulted first."""
    return tuple(_problems(default_pod(pod), kind))


def _problems(pod: core.Pod, kind: RequestKind) -> Problems:
    spec = pod.spec
    yield from _metadata(pod.metadata)
    yield from _annotations_of_pods(pod)
    yield from volumes(pod)
    yield from _resource_claims(pod)
    yield from containers(spec, {volume.name: volume for volume in spec.volumes or ()})
    yield from pod_resources(spec)
    yield from overhead("spec.overhead", spec.overhead)
    yield from choice("spec.restartPolicy", spec.restart_policy, ("Always", "OnFailure", "Never"))
    yield from optional_choice("spec.preemptionPolicy", spec.preemption_policy, ("PreemptLowerPriority", "Never"))
    yield from within("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1, 2**31 - 1)
    yield from pod_security(spec)
    yield from placement(spec)
    yield from _gates(spec)
    yield from _names(spec)
    yield from _hostname(spec)
    yield from _dns(spec)
    yield from _host_aliases(spec.host_aliases or ())
    if kind is RequestKind.CREATE:
        if spec.ephemeral_containers:
            yield unwanted("spec.ephemeralContainers", "cannot be set on create")
        if spec.node_name and spec.scheduling_gates:
            yield unwanted("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


# ---- metadata ------------------------------------------------------------------------------


def _uid(uid: str) -> Problems:
    """Check the UID of a manifest. The API server sets its own, and the kubelet takes every one of a static pod."""
    # Directories, cgroups and journal keys contain it, so a pod with such a UID could never start or be removed.
    if "/" in uid or uid in (".", "..") or len(uid) > _MAX_UID or not uid.isprintable():
        yield wrong("metadata.uid", uid, f"must be a file name: at most {_MAX_UID} printable characters without '/'")


def _metadata(metadata: meta.ObjectMeta) -> Problems:
    if metadata.generate_name:
        prefix = metadata.generate_name
        # A prefix may end with '-', because the API server appends letters and digits.
        for _ in dns_subdomain("", f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix):
            yield wrong("metadata.generateName", prefix, dns_subdomain.detail)
    if metadata.name:
        yield from dns_subdomain("metadata.name", metadata.name)
    else:
        yield missing("metadata.name", "name or generateName is required")
    yield from dns_label("metadata.namespace", metadata.namespace or "")
    yield from _uid(metadata.uid or "")
    yield from not_negative("metadata.generation", metadata.generation)
    yield from labels("metadata.labels", metadata.labels)
    yield from annotations("metadata.annotations", metadata.annotations)
    yield from _owners(metadata.owner_references or ())
    finalizers = metadata.finalizers or ()
    for index, finalizer in enumerate(finalizers):
        at = f"metadata.finalizers[{index}]"
        yield from label_key(at, finalizer)
        if finalizer and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified (e.g. 'example.com/cleanup')"
            yield wrong(at, finalizer, detail)
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        yield wrong("metadata.finalizers", list(finalizers), detail)


def _owners(owners: tuple[meta.OwnerReference, ...]) -> Problems:
    for index, owner in enumerate(owners):
        at = f"metadata.ownerReferences[{index}]"
        for name, value in (
            ("apiVersion", owner.api_version),
            ("kind", owner.kind),
            ("name", owner.name),
            ("uid", owner.uid),
        ):
            if not value:
                yield missing(f"{at}.{name}", "must not be empty")
    controllers = [f"{owner.kind}/{owner.name}" for owner in owners if owner.controller]
    if len(controllers) > 1:
        detail = "Only one reference can have Controller set to true"
        yield wrong("metadata.ownerReferences", controllers, detail)


def _annotations_of_pods(pod: core.Pod) -> Problems:
    given = pod.metadata.annotations or {}
    if CONFIG_MIRROR_ANNOTATION in given and not pod.spec.node_name:
        yield missing("spec.nodeName", "must set spec.nodeName if mirror pod annotation is set")
    cost = given.get(_DELETION_COST)
    if cost is not None and not (_INTEGER.fullmatch(cost) and -(2**31) <= int(cost) < 2**31):
        yield wrong(f"metadata.annotations[{_DELETION_COST}]", cost, "must be a 32bit integer")


# ---- top-level fields of the spec ----------------------------------------------------------


def _resource_claims(pod: core.Pod) -> Problems:
    claims = pod.spec.resource_claims or ()
    if claims and CONFIG_MIRROR_ANNOTATION in (pod.metadata.annotations or {}):
        yield unwanted("spec.resourceClaims", "static pods do not support resource claims")
        return
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        at = f"spec.resourceClaims[{index}]"
        yield from dns_label(f"{at}.name", claim.name)
        if claim.name and claim.name in seen:
            yield repeated(f"{at}.name", claim.name)
        seen.add(claim.name)
        if (claim.resource_claim_name is None) == (claim.resource_claim_template_name is None):
            given = [claim.resource_claim_name, claim.resource_claim_template_name]
            detail = "must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield wrong(at, list(filter(None, given)), detail)
        if claim.resource_claim_name is not None:
            yield from dns_subdomain(f"{at}.resourceClaimName", claim.resource_claim_name)
        if claim.resource_claim_template_name is not None:
            yield from dns_subdomain(f"{at}.resourceClaimTemplateName", claim.resource_claim_template_name)


def _gates(spec: core.PodSpec) -> Problems:
    for index, gate in enumerate(spec.readiness_gates or ()):
        yield from label_key(f"spec.readinessGates[{index}].conditionType", gate.condition_type)
    seen: set[str] = set()
    for index, scheduling in enumerate(spec.scheduling_gates or ()):
        at = f"spec.schedulingGates[{index}].name"
        yield from label_key(at, scheduling.name)
        if scheduling.name in seen:
            yield repeated(at, scheduling.name)
        seen.add(scheduling.name)


def _names(spec: core.PodSpec) -> Problems:
    """Check the names of other objects. All of them are optional."""
    if spec.service_account_name:
        yield from dns_subdomain("spec.serviceAccountName", spec.service_account_name)
    if spec.node_name:
        yield from dns_subdomain("spec.nodeName", spec.node_name)
    if spec.priority_class_name:
        yield from dns_subdomain("spec.priorityClassName", spec.priority_class_name)
    if spec.runtime_class_name is not None:
        yield from dns_subdomain("spec.runtimeClassName", spec.runtime_class_name)
    if spec.scheduling_group is not None:
        yield from dns_subdomain("spec.schedulingGroup.podGroupName", spec.scheduling_group.pod_group_name or "")


def _hostname(spec: core.PodSpec) -> Problems:
    if spec.hostname:
        yield from dns_label("spec.hostname", spec.hostname)
    if spec.subdomain:
        yield from dns_label("spec.subdomain", spec.subdomain)
    if spec.hostname_override is not None:
        at = "spec.hostnameOverride"
        if spec.set_hostname_as_fqdn:
            yield unwanted(at, "setHostnameAsFQDN and hostnameOverride are mutually exclusive")
        if spec.host_network:
            yield unwanted(at, "hostnameOverride is not allowed when hostNetwork is true")
        if len(spec.hostname_override) > MAX_HOSTNAME:
            yield wrong(at, spec.hostname_override, f"must be no more than {MAX_HOSTNAME} characters")
        yield from dns_subdomain(at, spec.hostname_override)


def _dns(spec: core.PodSpec) -> Problems:
    yield from choice("spec.dnsPolicy", spec.dns_policy, _DNS_POLICIES)
    config = spec.dns_config or core.PodDNSConfig()
    nameservers, searches = config.nameservers or (), config.searches or ()
    if spec.dns_policy == "None" and not nameservers:
        detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        yield missing("spec.dnsConfig.nameservers", detail)
    if len(nameservers) > MAX_NAMESERVERS:
        yield too_many("spec.dnsConfig.nameservers", len(nameservers), MAX_NAMESERVERS)
    for index, nameserver in enumerate(nameservers):
        yield from address(f"spec.dnsConfig.nameservers[{index}]", nameserver)
    if len(searches) > MAX_SEARCHES:
        yield too_many("spec.dnsConfig.searches", len(searches), MAX_SEARCHES)
    elif len(" ".join(searches)) > MAX_SEARCH_CHARACTERS:
        yield too_long("spec.dnsConfig.searches", MAX_SEARCH_CHARACTERS, "characters, including spaces")
    for index, search in enumerate(searches):
        yield from search_path(f"spec.dnsConfig.searches[{index}]", search)
    for index, option in enumerate(config.options or ()):
        if not option.name:
            yield missing(f"spec.dnsConfig.options[{index}].name")


def _host_aliases(aliases: tuple[core.HostAlias, ...]) -> Problems:
    for index, alias in enumerate(aliases):
        yield from address(f"spec.hostAliases[{index}].ip", alias.ip)
        for position, name in enumerate(alias.hostnames or ()):
            yield from dns_subdomain(f"spec.hostAliases[{index}].hostnames[{position}]", name)
