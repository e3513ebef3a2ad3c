"""Compiled seccomp profiles give the results that the profile says."""

import errno
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podkeeper.linux.capabilities import NAMES, bounding_set
from podkeeper.linux.seccomp import compile_profile, syscall_numbers
from podkeeper.linux.seccomp_default import RUNTIME_DEFAULT
from podkeeper.linux.seccomp_profile import Action, Condition, Operator, Profile, ProfileError, Rule, Selector
from tests.linux import seccomp_oracle as oracle
from tests.linux.bpf_machine import BpfMachine
from tests.linux.seccomp_oracle import ALLOW, AUDIT, KILL, NOT_PERMITTED, UNKNOWN

DEFAULT = bounding_set((), (), False)
EVERY_CAPABILITY = frozenset(range(64))
CAPABILITIES = {"default": DEFAULT, "none": frozenset[int](), "all": EVERY_CAPABILITY}
ABIS = [(machine, abi) for machine, abis in oracle.MACHINES.items() for abi in abis]
KERNEL = (6, 12)
HIGH = 1 << 32


def holding(*names: str) -> frozenset[int]:
    return DEFAULT | {NAMES.index(name) for name in names}


def run(
    call: str | int,
    *arguments: int,
    abi: str = "x86_64",
    capabilities: frozenset[int] = DEFAULT,
    kernel: tuple[int, int] = KERNEL,
    profile: Profile = RUNTIME_DEFAULT,
) -> int:
    """Return the result of a call, given by its name or number."""
    machine = "aarch64" if abi in ("aarch64", "arm") else "x86_64"
    number = syscall_numbers(abi)[call] if isinstance(call, str) else call
    return BpfMachine(compile_profile(profile, machine, capabilities, kernel)).run(AUDIT[abi], number, arguments)


def call(name: str | int, *arguments: int, **options: Any) -> Callable[[], int]:
    """Return a test case. Compile it only in the test, so that an error is a failure of that test."""
    return partial(run, name, *arguments, **options)


NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET, THREAD = 0x10000000, 0x20000000, 0x40000000, 0x3D0F00
X32 = 0x40000000

