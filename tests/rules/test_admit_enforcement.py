"""Admission where containers are held to kernel settings and AppArmor, in the reference's order."""

from typing import Any

import msgspec
import pytest

from podkeeper.model.k8s.core import Node, Pod
from podkeeper.rules.admit import Enforcement, Preempt, Rejection, admit_beside
from podkeeper.rules.usage import NodeUsage, share_of

Json = dict[str, Any]

NODE = msgspec.convert(
    {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}}, Node
)
LITTLE = Enforcement()
MUCH = Enforcement(unsafe_sysctls=("kernel.msg*",), apparmor=True)
SYSCTL = Rejection("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
APPARMOR = Rejection("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")


def pod(
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
        usage.add(share_of(other))
    return admit_beside(new, NODE, usage, lambda: others, enforcement)


CASES: dict[str, tuple[Pod, Enforcement | None, str | None]] = {
    "who wants nothing special, fits": (pod(), LITTLE, None),
    "a setting that is not allowed": (pod(sysctl=True), LITTLE, "SysctlForbidden"),
    "one that is allowed": (pod(sysctl=True), MUCH, None),
    "AppArmor where there is none": (pod(apparmor=True), LITTLE, "AppArmor"),
    "AppArmor where there is one": (pod(apparmor=True), MUCH, None),
    "nobody asks where the runtime has no say in it": (pod(sysctl=True, apparmor=True), None, None),
    "settings are asked about before room": (pod(sysctl=True, cpu="5"), LITTLE, "SysctlForbidden"),
    "and AppArmor after": (pod(apparmor=True, cpu="5"), LITTLE, "OutOfcpu"),
    "who runs already, has its profile": (pod(apparmor=True, phase="Running"), LITTLE, None),
}


@pytest.mark.parametrize("new, enforcement, reason", CASES.values(), ids=CASES.keys())
def test_who_may_run(new: Pod, enforcement: Enforcement | None, reason: str | None) -> None:
    verdict = judged(new, enforcement)
    assert (verdict.reason if isinstance(verdict, Rejection) else verdict) == reason


def test_the_words_are_the_references() -> None:
    assert judged(pod(sysctl=True), LITTLE) == SYSCTL
    assert judged(pod(apparmor=True), LITTLE) == APPARMOR


def test_nobody_is_killed_for_a_pod_that_cannot_be_held_to_its_walls() -> None:
    small = pod("small", cpu="1")
    critical: Json = {"cpu": "1", "priorityClassName": "system-node-critical", "priority": 2_000_001_000}
    assert isinstance(judged(pod("big", **critical), LITTLE, small), Preempt)
    assert judged(pod("big", apparmor=True, **critical), LITTLE, small) == APPARMOR
    assert judged(pod("big", sysctl=True, **critical), LITTLE, small) == SYSCTL
