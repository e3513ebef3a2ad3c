"""Check and execute seccomp programs (classic BPF) as the kernel does."""

import struct
from collections.abc import Sequence

Instruction = tuple[int, int, int, int]  # code, jt, jf, k

LOAD, AND, RETURN, JUMP, EQUAL, GREATER, GREATER_OR_EQUAL = 0x20, 0x54, 0x06, 0x05, 0x15, 0x25, 0x35
CONDITIONAL = (EQUAL, GREATER, GREATER_OR_EQUAL)


def instructions(program: bytes) -> list[Instruction]:
    return list(struct.iter_unpack("<HBBI", program))


def check(program: bytes) -> None:
    """Check what the kernel checks: known instructions, aligned loads, jumps into the program, a result at the end."""
    code = instructions(program)
    assert 0 < len(code) <= 4096
    assert code[-1][0] == RETURN
    for place, (kind, if_true, if_false, value) in enumerate(code):
        assert kind in (LOAD, AND, RETURN, JUMP, *CONDITIONAL)
        assert kind != LOAD or (value % 4 == 0 and value < 64)
        steps = (value,) if kind == JUMP else (if_true, if_false) if kind in CONDITIONAL else ()
        assert all(place + step + 1 < len(code) for step in steps)
        assert kind in CONDITIONAL or (if_true, if_false) == (0, 0)


class BpfMachine:
    def __init__(self, program: bytes) -> None:
        check(program)
        self._code = instructions(program)
        self.most_steps = 0

    def run(self, architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
        """Return the result for a call. Missing arguments are 0."""
        data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
        words = struct.unpack("<16I", data)
        code, place, register, steps = self._code, 0, 0, 0
        while True:
            kind, if_true, if_false, value = code[place]
            place, steps = place + 1, steps + 1
            if kind == LOAD:
                register = words[value // 4]
            elif kind == AND:
                register &= value
            elif kind == JUMP:
                place += value
            elif kind == RETURN:
                self.most_steps = max(self.most_steps, steps)
                return value
            else:
                holds = {EQUAL: register == value, GREATER: register > value, GREATER_OR_EQUAL: register >= value}[kind]
                place += if_true if holds else if_false
