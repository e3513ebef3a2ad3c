"""An interpreter for the few eBPF instructions that `podkeeper.linux.devices` uses."""

import struct


def run_ebpf(program: bytes, words: tuple[int, ...]) -> int:
    """Run a program whose input are 32-bit words. Return its result."""
    code = [struct.unpack_from("=BBhi", program, at) for at in range(0, len(program), 8)]
    registers, at = [0] * 11, 0
    while True:
        operation, pair, offset, number = code[at]
        target, source = pair & 15, pair >> 4
        at += 1
        match operation:
            case 0x61:
                assert source == 1
                registers[target] = words[offset // 4]
            case 0xB7:
                registers[target] = number
            case 0xBF:
                registers[target] = registers[source]
            case 0x57:
                registers[target] &= number
            case 0x77:
                registers[target] >>= number
            case 0x55:
                at += offset if registers[target] != number else 0
            case 0x95:
                return registers[0]
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")
