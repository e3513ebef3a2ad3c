"""Attacks through system calls that the default seccomp filter refuses."""

from typing import Any

import pytest

from podkeeper.linux.capabilities import bounding_set
from podkeeper.model.k8s.core import Container, Pod, PodSpec
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from podkeeper.runtimes.process.seccomp_profiles import seccomp_filter_of
from tests.runtimes.process.jail_harness import Machine, end, machines, run, start

machine = machines("root", "user")

ATTACKS = {
    "a user namespace, for bugs behind its capabilities (CVE-2022-0185)": ("unshare", (0x10000000,)),
    "keys of other containers (CVE-2016-0728)": ("keyctl", (0, -3, 0)),
    "BPF (CVE-2021-3490)": ("bpf", (0, 0, 0)),
    "userfaultfd, to win races in the kernel (CVE-2019-18683)": ("userfaultfd", (0,)),
    "io_uring (CVE-2023-2598)": ("io_uring_setup", (1, 0)),
    "performance events (CVE-2013-2094)": ("perf_event_open", (0, 0, -1, -1, 0)),
    "file handles, as in Shocker (2014)": ("open_by_handle_at", (-100, 0, 0)),
    "mounts": ("mount", (0, 0, 0, 0, 0)),
    "joining a namespace": ("setns", (0, 0)),
    "another kernel": ("kexec_load", (0, 0, 0, 0)),
    "a kernel module": ("init_module", (0, 0, 0)),
}  # fmt: skip


def filtered(**spec: Any) -> dict[str, Any]:
    pod = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec())
    made = seccomp_filter_of(pod, Container(name="c"), bounding_set((), (), False), "")
    return {"seccomp": made.program, "seccomp_flags": made.flags, **spec}


@pytest.mark.parametrize("safe", [True, False], ids=["no_new_privs", "without no_new_privs"])
@pytest.mark.parametrize("call, arguments", ATTACKS.values(), ids=ATTACKS.keys())
def test_the_default_filter_refuses_a_call(machine: Machine, call: str, arguments: tuple[int, ...], safe: bool) -> None:
    numbers = {
        "unshare": 272, "keyctl": 250, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "perf_event_open": 298,
        "open_by_handle_at": 304, "mount": 165, "setns": 308, "kexec_load": 246, "init_module": 175,
    }  # fmt: skip
    words = ", ".join(map(str, (numbers[call], *arguments)))
    program = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); c.syscall({words}); print(ctypes.get_errno())"
    argv = ("/usr/bin/env", "python3", "-c", program)
    assert machine.run("", argv=argv, **filtered(no_new_privileges=safe)) == (0, "1\n")


def test_exec_has_the_filter_of_its_container(machine: Machine) -> None:
    def action() -> str:
        jail = NamespaceJail(isolation=machine.isolation)
        first = start(jail, machine.spec("", argv=("sleep", "60"), **filtered()))
        output = run(jail, machine.spec("grep Seccomp: /proc/self/status", **filtered()), first)[1]
        end(first)
        return output

    assert machine.in_keeper(action).split() == ["Seccomp:", "2"]
