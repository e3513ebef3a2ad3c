"""What a seccomp profile says about one call, evaluated rule by rule."""

import errno
import functools
import operator
from collections.abc import Sequence

from podkeeper.linux.seccomp import syscall_numbers
from podkeeper.linux.seccomp_profile import Action, Condition, Operator, Profile, Rule

# The number of the ELF machine, a bit for 64-bit registers, and a bit for little-endian (linux/audit.h).
X86_64, I386, AARCH64, ARM = 62 | 0xC0000000, 3 | 0x40000000, 183 | 0xC0000000, 40 | 0x40000000
AUDIT = {"x86_64": X86_64, "x32": X86_64, "i386": I386, "aarch64": AARCH64, "arm": ARM}
MACHINES = {"x86_64": ("x86_64", "i386", "x32"), "aarch64": ("aarch64", "arm")}
SPECIAL = {"x32": 0x40000000 + 512, "arm": 0xF0000}
SOCKETCALL = (
    *("socket", "bind", "connect", "listen", "accept", "getsockname", "getpeername", "socketpair", "send", "recv"),
    *("sendto", "recvfrom", "shutdown", "setsockopt", "getsockopt", "sendmsg", "recvmsg", "accept4", "recvmmsg"),
    "sendmmsg",
)
IPC = {"semop": 1, "semget": 2, "semctl": 3, "semtimedop": 4, "msgsnd": 11, "msgrcv": 12, "msgget": 13, "msgctl": 14}
IPC |= {"shmat": 21, "shmdt": 22, "shmget": 23, "shmctl": 24}

KILL = 0
NOT_PERMITTED = 0x50000 + errno.EPERM
UNKNOWN = 0x50000 + errno.ENOSYS
ALLOW = 0x7FFF0000


def expected(
    profile: Profile,
    machine: str,
    capabilities: frozenset[int],
    kernel: tuple[int, int],
    architecture: int,
    number: int,
    arguments: Sequence[int] = (),
) -> int:
    """Return the SECCOMP_RET_* value of a call."""
    arguments = (*arguments, *[0] * (6 - len(arguments)))
    default = value_of(profile.default_action, profile.default_errno)
    abi = abi_of(machine, architecture, number)
    if abi is None or (abi != machine and abi not in profile.architectures):
        return default if abi == "x32" and number == 0xFFFFFFFF else KILL
    active = [rule for rule in profile.rules if applies(rule, machine, capabilities, kernel)]
    rules = [(rule, value_of(rule.action, rule.errno)) for rule in active]
    names = names_of(abi, number)
    for rule, result in rules:
        if result != default and names & set(rule.names) and not rule.conditions:
            return result
    for rule, result in rules:
        if result != default and names & set(rule.names) and matches(rule, abi, arguments):
            return result
        if result != default and multiplexed(rule, abi, names, arguments):
            return result
    return UNKNOWN if is_newer(abi, number, active) and not permits(profile.default_action) else default


@functools.cache
def names_of(abi: str, number: int) -> set[str]:
    return {name for name, each in syscall_numbers(abi).items() if each == number}


def is_newer(abi: str, number: int, rules: list[Rule]) -> bool:
    """Whether a call is newer than the newest one of the rules."""
    numbers, special = syscall_numbers(abi), SPECIAL.get(abi, 1 << 32)
    if special <= number <= max(numbers.values()):
        return False
    known = [numbers[name] for rule in rules for name in rule.names if numbers.get(name, special) < special]
    return bool(known) and number > max(known)


def permits(action: Action) -> bool:
    return action.name in ("ALLOW", "LOG", "TRACE")


def abi_of(machine: str, architecture: int, number: int) -> str | None:
    """Return the instruction set of a call."""
    if architecture == AUDIT[machine]:
        return "x32" if machine == "x86_64" and number >= 0x40000000 else machine
    return {("x86_64", I386): "i386", ("aarch64", ARM): "arm"}.get((machine, architecture))


def value_of(action: Action, data: int) -> int:
    return int(action) + (data if action.name in ("ERRNO", "TRACE") else 0)


def applies(rule: Rule, machine: str, capabilities: frozenset[int], kernel: tuple[int, int]) -> bool:
    name = {"x86_64": "amd64", "aarch64": "arm64"}[machine]
    wanted, refused = rule.includes, rule.excludes
    if wanted.architectures and name not in wanted.architectures:
        return False
    if any(each not in capabilities for each in wanted.capabilities):
        return False
    if wanted.min_kernel and kernel < wanted.min_kernel:
        return False
    if name in refused.architectures or any(each in capabilities for each in refused.capabilities):
        return False
    return not (refused.min_kernel and kernel >= refused.min_kernel)


def multiplexed(rule: Rule, abi: str, names: set[str], arguments: Sequence[int]) -> bool:
    """Whether the rule concerns a call that is made through socketcall(2) or ipc(2)."""
    if abi != "i386" or (rule.conditions and permits(rule.action)):
        return False
    which = arguments[0] & 0xFFFFFFFF
    if "socketcall" in names:
        return any(name in SOCKETCALL and SOCKETCALL.index(name) + 1 == which for name in rule.names)
    return "ipc" in names and any(IPC.get(name) == which for name in rule.names)


def matches(rule: Rule, abi: str, arguments: Sequence[int]) -> bool:
    found = [holds(condition, abi, arguments) for condition in rule.conditions]
    indices = [condition.index for condition in rule.conditions]
    return any(found) if len(set(indices)) < len(indices) else all(found)


def holds(condition: Condition, abi: str, arguments: Sequence[int]) -> bool:
    width = 64 if abi in ("x86_64", "aarch64") and condition.bits == 64 else 32
    argument, value, value_two = (
        each % (1 << width) for each in (arguments[condition.index], condition.value, condition.value_two)
    )
    if condition.operator is Operator.MASKED_EQ:
        return argument & value == value_two & value
    return bool(getattr(operator, condition.operator.name.lower())(argument, value))
