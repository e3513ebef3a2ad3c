"""Seccomp profiles as data: which system calls a container may make.

The types follow the profile format of the OCI and of Docker. `seccomp_json` reads profiles, `seccomp_default` has the
default one, and `seccomp` compiles them.
"""

import enum
import errno
from dataclasses import dataclass
from typing import Final

EVERY_BIT: Final = (1 << 64) - 1
LOG_ACTIONS: Final = 1 << 1  # SECCOMP_FILTER_FLAG_LOG
ALLOW_SPECULATION: Final = 1 << 2  # SECCOMP_FILTER_FLAG_SPEC_ALLOW


class ProfileError(ValueError):
    """A profile is invalid or cannot be compiled. The message names the field and the next step."""


class Action(enum.IntEnum):
    """What the kernel does with a call. The values are those of the kernel (SECCOMP_RET_*)."""

    KILL_THREAD = 0x00000000
    KILL_PROCESS = 0x80000000
    TRAP = 0x00030000
    ERRNO = 0x00050000
    TRACE = 0x7FF00000
    LOG = 0x7FFC0000
    ALLOW = 0x7FFF0000

    @property
    def permits(self) -> bool:
        """Whether the call can take place."""
        return self in (Action.ALLOW, Action.LOG, Action.TRACE)


class Operator(enum.Enum):
    """How a condition compares an argument. The values are those of the OCI without SCMP_CMP_."""

    NE = "NE"
    LT = "LT"
    LE = "LE"
    EQ = "EQ"
    GE = "GE"
    GT = "GT"
    MASKED_EQ = "MASKED_EQ"  # argument & value == value_two


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one argument of the call, unsigned."""

    index: int
    operator: Operator
    value: int
    value_two: int = 0
    # Width of the argument in the kernel. The kernel ignores the upper half of a 32-bit argument, such as the address
    # family of socket(2), but a filter sees it. If a filter compared all 64 bits, a process could set the upper half to
    # get past the comparison. OCI profiles cannot say this, so their conditions have 64 bits.
    bits: int = 64


@dataclass(frozen=True, slots=True)
class Selector:
    """Containers and machines. An empty field means that the field does not restrict the selection."""

    capabilities: frozenset[int] = frozenset()
    architectures: frozenset[str] = frozenset()  # of the machine, in Go's spelling: amd64, arm64
    min_kernel: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to calls of some names if all conditions are true.

    The rule applies only if `includes` selects the container on every given field, and `excludes` on none.
    """

    names: tuple[str, ...]
    action: Action
    errno: int = errno.EPERM  # for ERRNO; for TRACE the value that the tracer gets
    conditions: tuple[Condition, ...] = ()
    includes: Selector = Selector()
    excludes: Selector = Selector()


@dataclass(frozen=True, slots=True)
class Profile:
    """Rules, and the action for all calls without a rule.

    `architectures` has the further instruction sets whose calls are filtered: i386 and x32 on x86_64, arm on aarch64.
    The first unconditional rule of a call wins over all conditional ones, as in libseccomp. Of conditional rules, the
    first true one wins.
    """

    default_action: Action
    default_errno: int = errno.EPERM
    architectures: frozenset[str] = frozenset()
    rules: tuple[Rule, ...] = ()
    flags: int = 0  # LOG_ACTIONS | ALLOW_SPECULATION, for `libc.install_seccomp`
