"""Read seccomp profiles in the JSON format of the OCI and of Docker.

The kubelet's Localhost profiles have this format. As the OCI requires, unknown fields are ignored, and so are names of
system calls that this kernel or machine does not have. Unlike containerd, this module supports the additions of Docker:
`archMap`, `includes`, `excludes` and `name`.
"""

import errno
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from podkeeper.linux.capabilities import NAMES
from podkeeper.linux.seccomp_profile import (
    ALLOW_SPECULATION,
    EVERY_BIT,
    LOG_ACTIONS,
    Action,
    Condition,
    Operator,
    Profile,
    ProfileError,
    Rule,
    Selector,
)

MAX_BYTES: Final = 1 << 20  # a program of the maximum size needs less
_MAX_ERRNO: Final = 4095  # as in the kernel

_ACTIONS: Final = {f"SCMP_ACT_{action.name}": action for action in Action} | {"SCMP_ACT_KILL": Action.KILL_THREAD}
_OPERATORS: Final = {f"SCMP_CMP_{operator.name}": operator for operator in Operator}
# Profiles list the architectures of many machines. Those without a name here are not those of further processes on
# x86_64 or aarch64. The machine's own architecture is always filtered.
_OTHERS: Final = (
    "X86_64 AARCH64 MIPS MIPS64 MIPS64N32 MIPSEL MIPSEL64 MIPSEL64N32 PPC PPC64 PPC64LE S390 S390X PARISC PARISC64 "
    "RISCV64 LOONGARCH64 M68K SH SHEB"
)
_ARCHITECTURES: Final = {f"SCMP_ARCH_{name}": "" for name in _OTHERS.split()} | {
    "SCMP_ARCH_X86": "i386",
    "SCMP_ARCH_X32": "x32",
    "SCMP_ARCH_ARM": "arm",
}
# In an `archMap`, the further instruction sets belong to one machine.
_SUB_ARCHITECTURES: Final = {"SCMP_ARCH_X86_64": {"i386", "x32"}, "SCMP_ARCH_AARCH64": {"arm"}}
_FLAGS: Final = {
    "SECCOMP_FILTER_FLAG_LOG": LOG_ACTIONS,
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW": ALLOW_SPECULATION,
    # A container's process has one thread before exec, and no process listens for notifications.
    "SECCOMP_FILTER_FLAG_TSYNC": 0,
    "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV": 0,
}

T = TypeVar("T")


def read_profile(content: bytes) -> Profile:
    """Return the profile of a JSON document. Raises ProfileError."""
    if len(content) > MAX_BYTES:
        raise ProfileError(f"seccomp profile: Too long: {len(content)} bytes: must have at most {MAX_BYTES} bytes")
    try:
        document = json.loads(content)
    # ValueError includes errors of JSON, of UTF-8 and of numbers with too many digits.
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"seccomp profile: Invalid value: not a JSON document: {error}") from error
    return _Object("", document).profile()


