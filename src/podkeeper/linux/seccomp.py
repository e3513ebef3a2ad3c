"""Compile seccomp profiles to BPF programs.

    bytes of a profile -- seccomp_json --> Profile -- compile_profile --> program -- libc.install_seccomp

`compile_profile` selects the rules of a container, finds the result of every system call number, and writes a binary
search over ranges of numbers with the same result. Instruction sets have different numbers: a process on x86_64 can
also make calls as i386 and x32, and on aarch64 as arm.

The program does what libseccomp and runc do, with these differences:

* Of several conditional rules of one call, the first true one wins. libseccomp sorts them, and can drop some.
* Calls that are newer than the profile get ENOSYS, as in runc. On arm, runc gives EPERM for them, because the private
  calls of arm have higher numbers.
* A conditional rule of a socket or IPC call also concerns socketcall(2) and ipc(2) on i386. They have the arguments in
  memory, where a filter cannot read them. libseccomp drops the conditions. Here a rule that permits a call is not
  applied to them.
* If a profile does not list x32, calls from 0x80000000 on count as x32 calls.
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Final

from podkeeper.linux.seccomp_profile import Action, Condition, Operator, Profile, ProfileError, Rule
from podkeeper.linux.seccomp_program import ARCHITECTURE, EQUAL, GREATER_OR_EQUAL, NUMBER, Label, Program
from podkeeper.linux.syscall_numbers import NUMBERS

_NO_NUMBER: Final = 0xFFFFFFFF  # -1: a tracer sets it to skip a call
_X32_BIT: Final = 0x40000000


@dataclass(frozen=True, slots=True)
class _Abi:
    """An instruction set. Its numbers go from `first` to that of the next one with the same AUDIT_ARCH_* value."""

    name: str
    has_32_bits: bool = False
    first: int = 0
    special: int = _NO_NUMBER  # the numbers from here on do not grow with the kernel


@dataclass(frozen=True, slots=True)
class _Machine:
    architecture: str  # in the spelling of Go, as in includes and excludes
    abis: tuple[tuple[int, tuple[_Abi, ...]], ...]  # by AUDIT_ARCH_*, the machine's own first


_MACHINES: Final = {
    "x86_64": _Machine(
        "amd64",
        (
            (0xC000003E, (_Abi("x86_64"), _Abi("x32", True, _X32_BIT, special=_X32_BIT + 512))),
            (0x40000003, (_Abi("i386", True),)),
        ),
    ),
    "aarch64": _Machine(
        "arm64", ((0xC00000B7, (_Abi("aarch64"),)), (0x40000028, (_Abi("arm", True, special=0xF0000),)))
    ),
}
# The first argument of socketcall(2) and ipc(2) for each call (linux/net.h, linux/ipc.h).
_MULTIPLEXED: Final = {
    "socketcall": (
        *("", "socket", "bind", "connect", "listen", "accept", "getsockname", "getpeername", "socketpair", "send"),
        *("recv", "sendto", "recvfrom", "shutdown", "setsockopt", "getsockopt", "sendmsg", "recvmsg", "accept4"),
        *("recvmmsg", "sendmmsg"),
    ),
    "ipc": (
        *("", "semop", "semget", "semctl", "semtimedop", "", "", "", "", "", "", "msgsnd", "msgrcv", "msgget"),
        *("msgctl", "", "", "", "", "", "", "shmat", "shmdt", "shmget", "shmctl"),
    ),
}
_MULTIPLEXER: Final = {
    name: (call, number) for call, names in _MULTIPLEXED.items() for number, name in enumerate(names) if name
}


@dataclass(frozen=True, slots=True)
class _Decision:
    """The result of a call: that of the first case of which all conditions are true, otherwise `otherwise`."""

    otherwise: int
    cases: tuple[tuple[tuple[Condition, ...], int], ...] = ()


def compile_profile(profile: Profile, machine: str, capabilities: frozenset[int], kernel: tuple[int, int]) -> bytes:
    """Return the program (an array of struct sock_filter) for a container with this bounding set.

    `machine` and `kernel` are those of uname(2). Raises ProfileError.
    """
    if machine not in _MACHINES:
        raise ProfileError(
            f'cannot compile a seccomp profile for the machine "{machine}": supported machines: {", ".join(_MACHINES)}'
        )
    architecture = _MACHINES[machine].architecture
    rules = [rule for rule in profile.rules if _is_active(rule, architecture, capabilities, kernel)]
    # As in libseccomp, the machine's own instruction set is always filtered.
    filtered = profile.architectures | {machine}
    program, written = Program(), dict[_Decision, Label]()
    # As in libseccomp, calls of other instruction sets kill only the thread.
    entry = program.result(Action.KILL_THREAD)
    for audit, abis in reversed(_MACHINES[machine].abis):
        if abis[0].name not in filtered:
            continue
        ranges: list[tuple[int, _Decision]] = []
        for abi in abis:
            ranges += _ranges(abi, profile, rules) if abi.name in filtered else _killed(abi, profile)
        entry = program.branch(EQUAL, audit, program.load(NUMBER, _search(program, _merged(ranges), written)), entry)
    program.load(ARCHITECTURE, entry)
    return program.to_bytes()


@cache
def syscall_numbers(abi: str) -> dict[str, int]:
    """Return the numbers of all calls of x86_64, i386, x32, aarch64 or arm, as processes use them."""
    found, number = {}, 0
    # A number sets the number of the next name. Every further name has the next number.
    for word in NUMBERS[abi].split():
        if word.isdigit():
            number = int(word)
        else:
            found[word] = number
            number += 1
    return found


def _is_active(rule: Rule, architecture: str, capabilities: frozenset[int], kernel: tuple[int, int]) -> bool:
    wanted, refused = rule.includes, rule.excludes
    return not (
        (wanted.architectures and architecture not in wanted.architectures)
        or not wanted.capabilities <= capabilities
        or (wanted.min_kernel is not None and kernel < wanted.min_kernel)
        or architecture in refused.architectures
        or refused.capabilities & capabilities
        or (refused.min_kernel is not None and kernel >= refused.min_kernel)
    )


def _result(action: Action, data: int) -> int:
    return action | data if action in (Action.ERRNO, Action.TRACE) else action


def _killed(abi: _Abi, profile: Profile) -> list[tuple[int, _Decision]]:
    """Return the ranges of x32 if the profile does not list it."""
    # As in libseccomp: the thread must survive a call that a tracer skips. Its number is that of no instruction set.
    default = _result(profile.default_action, profile.default_errno)
    return [(abi.first, _Decision(Action.KILL_THREAD)), (_NO_NUMBER, _Decision(default))]


def _ranges(abi: _Abi, profile: Profile, rules: list[Rule]) -> list[tuple[int, _Decision]]:
    """Return the first number and the decision of each range, in the order of the numbers."""
    numbers = syscall_numbers(abi.name)
    known = [numbers[name] for rule in rules for name in rule.names if name in numbers]
    defaults = _defaults(abi, profile, known)
    decisions = _decisions(abi, profile, rules)
    points = dict(defaults)
    for number in decisions:
        points[number + 1] = next(decision for first, decision in reversed(defaults) if first <= number + 1)
    return sorted((points | decisions).items(), key=itemgetter(0))  # a decision has no order


def _defaults(abi: _Abi, profile: Profile, known: list[int]) -> list[tuple[int, _Decision]]:
    """Return the ranges of calls without a rule. Calls that are newer than the profile get ENOSYS.

    The C library then uses an older call, as on an older kernel. It would report EPERM to the program.
    """
    default = _Decision(_result(profile.default_action, profile.default_errno))
    newest = max((number for number in known if number < abi.special), default=None)
    if newest is None or profile.default_action.permits:
        return [(abi.first, default)]
    unknown = _Decision(_result(Action.ERRNO, errno.ENOSYS))
    special = [number for number in syscall_numbers(abi.name).values() if number >= abi.special]
    found = [(abi.first, default), (newest + 1, unknown)]
    return [*found, (abi.special, default), (max(special) + 1, unknown)] if special else found


def _decisions(abi: _Abi, profile: Profile, rules: list[Rule]) -> dict[int, _Decision]:
    """Return the decisions of all numbers with a rule."""
    numbers = syscall_numbers(abi.name)
    default = _result(profile.default_action, profile.default_errno)
    always: dict[int, int] = {}
    cases: dict[int, list[tuple[tuple[Condition, ...], int]]] = {}
    for rule in rules:
        result = _result(rule.action, rule.errno)
        if result == default:  # as in runc, such a rule has no effect, even beside rules with other results
            continue
        conditions = _conditions(rule, abi)
        for name in rule.names:
            number = numbers.get(name)  # None: a call of another instruction set, or of a newer kernel than our table
            if number is not None and not rule.conditions:
                always.setdefault(number, result)
            elif number is not None:
                cases.setdefault(number, []).extend((each, result) for each in conditions)
            call, argument = _MULTIPLEXER.get(name, ("", 0))
            if call in numbers and not (rule.conditions and rule.action.permits):
                # The kernel also ignores the upper half of this argument.
                only = Condition(0, Operator.EQ, argument, bits=32)
                cases.setdefault(numbers[call], []).append(((only,), result))
    conditional = {number: _Decision(default, tuple(found)) for number, found in cases.items()}
    return conditional | {number: _Decision(result) for number, result in always.items()}


def _conditions(rule: Rule, abi: _Abi) -> list[tuple[Condition, ...]]:
    """Return alternatives, of each of which all conditions must be true."""
    conditions = rule.conditions
    if abi.has_32_bits:
        # As in libseccomp. Profiles write -1 as a 64-bit value, of which the lower half is compared then.
        conditions = tuple(replace(each, bits=32) for each in conditions)
    # As in runc: several conditions for the same argument are alternatives.
    if len({each.index for each in conditions}) < len(conditions):
        return [(each,) for each in conditions]
    return [conditions]


def _merged(ranges: Iterable[tuple[int, _Decision]]) -> list[tuple[int, _Decision]]:
    """Join neighbouring ranges with the same decision."""
    return [next(group) for _, group in groupby(ranges, key=itemgetter(1))]


def _search(program: Program, ranges: list[tuple[int, _Decision]], written: dict[_Decision, Label]) -> Label:
    """Write a balanced search for the range of the number in register A."""
    if len(ranges) > 1:
        middle = len(ranges) // 2
        above = _search(program, ranges[middle:], written)
        below = _search(program, ranges[:middle], written)
        return program.branch(GREATER_OR_EQUAL, ranges[middle][0], above, below)
    decision = ranges[0][1]
    if not decision.cases:
        return program.result(decision.otherwise)
    if decision not in written:
        entry = program.result(decision.otherwise)
        for conditions, result in reversed(decision.cases):
            following, entry = entry, program.result(result)
            for condition in reversed(conditions):
                entry = program.test(condition, entry, following)
        written[decision] = entry
    return written[decision]
