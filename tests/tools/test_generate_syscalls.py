"""The tool that writes `linux/syscall_numbers.py`, on small headers of its own."""

from pathlib import Path
from typing import Any

import pytest

from podkeeper.linux.seccomp import syscall_numbers
from podkeeper.linux.syscall_numbers import LINUX, NUMBERS
from tools.generate_syscalls import (
    HEADERS,
    OUTPUT,
    UAPI,
    VERSION,
    UnknownHeader,
    calls_of,
    compact,
    generate,
    main,
    read_tables,
    read_version,
)

DEFINITIONS = {
    "a number": ("#define __NR_read 0\n#define __NR__llseek\t140 \n", {"read": 0, "_llseek": 140}),
    "a hexadecimal number": ("#define __NR_read 0x10\n", {"read": 16}),
    "a number of x32": ("#define __NR_ioctl (__X32_SYSCALL_BIT + 514)\n", {"ioctl": 0x40000000 + 514}),
    "a number of arm": ("#define __NR_fork (__NR_SYSCALL_BASE + 2)\n", {"fork": 2}),
    "a private number of arm": ("#define __ARM_NR_set_tls (__ARM_NR_BASE+5)\n", {"set_tls": 0xF0005}),
    "another name": ("#define __NR_a 7\n#define __NR_b\t\t__NR_a\n", {"a": 7, "b": 7}),
    "constants are no calls": ("#define __NR_SYSCALL_BASE 0\n#define _ASM_UNISTD_64_H\n#define __NR_c 3\n", {"c": 3}),
}


@pytest.mark.parametrize("text, expected", DEFINITIONS.values(), ids=DEFINITIONS.keys())
def test_the_calls_of_a_header(text: str, expected: dict[str, int]) -> None:
    assert calls_of(text) == expected


UNKNOWN = {
    "another base": ("#define __NR_a (__NR_Linux + 1)\n", "cannot read the number of a: unknown base __NR_Linux"),
    "an unknown name": ("#define __NR_a __NR_b\n", "cannot read the number of a: unknown name __NR_b"),
    "another expression": ("#define __NR_a (1 << 3)\n", r"cannot read the number of a: \(1 << 3\)"),
}


@pytest.mark.parametrize("text, message", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_header_of_another_form_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnknownHeader, match=f"^{message}$"):
        calls_of(text)


def test_numbers_are_written_only_where_a_gap_begins() -> None:
    assert compact({"b": 1, "a": 0, "d": 5, "e": 6, "f": 6, "g": 7}) == "0 a b 5 d e 6 f g"


def test_the_generated_module_has_short_lines_and_the_same_numbers() -> None:
    calls = {f"call_{number}": number for number in range(300)}
    text = generate("6.12", {"x86_64": calls, "arm": {"only": 9}})
    assert max(map(len, text.splitlines())) <= 120
    module: dict[str, Any] = {}
    exec(text, module)
    assert module["LINUX"] == "6.12"
    assert module["NUMBERS"]["x86_64"].split() == ["0", *calls]
    assert module["NUMBERS"]["arm"].split() == ["9", "only"]


def test_the_headers_of_a_package(tmp_path: Path) -> None:
    for names in HEADERS.values():
        for name in names:
            path = tmp_path / UAPI / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#define __NR_{path.stem.replace('-', '_')} 1\n")
    (tmp_path / VERSION).parent.mkdir(parents=True)
    (tmp_path / VERSION).write_text("#define LINUX_VERSION_MAJOR 6\n#define LINUX_VERSION_PATCHLEVEL 12\n")
    assert read_version(tmp_path) == "6.12"
    assert read_tables(tmp_path) == {
        "x86_64": {"unistd_64": 1},
        "i386": {"unistd_32": 1},
        "x32": {"unistd_x32": 1},
        "aarch64": {"unistd_64": 1},
        "arm": {"unistd_eabi": 1, "unistd": 1},
    }


def test_another_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"usr/lib/linux/uapi/x86/asm/unistd_64.h: No such file.*; extract the Debian"):
        main([str(tmp_path)])


def test_the_module_in_the_repository_is_generated() -> None:
    assert OUTPUT.read_text() == generate(LINUX, {abi: syscall_numbers(abi) for abi in NUMBERS})
