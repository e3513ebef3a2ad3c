"""Admission with checks of sysctls and AppArmor, in the kubelet's order."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s.core import Node, Pod
from podkeeper.rules.admission.admit import Enforcement, Preempt, Rejection, admit
from podkeeper.rules.admission.usage import NodeUsage, usage_of

Json = dict[str, Any]

NODE = msgspec.convert(
    {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}}, Node
)
LITTLE = Enforcement()
MUCH = Enforcement(unsafe_sysctls=("kernel.msg*",), apparmor=True)
SYSCTL = Rejection("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
APPARMOR = Rejection("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")


def parsed(
    name: str = "p",
    *,
    sysctl: bool = False,
    apparmor: bool = False,
    cpu: str = "0",
    phase: str = "Pending",
    **spec: Any,
) -> Pod:
    context: Json = {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]} if sysctl else {}
    if apparmor:
        context["appArmorProfile"] = {"type": "RuntimeDefault"}
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    wire = {
        "metadata": {"name": name, "uid": name},
        "spec": {"securityContext": context, "containers": [container], **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(wire, Pod)


def judged(new: Pod, enforcement: Enforcement | None, *others: Pod) -> Rejection | Preempt | None:
    usage = NodeUsage()
    for other in others:
        usage.add(usage_of(other))
    return admit(new, NODE, usage, lambda: others, enforcement)


CASES: dict[str, tuple[Pod, Enforcement | None, str | None]] = {
    "a pod without sysctls and profiles fits": (parsed(), LITTLE, None),
    "a forbidden sysctl": (parsed(sysctl=True), LITTLE, "SysctlForbidden"),
    "an allowed sysctl": (parsed(sysctl=True), MUCH, None),
    "AppArmor is not enabled": (parsed(apparmor=True), LITTLE, "AppArmor"),
    "AppArmor is enabled": (parsed(apparmor=True), MUCH, None),
    "no checks without enforcement": (parsed(sysctl=True, apparmor=True), None, None),
    "sysctls are checked before resources": (parsed(sysctl=True, cpu="5"), LITTLE, "SysctlForbidden"),
    "AppArmor is checked after resources": (parsed(apparmor=True, cpu="5"), LITTLE, "OutOfcpu"),
    "AppArmor is not checked for a running pod": (parsed(apparmor=True, phase="Running"), LITTLE, None),
}


@pytest.mark.parametrize("new, enforcement, reason", CASES.values(), ids=CASES.keys())
def test_admission_reason(new: Pod, enforcement: Enforcement | None, reason: str | None) -> None:
    verdict = judged(new, enforcement)
    assert (verdict.reason if isinstance(verdict, Rejection) else verdict) == reason


def test_messages_are_those_of_the_kubelet() -> None:
    assert judged(parsed(sysctl=True), LITTLE) == SYSCTL
    assert judged(parsed(apparmor=True), LITTLE) == APPARMOR


def test_no_pod_is_preempted_for_a_pod_with_a_forbidden_profile() -> None:
    small = parsed("small", cpu="1")
    critical: Json = {"cpu": "1", "priorityClassName": "system-node-critical", "priority": 2_000_001_000}
    assert isinstance(judged(parsed("big", **critical), LITTLE, small), Preempt)
    assert judged(parsed("big", apparmor=True, **critical), LITTLE, small) == APPARMOR
    assert judged(parsed("big", sysctl=True, **critical), LITTLE, small) == SYSCTL
