"""Assemble a classic BPF program for seccomp.

The program is written from its last instruction to its first. BPF only jumps forwards, so every jump target already
exists when the jump is written, and no offset has to be corrected later.

A `Label` is the number of instructions behind and including its target. Register A is lost in a test of an argument,
so such a test leads only to results and to other tests of arguments.
"""

import struct
from typing import Final, NewType

from podkeeper.linux.seccomp_profile import Condition, Operator, ProfileError

MAX_INSTRUCTIONS: Final = 4096  # BPF_MAXINSNS

# struct seccomp_data of a little-endian machine.
NUMBER, ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_RET|BPF_K
_JUMP: Final = 0x05  # BPF_JMP|BPF_JA
EQUAL, GREATER, GREATER_OR_EQUAL = 0x15, 0x25, 0x35  # BPF_JMP|BPF_JEQ|BPF_K, BPF_JGT, BPF_JGE
_FARTHEST: Final = 255  # the offsets of a conditional jump have 8 bits
_LOW: Final = 0xFFFFFFFF

Label = NewType("Label", int)


class Program:
    """A program under construction. Every method that returns a label writes instructions in front of the others."""

    def __init__(self) -> None:
        self._reversed: list[tuple[int, int, int, int]] = []  # code, jt, jf, k
        self._results: dict[int, Label] = {}

    def result(self, value: int) -> Label:
        """End the program with a SECCOMP_RET_* value."""
        if value not in self._results:
            self._results[value] = self._write(_RETURN, value)
        return self._results[value]

    def load(self, offset: int, then: Label) -> Label:
        """Load a 32-bit word of struct seccomp_data."""
        self._fall_through_to(then)
        return self._write(_LOAD, offset)

    def branch(self, comparison: int, value: int, if_true: Label, if_false: Label) -> Label:
        """Compare register A with a value."""
        # The second call may write one instruction, which moves the target of the first one further away.
        near_true = self._near(if_true, reserve=1)
        near_false = self._near(if_false, reserve=0)
        position = len(self._reversed)
        return self._write(comparison, value, position - near_true, position - near_false)

    def test(self, condition: Condition, if_true: Label, if_false: Label) -> Label:
        """Compare an argument of the call."""
        value = condition.value
        match condition.operator:
            case Operator.EQ:
                return self._test_bits(condition, (1 << condition.bits) - 1, value, if_true, if_false)
            case Operator.NE:
                return self._test_bits(condition, (1 << condition.bits) - 1, value, if_false, if_true)
            case Operator.MASKED_EQ:
                mask = value & ((1 << condition.bits) - 1)
                return self._test_bits(condition, mask, condition.value_two, if_true, if_false)
            case Operator.GT:
                return self._test_order(condition, GREATER, if_true, if_false)
            case Operator.GE:
                return self._test_order(condition, GREATER_OR_EQUAL, if_true, if_false)
            case Operator.LE:
                return self._test_order(condition, GREATER, if_false, if_true)
            case Operator.LT:
                return self._test_order(condition, GREATER_OR_EQUAL, if_false, if_true)

    def to_bytes(self) -> bytes:
        """Return the program as an array of struct sock_filter. Raises ProfileError if it is too long."""
        count = len(self._reversed)
        if count > MAX_INSTRUCTIONS:
            raise ProfileError(
                f"cannot compile the seccomp profile: it needs {count} BPF instructions, but the kernel accepts at "
                f"most {MAX_INSTRUCTIONS}; remove argument conditions or rules"
            )
        return b"".join(struct.pack("<HBBI", *instruction) for instruction in reversed(self._reversed))

    def _test_bits(self, condition: Condition, mask: int, value: int, if_true: Label, if_false: Label) -> Label:
        """Compare the bits of a mask. Halves without a bit in the mask need no instruction."""
        entry = if_true
        # Bits of the value outside the mask are ignored, as in libseccomp.
        for half, shift in ((0, 0), (4, 32)):
            if bits := mask >> shift & _LOW:
                entry = self.branch(EQUAL, value >> shift & bits, entry, if_false)
                if bits != _LOW:
                    entry = self._write(_AND, bits)
                entry = self.load(_ARGUMENTS + 8 * condition.index + half, entry)
        return entry

    def _test_order(self, condition: Condition, comparison: int, if_true: Label, if_false: Label) -> Label:
        offset = _ARGUMENTS + 8 * condition.index
        low, high = condition.value & _LOW, condition.value >> 32 & _LOW
        entry = self.load(offset, self.branch(comparison, low, if_true, if_false))
        if condition.bits == 32:
            return entry
        # The lower half decides only if the upper halves are equal.
        equal = self.branch(EQUAL, high, entry, if_false)
        return self.load(offset + 4, self.branch(GREATER, high, if_true, equal))

    def _write(self, code: int, k: int, jt: int = 0, jf: int = 0) -> Label:
        self._reversed.append((code, jt, jf, k))
        return Label(len(self._reversed))

    def _fall_through_to(self, target: Label) -> None:
        """Make the next instruction in front of the others continue at a label."""
        if target != len(self._reversed):
            self._write(_JUMP, len(self._reversed) - target)

    def _near(self, target: Label, reserve: int) -> Label:
        """Return a label in reach of a conditional jump that leads to the same place."""
        if len(self._reversed) + reserve - target <= _FARTHEST:
            return target
        code, _, _, value = self._reversed[target - 1]
        if code == _RETURN:
            # A copy is as long as a jump, and one instruction faster. Later jumps use the copy too.
            self._results[value] = self._write(_RETURN, value)
            return self._results[value]
        return self._write(_JUMP, len(self._reversed) - target)