class _Object:
    """A JSON object and its path. The methods read fields. As in Go, null is the same as a missing field."""

    def __init__(self, path: str, value: object) -> None:
        self._path = path
        if not isinstance(value, dict):
            raise _invalid(path, value, "a JSON object")
        self._fields: dict[str, Any] = value

    def profile(self) -> Profile:
        architectures, flags = self._architectures(), 0
        for flag in self._each("flags", lambda path, value: _choice(path, value, _FLAGS)):
            flags |= flag
        return Profile(
            default_action=self._action("defaultAction"),
            default_errno=self._errno("defaultErrnoRet", "defaultErrno"),
            architectures=architectures,
            rules=tuple(self._each("syscalls", lambda path, value: _Object(path, value)._rule())),
            flags=flags,
        )

    def _rule(self) -> Rule:
        names = self._each("names", _text)
        if (name := self._get("name")) is not None and name != "":
            if names:
                raise ProfileError(f'{self._at("name")}: Forbidden: use either "name" or "names"')
            names = [_text(self._at("name"), name)]
        if not names:
            raise ProfileError(f"{self._at('names')}: Required value: the names of one or more system calls")
        return Rule(
            names=tuple(dict.fromkeys(names)),
            action=self._action("action"),
            errno=self._errno("errnoRet", "errno"),
            conditions=tuple(self._each("args", lambda path, value: _Object(path, value)._condition())),
            includes=self._selector("includes"),
            excludes=self._selector("excludes"),
        )

    def _condition(self) -> Condition:
        operator = _choice(self._at("op"), self._required("op"), _OPERATORS)
        return Condition(
            index=_integer(self._at("index"), self._required("index"), 5),
            operator=operator,
            value=_integer(self._at("value"), self._required("value"), EVERY_BIT),
            value_two=_integer(self._at("valueTwo"), self._get("valueTwo", 0), EVERY_BIT),
        )

    def _selector(self, name: str) -> Selector:
        if self._get(name) is None:
            return Selector()
        fields = _Object(self._at(name), self._fields[name])
        return Selector(
            capabilities=frozenset(fields._each("caps", _capability)),
            architectures=frozenset(fields._each("arches", _text)),
            min_kernel=_kernel(fields._at("minKernel"), fields._get("minKernel", "")),
        )

    def _architectures(self) -> frozenset[str]:
        listed = self._each("architectures", _architecture)
        mapped = self._each("archMap", lambda path, value: _Object(path, value)._mapped_architectures())
        if listed and mapped:
            raise ProfileError(f'{self._at("archMap")}: Forbidden: use either "architectures" or "archMap"')
        return frozenset(listed).union(*mapped) - {""}

    def _mapped_architectures(self) -> set[str]:
        machine = _text(self._at("architecture"), self._required("architecture"))
        _architecture(self._at("architecture"), machine)
        return set(self._each("subArchitectures", _architecture)) & _SUB_ARCHITECTURES.get(machine, set())

    def _action(self, name: str) -> Action:
        return _choice(self._at(name), self._required(name), _ACTIONS)

    def _errno(self, number: str, symbol: str) -> int:
        """Read an errno, which is a number in the format of Docker, and can be a name in that of Podman."""
        value = self._get(symbol, "")
        if self._get(number) is None and value != "":
            if not isinstance(value, str) or not hasattr(errno, value) or not value.startswith("E"):
                raise _invalid(self._at(symbol), value, 'the name of an error, such as "EPERM"')
            return int(getattr(errno, value))
        return _integer(self._at(number), self._get(number, errno.EPERM), _MAX_ERRNO)

    def _each(self, name: str, read: Callable[[str, object], T]) -> list[T]:
        values = self._get(name, [])
        if not isinstance(values, list):
            raise _invalid(self._at(name), values, "a list")
        return [read(f"{self._at(name)}[{place}]", value) for place, value in enumerate(values)]

    def _required(self, name: str) -> object:
        if (value := self._get(name)) is None:
            raise ProfileError(f"{self._at(name)}: Required value")
        return value

    def _get(self, name: str, default: object = None) -> Any:
        value = self._fields.get(name)
        return default if value is None else value

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _invalid(path: str, found: object, expected: str) -> ProfileError:
    return ProfileError(f"{path or 'seccomp profile'}: Invalid value: {_shown(found)}: must be {expected}")


def _shown(value: object) -> str:
    # A value can be as long as the document, and nested too deeply for `dumps`.
    if isinstance(value, dict | list):
        return "{...}" if isinstance(value, dict) else "[...]"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(path: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _invalid(path, value, "a string that is not empty")
    return value


def _integer(path: str, value: object, largest: int) -> int:
    # bool is a subclass of int.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise _invalid(path, value, f"an integer from 0 to {largest}")
    return value


def _choice(path: str, value: object, choices: dict[str, T]) -> T:
    if not isinstance(value, str) or value not in choices:
        supported = ", ".join(f'"{choice}"' for choice in choices)
        raise ProfileError(f"{path}: Unsupported value: {_shown(value)}: supported values: {supported}")
    return choices[value]


def _capability(path: str, value: object) -> int:
    name = value.removeprefix("CAP_") if isinstance(value, str) else ""
    if name not in NAMES:
        raise _invalid(path, value, 'the name of a capability, such as "CAP_SYS_ADMIN"')
    return NAMES.index(name)


def _architecture(path: str, value: object) -> str:
    return _choice(path, value, _ARCHITECTURES)


def _kernel(path: str, value: object) -> tuple[int, int] | None:
    if value == "":
        return None
    found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", value) if isinstance(value, str) else None
    if found is None:
        raise _invalid(path, value, 'a kernel version, such as "4.8"')
    return int(found[1]), int(found[2])