DEFAULT_PROFILE = {
    "ordinary calls are allowed":                   (call("read"), ALLOW),
    "the last ordinary call is allowed":            (call("removexattrat"), ALLOW),
    "keyctl":                                       (call("keyctl"), NOT_PERMITTED),
    "keyctl with all capabilities":                 (call("keyctl", capabilities=EVERY_CAPABILITY), NOT_PERMITTED),
    "add_key":                                      (call("add_key"), NOT_PERMITTED),
    "request_key":                                  (call("request_key"), NOT_PERMITTED),
    "userfaultfd":                                  (call("userfaultfd"), NOT_PERMITTED),
    "kexec_load with all capabilities":             (call("kexec_load", capabilities=EVERY_CAPABILITY), NOT_PERMITTED),
    "io_uring_setup":                               (call("io_uring_setup"), NOT_PERMITTED),
    "io_uring_enter":                               (call("io_uring_enter"), NOT_PERMITTED),
    "io_uring_register on arm64":                   (call("io_uring_register", abi="aarch64"), NOT_PERMITTED),
    "bpf":                                          (call("bpf"), NOT_PERMITTED),
    "bpf with CAP_BPF":                             (call("bpf", capabilities=holding("BPF")), ALLOW),
    "bpf with CAP_SYS_ADMIN":                       (call("bpf", capabilities=holding("SYS_ADMIN")), ALLOW),
    "mount":                                        (call("mount"), NOT_PERMITTED),
    "mount with CAP_SYS_ADMIN":                     (call("mount", capabilities=holding("SYS_ADMIN")), ALLOW),
    "mount with all other capabilities":
        (call("mount", capabilities=EVERY_CAPABILITY - {21}), NOT_PERMITTED),
    "setns":                                        (call("setns"), NOT_PERMITTED),
    "unshare":                                      (call("unshare"), NOT_PERMITTED),
    "umount of i386 with CAP_SYS_ADMIN":            (call(22, abi="i386", capabilities=holding("SYS_ADMIN")), ALLOW),
    "perf_event_open with CAP_PERFMON":             (call("perf_event_open", capabilities=holding("PERFMON")), ALLOW),
    "syslog with CAP_SYSLOG":                       (call("syslog", capabilities=holding("SYSLOG")), ALLOW),
    "init_module with CAP_SYS_MODULE":              (call("init_module", capabilities=holding("SYS_MODULE")), ALLOW),
    "init_module":                                  (call("init_module"), NOT_PERMITTED),
    "settimeofday with CAP_SYS_TIME":               (call("settimeofday", capabilities=holding("SYS_TIME")), ALLOW),
    "settimeofday":                                 (call("settimeofday"), NOT_PERMITTED),
    "mbind with CAP_SYS_NICE":                      (call("mbind", capabilities=holding("SYS_NICE")), ALLOW),
    "mbind":                                        (call("mbind"), NOT_PERMITTED),
    "reboot with CAP_SYS_BOOT":                     (call("reboot", capabilities=holding("SYS_BOOT")), ALLOW),
    "acct with CAP_SYS_PACCT":                      (call("acct", capabilities=holding("SYS_PACCT")), ALLOW),
    "iopl with CAP_SYS_RAWIO":                      (call("iopl", capabilities=holding("SYS_RAWIO")), ALLOW),
    "vhangup with CAP_SYS_TTY_CONFIG":              (call("vhangup", capabilities=holding("SYS_TTY_CONFIG")), ALLOW),
    "kcmp with CAP_SYS_PTRACE":                     (call("kcmp", capabilities=holding("SYS_PTRACE")), ALLOW),
    "kcmp":                                         (call("kcmp"), NOT_PERMITTED),
    "chroot, which the default capabilities allow": (call("chroot"), ALLOW),
    "chroot without CAP_SYS_CHROOT":                (call("chroot", capabilities=DEFAULT - {18}), NOT_PERMITTED),
    "open_by_handle_at":                            (call("open_by_handle_at"), NOT_PERMITTED),
    "open_by_handle_at with its capability":
        (call("open_by_handle_at", capabilities=holding("DAC_READ_SEARCH")), ALLOW),
    "ptrace on Linux 4.8":                          (call("ptrace", kernel=(4, 8)), ALLOW),
    "ptrace on Linux 4.7":                          (call("ptrace", kernel=(4, 7)), NOT_PERMITTED),
    "ptrace on Linux 4.7 with CAP_SYS_PTRACE":
        (call("ptrace", kernel=(4, 7), capabilities=holding("SYS_PTRACE")), ALLOW),
    "fork by clone":                                (call("clone", 17), ALLOW),
    "a thread":                                     (call("clone", THREAD), ALLOW),
    "a thread of a process on arm":                 (call("clone", THREAD, abi="arm"), ALLOW),
    "clone with CLONE_NEWUSER":                     (call("clone", NEWUSER | 17), NOT_PERMITTED),
    "clone with CLONE_NEWUSER and an upper half":   (call("clone", HIGH | NEWUSER | 17), NOT_PERMITTED),
    "clone with CLONE_NEWUSER of i386":             (call("clone", NEWUSER | 17, abi="i386"), NOT_PERMITTED),
    "clone with CLONE_NEWUSER of arm64":            (call("clone", NEWUSER | 17, abi="aarch64"), NOT_PERMITTED),
    "clone with CLONE_NEWUSER and CAP_SYS_ADMIN":
        (call("clone", NEWUSER | 17, capabilities=holding("SYS_ADMIN")), ALLOW),
    "clone3":                                       (call("clone3"), UNKNOWN),
    "clone3 of i386":                               (call("clone3", abi="i386"), UNKNOWN),
    "clone3 of x32":                                (call("clone3", abi="x32"), UNKNOWN),
    "clone3 with CAP_SYS_ADMIN":                    (call("clone3", capabilities=holding("SYS_ADMIN")), ALLOW),
    "personality PER_LINUX":                        (call("personality", 0), ALLOW),
    "personality PER_LINUX32":                      (call("personality", 8), ALLOW),
    "personality UNAME26":                          (call("personality", 0x20000), ALLOW),
    "personality PER_LINUX32 and UNAME26":          (call("personality", 0x20008), ALLOW),
    "the query of the personality":                 (call("personality", 0xFFFFFFFF), ALLOW),
    "the query of the personality, sign-extended":  (call("personality", (1 << 64) - 1), ALLOW),
    "personality ADDR_NO_RANDOMIZE":                (call("personality", 0x40000), NOT_PERMITTED),
    "personality with one more bit":                (call("personality", 9), NOT_PERMITTED),
    "socket AF_UNIX":                               (call("socket", 1), ALLOW),
    "socket AF_INET6":                              (call("socket", 10), ALLOW),
    "socket AF_RXRPC, before AF_ALG":               (call("socket", 37), ALLOW),
    "socket AF_ALG":                                (call("socket", 38), NOT_PERMITTED),
    "socket AF_NFC, between the two":               (call("socket", 39), ALLOW),
    "socket AF_VSOCK":                              (call("socket", 40), NOT_PERMITTED),
    "socket AF_VSOCK with an upper half":           (call("socket", HIGH | 40), NOT_PERMITTED),
    "socket AF_ALG with an upper half":             (call("socket", 7 * HIGH | 38), NOT_PERMITTED),
    "socket AF_VSOCK of i386":                      (call("socket", 40, abi="i386"), NOT_PERMITTED),
    "socket AF_VSOCK of x32":                       (call("socket", 40, abi="x32"), NOT_PERMITTED),
    "socket AF_VSOCK of arm":                       (call("socket", 40, abi="arm"), NOT_PERMITTED),
    "socket AF_KCM, after AF_VSOCK":                (call("socket", 41), ALLOW),
    "socketcall of i386":                           (call("socketcall", 1, abi="i386"), ALLOW),
    "ipc of i386":                                  (call("ipc", 1, abi="i386"), ALLOW),
    "mount of i386":                                (call("mount", abi="i386"), NOT_PERMITTED),
    "read of i386 is stat of x86_64":               (call("read", abi="i386"), ALLOW),
    "modify_ldt":                                   (call("modify_ldt"), ALLOW),
    "arch_prctl":                                   (call("arch_prctl"), ALLOW),
    "set_tls of arm":                               (call(0xF0005, abi="arm"), ALLOW),
    "usr26 of arm":                                 (call(0xF0003, abi="arm"), NOT_PERMITTED),
    "a private call of arm that does not exist":    (call(0xF0007, abi="arm"), UNKNOWN),
    "an old call of x32":                           (call(X32 | 512, abi="x32"), ALLOW),
    "ptrace of x32 has another number":             (call(X32 | 101, abi="x32"), NOT_PERMITTED),
    "ptrace of x32":                                (call(X32 | 521, abi="x32"), ALLOW),
    "mount of x32":                                 (call(X32 | 165, abi="x32"), NOT_PERMITTED),
    "read of x32":                                  (call(X32, abi="x32"), ALLOW),
    "a call of x32 without its bit":                (call(521), UNKNOWN),
    "a call newer than the profile":                (call("listns"), UNKNOWN),
    "the first call newer than the profile":        (call(467), UNKNOWN),
    "an unknown call":                              (call(9999), UNKNOWN),
    "an unknown call of i386":                      (call(9999, abi="i386"), UNKNOWN),
    "an unknown call of x32":                       (call(X32 | 9999, abi="x32"), UNKNOWN),
    "an unknown call of arm64":                     (call(9999, abi="aarch64"), UNKNOWN),
    "an unknown call of arm":                       (call(9999, abi="arm"), UNKNOWN),
    "a gap between known calls":                    (call(400), NOT_PERMITTED),
    "a call that a tracer skips":                   (call(0xFFFFFFFF), UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("result, expected", DEFAULT_PROFILE.values(), ids=DEFAULT_PROFILE.keys())
def test_the_default_profile(result: Callable[[], int], expected: int) -> None:
    assert hex(result()) == hex(expected)


@pytest.mark.parametrize("flag", [NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET])
def test_every_flag_of_a_new_namespace_is_refused(flag: int) -> None:
    assert run("clone", flag) == NOT_PERMITTED


@pytest.mark.parametrize("capabilities", CAPABILITIES.values(), ids=CAPABILITIES.keys())
@pytest.mark.parametrize("machine, abi", ABIS)
def test_every_call_of_the_default_profile(machine: str, abi: str, capabilities: frozenset[int]) -> None:
    compiled = BpfMachine(compile_profile(RUNTIME_DEFAULT, machine, capabilities, KERNEL))
    values = [0, 8, 38, 39, 40, 41, 0x20000, NEWUSER, 0xFFFFFFFF, HIGH | 40, (1 << 64) - 1]
    numbers = set(syscall_numbers(abi).values())
    # Also the numbers around them, because ranges begin and end there.
    for number in sorted({each + step for each in numbers for step in (-1, 0, 1)} - {-1}):
        for value in values if names_with_conditions(abi, number) else (0, HIGH):
            arguments = (value, 1, 2, 3, 4, 5)
            want = oracle.expected(RUNTIME_DEFAULT, machine, capabilities, KERNEL, AUDIT[abi], number, arguments)
            assert compiled.run(AUDIT[abi], number, arguments) == want, (oracle.names_of(abi, number), number, value)
    assert compiled.most_steps <= 25


def names_with_conditions(abi: str, number: int) -> set[str]:
    return oracle.names_of(abi, number) & {
        name for rule in RUNTIME_DEFAULT.rules if rule.conditions for name in rule.names
    }


@pytest.mark.parametrize("machine, length", [("x86_64", 308), ("aarch64", 235)])
def test_the_default_profile_is_a_short_program(machine: str, length: int) -> None:
    assert len(compile_profile(RUNTIME_DEFAULT, machine, DEFAULT, KERNEL)) <= length * 8


def test_common_calls_take_few_instructions() -> None:
    for machine in oracle.MACHINES:
        compiled = BpfMachine(compile_profile(RUNTIME_DEFAULT, machine, DEFAULT, KERNEL))
        for name in ("read", "write", "futex", "epoll_pwait", "sendto", "openat"):
            assert compiled.run(AUDIT[machine], syscall_numbers(machine)[name]) == ALLOW
        assert compiled.most_steps <= 13


# Architectures.

DENY = Profile(Action.ERRNO, errno.EPERM, rules=(Rule(("read", "exit_group"), Action.ALLOW),))
PERMIT = Profile(Action.ALLOW, rules=(Rule(("keyctl",), Action.ERRNO, errno.EACCES),))
FOREIGN = {
    "an unlisted instruction set is killed":     (call("read", abi="i386", profile=DENY), KILL),
    "an unlisted set of an allowing profile":    (call("read", abi="i386", profile=PERMIT), KILL),
    "an unlisted arm is killed":                 (call("read", abi="arm", profile=DENY), KILL),
    "an unlisted x32 is killed":                 (call("read", abi="x32", profile=DENY), KILL),
    "an unlisted x32 of an allowing profile":    (call("read", abi="x32", profile=PERMIT), KILL),
    "the last number below x32 is not x32":      (call(X32 - 1, profile=PERMIT), ALLOW),
    "the last number of x32 but one":            (call(0xFFFFFFFE, profile=PERMIT), KILL),
    "a call that a tracer skips is not killed":  (call(0xFFFFFFFF, profile=PERMIT), ALLOW),
    "a skipped call of an unlisted instruction set": (call(0xFFFFFFFF, abi="i386", profile=PERMIT), KILL),
    "the machine itself is always filtered":     (call("read", profile=DENY), ALLOW),
    "a listed set":
        (call("read", abi="i386", profile=replace(DENY, architectures=frozenset(("i386",)))), ALLOW),
    "x32 is still killed if only i386 is listed":
        (call("read", abi="x32", profile=replace(DENY, architectures=frozenset(("i386",)))), KILL),
    "a listed arm":
        (call("read", abi="arm", profile=replace(DENY, architectures=frozenset(("arm",)))), ALLOW),
}  # fmt: skip


@pytest.mark.parametrize("result, expected", FOREIGN.values(), ids=FOREIGN.keys())
def test_calls_of_other_instruction_sets(result: Callable[[], int], expected: int) -> None:
    assert hex(result()) == hex(expected)


@pytest.mark.parametrize("machine", oracle.MACHINES)
def test_unknown_architectures_are_killed(machine: str) -> None:
    own = {AUDIT[abi] for abi in oracle.MACHINES[machine]}
    compiled = BpfMachine(compile_profile(RUNTIME_DEFAULT, machine, DEFAULT, KERNEL))
    for architecture in {0, 8, 0xFFFFFFFF, 243 | 0xC0000000, *AUDIT.values()} - own:
        assert compiled.run(architecture, 0) == KILL


def test_other_machines_are_refused() -> None:
    with pytest.raises(ProfileError, match=r'the machine "riscv64": supported machines: x86_64, aarch64$'):
        compile_profile(RUNTIME_DEFAULT, "riscv64", DEFAULT, KERNEL)


# New calls.

ONLY_READ = replace(DENY, rules=(Rule(("read",), Action.ALLOW),))
NO_EFFECT = Rule(("open",), Action.ERRNO)
ELSEWHERE_ALLOWED = Rule(("open",), Action.ALLOW, includes=Selector(architectures=frozenset(("arm64",))))


def by_default(action: Action) -> Profile:
    return replace(DENY, default_action=action)


NEW = {
    "newer than the newest rule":                  (call(232, profile=DENY), UNKNOWN),
    "the newest rule":                             (call(231, profile=DENY), ALLOW),
    "before the newest rule":                      (call(230, profile=DENY), NOT_PERMITTED),
    "a profile that kills":                        (call(232, profile=by_default(Action.KILL_PROCESS)), UNKNOWN),
    "a profile that allows":                       (call(9999, profile=PERMIT), ALLOW),
    "a profile that logs":                         (call(9999, profile=by_default(Action.LOG)), 0x7FFC0000),
    "a profile that traces":                       (call(9999, profile=by_default(Action.TRACE)), 0x7FF00001),
    "a profile without rules":                     (call(9999, profile=replace(DENY, rules=())), NOT_PERMITTED),
    "a profile that only has unknown calls":
        (call(9999, profile=replace(DENY, rules=(Rule(("no_such_call",), Action.ALLOW),))), NOT_PERMITTED),
    "call 0 counts":                               (call(1, profile=ONLY_READ), UNKNOWN),
    "a rule without an effect counts":
        (call(1, profile=replace(DENY, rules=(*ONLY_READ.rules, NO_EFFECT))), NOT_PERMITTED),
    "a rule for another machine does not count":
        (call(1, profile=replace(DENY, rules=(*ONLY_READ.rules, ELSEWHERE_ALLOWED))), UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("result, expected", NEW.values(), ids=NEW.keys())
def test_calls_newer_than_the_profile(result: Callable[[], int], expected: int) -> None:
    assert hex(result()) == hex(expected)


# Rules.

E1, E2, E3 = (Action.ERRNO + number for number in (1001, 1002, 1003))
ONE, TWO = (Condition(0, Operator.EQ, value) for value in (1, 2))
ELSEWHERE = Condition(1, Operator.EQ, 5)


def rule(number: int, *conditions: Condition, name: str = "dup3", action: Action = Action.ERRNO) -> Rule:
    return Rule((name,), action, number, conditions)


def given_rules(*rules: Rule, arguments: tuple[int, ...] = (1, 5)) -> Callable[[], int]:
    return call("dup3", *arguments, profile=Profile(Action.ALLOW, rules=rules))


def on_i386(name: str, argument: int, *rules: Rule) -> Callable[[], int]:
    """Return the case of a call of i386 that has other calls inside."""
    profile = Profile(Action.ALLOW, architectures=frozenset(("i386",)), rules=rules)
    return call(name, argument, abi="i386", profile=profile)


RULES = {
    "the first true rule wins":             (given_rules(rule(1001, ONE), rule(1002, ELSEWHERE)), E1),
    "a false rule is skipped":              (given_rules(rule(1001, TWO), rule(1002, ELSEWHERE)), E2),
    "no rule is true":                      (given_rules(rule(1001, TWO), rule(1002, TWO)), ALLOW),
    "all conditions must be true":          (given_rules(rule(1001, ONE, ELSEWHERE)), E1),
    "one of the conditions is false":       (given_rules(rule(1001, ONE, ELSEWHERE), arguments=(1, 6)), ALLOW),
    "the other condition is false":         (given_rules(rule(1001, ONE, ELSEWHERE), arguments=(2, 5)), ALLOW),
    "conditions on one argument are alternatives":
        (given_rules(rule(1001, TWO, ONE)), E1),
    "such alternatives include other arguments":
        (given_rules(rule(1001, TWO, TWO, ELSEWHERE)), E1),
    "an unconditional rule wins, before":   (given_rules(rule(1003), rule(1001, ONE)), E3),
    "an unconditional rule wins, after":    (given_rules(rule(1001, ONE), rule(1003)), E3),
    "the first unconditional rule wins":    (given_rules(rule(1003), rule(1002)), E3),
    "a rule without effect is skipped":     (given_rules(rule(0, action=Action.ALLOW), rule(1002)), E2),
    "the data of TRACE":                    (given_rules(rule(7, action=Action.TRACE)), Action.TRACE + 7),
    "an errno without use":                 (given_rules(rule(7, action=Action.LOG)), Action.LOG),
    "KILL_PROCESS":                         (given_rules(rule(7, action=Action.KILL_PROCESS)), Action.KILL_PROCESS),
    "KILL_THREAD":                          (given_rules(rule(7, action=Action.KILL_THREAD)), KILL),
    "TRAP":                                 (given_rules(rule(7, action=Action.TRAP)), Action.TRAP),
    "socket through socketcall":         (on_i386("socketcall", 1, rule(1001, name="socket")), E1),
    "bind through socketcall":           (on_i386("socketcall", 2, rule(1001, name="socket")), ALLOW),
    "sendmmsg through socketcall":       (on_i386("socketcall", 20, rule(1001, name="sendmmsg")), E1),
    "shmctl through ipc":                (on_i386("ipc", 24, rule(1001, name="shmctl")), E1),
    "msgget through ipc":                (on_i386("ipc", 13, rule(1001, name="msgget")), E1),
    "the kernel ignores the upper half of the number of a multiplexed call":
        (on_i386("socketcall", HIGH | 1, rule(1001, name="socket")), E1),
    "a refusal with a condition applies to all sockets of socketcall":
        (on_i386("socketcall", 1, rule(1001, TWO, name="socket")), E1),
    "a permission with a condition does not apply to socketcall":
        (on_i386("socketcall", 1, rule(1001, TWO, name="socket", action=Action.LOG)), ALLOW),
    "a permission without a condition applies to socketcall":
        (on_i386("socketcall", 1, rule(1001, name="socket", action=Action.LOG)), Action.LOG),
    "a rule for socketcall itself wins":
        (on_i386("socketcall", 1, rule(1001, name="socket"), rule(1002, name="socketcall")), E2),
}  # fmt: skip


@pytest.mark.parametrize("result, expected", RULES.values(), ids=RULES.keys())
def test_rules_of_one_call(result: Callable[[], int], expected: int) -> None:
    assert hex(result()) == hex(expected)


ANY = Selector()


def chosen(includes: Selector = ANY, excludes: Selector = ANY, abi: str = "x86_64") -> Callable[[], int]:
    profile = Profile(Action.ALLOW, rules=(Rule(("dup3",), Action.LOG, includes=includes, excludes=excludes),))
    return call("dup3", abi=abi, capabilities=frozenset((3, 4)), kernel=(5, 4), profile=profile)


def holders(*numbers: int) -> Selector:
    return Selector(capabilities=frozenset(numbers))


def machines(*names: str) -> Selector:
    return Selector(architectures=frozenset(names))


SELECTED = {
    "no selector":                          (chosen(), True),
    "a held capability":                    (chosen(holders(3)), True),
    "a capability that is not held":        (chosen(holders(5)), False),
    "only some capabilities are held":      (chosen(holders(3, 5)), False),
    "all capabilities are held":            (chosen(holders(3, 4)), True),
    "an excluded capability":               (chosen(excludes=holders(3)), False),
    "one of the excluded capabilities":     (chosen(excludes=holders(3, 5)), False),
    "excluded capabilities are not held":   (chosen(excludes=holders(5)), True),
    "this machine":                         (chosen(machines("arm64", "amd64")), True),
    "another machine":                      (chosen(machines("arm64")), False),
    "this machine is arm64":                (chosen(machines("arm64"), abi="aarch64"), True),
    "this machine is excluded":             (chosen(excludes=machines("amd64")), False),
    "another machine is excluded":          (chosen(excludes=machines("arm64")), True),
    "an older minor version is required":   (chosen(Selector(min_kernel=(5, 3))), True),
    "this version is required":             (chosen(Selector(min_kernel=(5, 4))), True),
    "a newer minor version is required":    (chosen(Selector(min_kernel=(5, 5))), False),
    "a newer major version is required":    (chosen(Selector(min_kernel=(6, 0))), False),
    "an older major version is required":   (chosen(Selector(min_kernel=(4, 19))), True),
    "this version is excluded":             (chosen(excludes=Selector(min_kernel=(5, 4))), False),
    "an older version is excluded":         (chosen(excludes=Selector(min_kernel=(5, 3))), False),
    "a newer version is excluded":          (chosen(excludes=Selector(min_kernel=(5, 5))), True),
    "every field must select":              (chosen(Selector(frozenset((3,)), frozenset(("arm64",)))), False),
}  # fmt: skip


@pytest.mark.parametrize("result, expected", SELECTED.values(), ids=SELECTED.keys())
def test_the_selection_of_rules(result: Callable[[], int], expected: bool) -> None:
    assert (result() == Action.LOG) is expected


EDGES = sorted(
    {each + step for each in (0, 5, 1 << 31, HIGH, HIGH + 5, 1 << 63, (1 << 64) - 2) for step in (-1, 0, 1)} - {-1}
)


@pytest.mark.parametrize("machine", oracle.MACHINES)
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("operator", Operator)
def test_every_comparison_of_values_around_the_edges(operator: Operator, bits: int, machine: str) -> None:
    architectures = frozenset(("i386", "x32", "arm"))
    for value in EDGES:
        condition = Condition(3, operator, value, value_two=value & 0xFFFFFFFF00000005, bits=bits)
        profile = Profile(Action.ERRNO, errno.EPERM, architectures, (rule(0, condition, action=Action.ALLOW),))
        compiled = BpfMachine(compile_profile(profile, machine, DEFAULT, KERNEL))
        for abi in oracle.MACHINES[machine]:
            for argument in EDGES:
                holds = oracle.holds(condition, abi, (0, 0, 0, argument))
                result = compiled.run(AUDIT[abi], syscall_numbers(abi)["dup3"], (7, 8, 9, argument, 11, 12))
                assert (result == ALLOW) is holds, (value, argument, abi)


@pytest.mark.parametrize("index", range(6))
def test_a_condition_reads_its_argument(index: int) -> None:
    for value in (3, 3 * HIGH):
        arguments = [value if place == index else 0 for place in range(6)]
        assert given_rules(rule(1001, Condition(index, Operator.EQ, value)), arguments=tuple(arguments))() == E1


# The table of numbers. The programs of other tests would only be wrong in the same way as the table.

NUMBERS = {
    "x86_64": {"read": 0, "execve": 59, "ptrace": 101, "keyctl": 250, "seccomp": 317, "clone3": 435, "mseal": 462},
    "i386": {"restart_syscall": 0, "socketcall": 102, "ipc": 117, "keyctl": 288, "socket": 359, "clone3": 435},
    "x32": {"read": X32, "mount": X32 + 165, "rt_sigaction": X32 + 512, "ptrace": X32 + 521, "pwritev2": X32 + 547},
    "aarch64": {"io_setup": 0, "newfstatat": 79, "ptrace": 117, "seccomp": 277, "kexec_file_load": 294, "clone3": 435},
    "arm": {"exit": 1, "socket": 281, "sync_file_range2": 341, "arm_sync_file_range": 341, "set_tls": 0xF0005},
}  # fmt: skip


@pytest.mark.parametrize("abi", NUMBERS)
def test_the_numbers_of_calls(abi: str) -> None:
    numbers = syscall_numbers(abi)
    assert {name: numbers[name] for name in NUMBERS[abi]} == NUMBERS[abi]
    repeated = {first for first, second in pairwise(sorted(numbers.values())) if first == second}
    assert repeated == ({341} if abi == "arm" else set())


def test_the_default_profile_names_only_calls_that_exist_once() -> None:
    names = [
        name
        for each in RUNTIME_DEFAULT.rules
        for name in each.names
        if not each.conditions and each.includes == Selector()
    ]
    known = set().union(*(syscall_numbers(abi) for _, abi in ABIS))
    assert sorted(names) == sorted(set(names))
    assert {name for each in RUNTIME_DEFAULT.rules for name in each.names} <= known


# Any profile.

CALLS = (
    "read",
    "dup3",
    "exit_group",
    "socket",
    "socketcall",
    "ipc",
    "shmget",
    "set_tls",
    "execveat",
    "ptrace",
    "umount",
    "mseal",
    "none",
)
values = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1))
conditions = st.builds(
    Condition, st.integers(0, 5), st.sampled_from(Operator), values, values, st.sampled_from((32, 64))
).map(lambda each: replace(each, value=each.value % (1 << each.bits), value_two=each.value_two % (1 << each.bits)))
selectors = st.builds(
    Selector,
    st.frozensets(st.sampled_from((1, 21)), max_size=2),
    st.frozensets(st.sampled_from(("amd64", "arm64", "s390x")), max_size=2),
    st.none() | st.sampled_from(((4, 8), (6, 12), (6, 13))),
)
rules = st.builds(
    Rule,
    st.lists(st.sampled_from(CALLS), min_size=1, max_size=4).map(tuple),
    st.sampled_from(Action),
    st.sampled_from((0, 1, errno.ENOSYS, 4095)),
    st.lists(conditions, max_size=3).map(tuple),
    st.just(Selector()) | selectors,
    st.just(Selector()) | selectors,
)
profiles = st.builds(
    Profile,
    st.sampled_from(Action),
    st.sampled_from((1, errno.ENOSYS)),
    st.frozensets(st.sampled_from(("i386", "x32", "arm"))),
    st.lists(rules, max_size=8).map(tuple),
)


@settings(max_examples=150)  # one program covers only few of the possible jumps
@given(profiles, st.sampled_from(tuple(oracle.MACHINES)), st.frozensets(st.sampled_from((1, 21))), st.data())
def test_a_compiled_profile_does_what_the_profile_says(
    profile: Profile, machine: str, capabilities: frozenset[int], data: st.DataObject
) -> None:
    compiled = BpfMachine(compile_profile(profile, machine, capabilities, KERNEL))
    used = {value for rule in profile.rules for each in rule.conditions for value in (each.value, each.value_two)}
    close = st.sampled_from(sorted({(each + step) % (1 << 64) for each in {0, *used} for step in (-1, 0, 1)}))
    for _ in range(10):
        abi = data.draw(st.sampled_from(tuple(AUDIT)))
        numbers = sorted(each for name, each in syscall_numbers(abi).items() if name in CALLS)
        step = data.draw(st.sampled_from((0, 0, 0, -1, 1)))
        number = data.draw(st.sampled_from((*numbers, 9999, 1 << 31, 0xFFFFFFFF))) + step
        number %= HIGH
        arguments = data.draw(st.tuples(*[st.one_of(close, values)] * 6))
        want = oracle.expected(profile, machine, capabilities, KERNEL, AUDIT[abi], number, arguments)
        assert compiled.run(AUDIT[abi], number, arguments) == want, (abi, number, arguments)


def test_long_profiles_need_far_jumps() -> None:
    """Many conditions make a program in which both targets of a jump can be out of reach."""
    names = sorted(syscall_numbers("x86_64"))
    found = tuple(
        Rule((name,), Action.ERRNO, 1 + place, (Condition(place % 6, Operator.GT, place * HIGH + place),))
        for place, name in enumerate(names)
    )
    profile = Profile(Action.ALLOW, rules=found)
    program = compile_profile(profile, "x86_64", DEFAULT, KERNEL)
    assert 2000 < len(program) / 8 <= 4096
    compiled = BpfMachine(program)
    for place, name in enumerate(names):
        for argument in (place * HIGH + place, place * HIGH + place + 1, (place + 1) * HIGH):
            arguments = [argument] * 6
            want = oracle.expected(
                profile, "x86_64", DEFAULT, KERNEL, AUDIT["x86_64"], syscall_numbers("x86_64")[name], arguments
            )
            assert compiled.run(AUDIT["x86_64"], syscall_numbers("x86_64")[name], arguments) == want


def test_a_program_that_the_kernel_would_refuse_is_an_error() -> None:
    found = tuple(rule(number, Condition(0, Operator.EQ, number << 32 | number)) for number in range(1, 1000))
    with pytest.raises(
        ProfileError, match=r"needs 5\d\d\d BPF instructions, but the kernel accepts at most 4096; remove"
    ):
        compile_profile(Profile(Action.ALLOW, rules=found), "x86_64", DEFAULT, KERNEL)


def test_a_program_is_an_array_of_instructions() -> None:
    """As in the example of seccomp(2): load the architecture, compare it, load the number."""
    program = compile_profile(Profile(Action.ALLOW), "aarch64", DEFAULT, KERNEL)
    first, second = struct.iter_unpack("<HBBI", program[:16])
    assert first == (0x20, 0, 0, 4)
    assert second[0] == 0x15
    assert second[3] == 0xC00000B7
