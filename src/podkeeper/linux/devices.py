"""Limit the devices that the processes of a cgroup may use.

Version 1 has the devices controller. Version 2 has none: a BPF program of the type CGROUP_DEVICE decides instead. On a
hybrid machine, both are possible.

Input: a cgroup and the allowed devices. Output: whether a filter is active. Counterpart: cgroup/devices in runc.
"""

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from podkeeper.linux.cgroup import UNIFIED, Cgroup
from podkeeper.linux.tree import opened

_READ_WRITE_CREATE: Final = "rwm"
_TYPES: Final = {"b": 1, "c": 2}
_ACCESS: Final = {"m": 1, "r": 2, "w": 4}

_BPF: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
# Instructions of eBPF: the lowest bits are the class, the others the operation.
_LOAD_WORD, _MOVE, _MOVE_REGISTER, _AND, _SHIFT_RIGHT = 0x61, 0xB7, 0xBF, 0x57, 0x77
_JUMP_IF_NOT_EQUAL, _EXIT = 0x55, 0x95


@dataclass(frozen=True, slots=True)
class Device:
    """An allowed device."""

    kind: str  # b: block, c: character
    major: int
    minor: int | None  # None: all
    access: str = _READ_WRITE_CREATE

    def __str__(self) -> str:
        """Return the text for the files of the devices controller."""
        return f"{self.kind} {self.major}:{'*' if self.minor is None else self.minor} {self.access}"


# As runc: null, zero, full, random, urandom, tty, ptmx and the terminals.
DEFAULT: Final = (
    *(Device("c", 1, minor) for minor in (3, 5, 7, 8, 9)),
    Device("c", 5, 0),
    Device("c", 5, 2),
    Device("c", 136, None),
)


def device_at(path: str, *, read_only: bool = False) -> Device:
    """Return the device of a node of the host. Raises OSError if the path is no device node."""
    about = os.stat(path)
    kind = "b" if stat.S_ISBLK(about.st_mode) else "c" if stat.S_ISCHR(about.st_mode) else ""
    if not kind:
        raise OSError(19, "is no device node", path)  # ENODEV
    return Device(kind, os.major(about.st_rdev), os.minor(about.st_rdev), "rm" if read_only else _READ_WRITE_CREATE)


def limit_devices(cgroup: Cgroup, allowed: Iterable[Device]) -> bool:
    """Allow only these devices in a cgroup that was just created. Return whether the kernel enforces it."""
    allowed = tuple(allowed)
    return any([_limit_v1(cgroup, allowed), _limit_v2(cgroup, allowed)])


def _limit_v1(cgroup: Cgroup, allowed: tuple[Device, ...]) -> bool:
    directory = cgroup.directory_of("devices") if cgroup.version == 1 else ""
    if not directory:
        return False
    with suppress(OSError):
        _write(f"{directory}/devices.deny", "a")
        for device in allowed:
            _write(f"{directory}/devices.allow", str(device))
        return True
    return False


def _limit_v2(cgroup: Cgroup, allowed: tuple[Device, ...]) -> bool:
    directory = dict(cgroup.directories).get(UNIFIED)
    if directory is None:
        return False
    with suppress(OSError):
        with (
            opened(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as target,
            opened(_load(program_of(allowed))) as program,
        ):
            # The cgroup keeps the program, so nothing has to stay open.
            _bpf(_PROG_ATTACH, struct.pack("=IIII", target, program, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
        return True
    return False


def program_of(allowed: Iterable[Device]) -> bytes:
    """Return the program that allows only these devices.

    Its input is `struct bpf_cgroup_dev_ctx`: the access in the upper and the type in the lower half of the first word,
    then the major and the minor number. It returns 1 to allow the access.
    """
    kind, access, major, minor, scratch = 2, 3, 4, 5, 6  # registers; 0 is the result, 1 the input
    code = [
        _instruction(_LOAD_WORD, kind, 1, 0),
        _instruction(_MOVE_REGISTER, access, kind),
        _instruction(_AND, kind, number=0xFFFF),
        _instruction(_SHIFT_RIGHT, access, number=16),
        _instruction(_LOAD_WORD, major, 1, 4),
        _instruction(_LOAD_WORD, minor, 1, 8),
    ]
    for device in allowed:
        refused = 7 & ~sum(_ACCESS[letter] for letter in device.access)
        numbers = [(kind, _TYPES[device.kind]), (major, device.major)]
        numbers += [] if device.minor is None else [(minor, device.minor)]
        tests = [(register, number) for register, number in numbers]
        if refused:
            tests.append((scratch, 0))
        # Each failed test jumps behind the two instructions that return 1.
        block = [_instruction(_MOVE, 0, number=1), _instruction(_EXIT)]
        for register, number in reversed(tests):
            block.insert(0, _instruction(_JUMP_IF_NOT_EQUAL, register, offset=len(block), number=number))
        if refused:
            code += [_instruction(_MOVE_REGISTER, scratch, access), _instruction(_AND, scratch, number=refused)]
        code += block
    return b"".join([*code, _instruction(_MOVE, 0, number=0), _instruction(_EXIT)])


def _instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    return struct.pack("=BBhI", code, target | source << 4, offset, number)


def _load(program: bytes) -> int:
    code, licence = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"Apache-2.0")
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    return _bpf(_PROG_LOAD, struct.pack("=IIQQ", _TYPE_CGROUP_DEVICE, len(program) // 8, *addresses))


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF.get(platform.machine())
    if number is None:
        raise OSError(38, "no BPF on this architecture")
    libc = ctypes.CDLL(None, use_errno=True)
    # Padded with zeros, because the kernel reads the attributes that it knows.
    buffer = ctypes.create_string_buffer(attributes, 128)
    result = libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(128))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "bpf")
    return int(result)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
