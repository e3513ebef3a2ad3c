"""The assembler of seccomp programs: jumps in and out of reach."""

import pytest

from podkeeper.linux.seccomp_program import EQUAL, NUMBER, Label, Program
from tests.linux.bpf_machine import JUMP, RETURN, BpfMachine, instructions

YES, NO = 1001, 1002


def distant(gap: int, between: int, swapped: bool) -> bytes:
    """Return a program whose branch has its targets `gap` and about `gap + between` instructions away."""
    program = Program()
    far = loads(program, program.result(YES), between)
    near = program.result(NO)
    # Something must stand between the branch and its targets. Nothing executes these loads.
    loads(program, near, gap)
    if swapped:
        entry = program.branch(EQUAL, 7, near, far)
    else:
        entry = program.branch(EQUAL, 7, far, near)
    program.load(NUMBER, entry)
    return program.to_bytes()


def loads(program: Program, then: Label, count: int) -> Label:
    for _ in range(count):
        then = program.load(NUMBER, then)
    return then


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("between", [0, 1, 2, 5, 300])
def test_branches_reach_targets_at_every_distance(between: int, swapped: bool) -> None:
    for gap in range(240, 262):
        compiled = BpfMachine(distant(gap, between, swapped))
        assert compiled.run(0, 7) == (NO if swapped else YES)
        assert compiled.run(0, 8) == (YES if swapped else NO)


# The target for a true comparison has one instruction less, because the other target may need a copy too.
@pytest.mark.parametrize("gap, swapped, added", [(255, False, 0), (256, False, 1), (254, True, 0), (255, True, 1)])
def test_a_result_out_of_reach_is_written_again(gap: int, swapped: bool, added: int) -> None:
    program = Program()
    start, result = loads(program, program.result(YES), gap), program.result(YES)
    program.branch(EQUAL, 7, *((result, start) if swapped else (start, result)))
    code = instructions(program.to_bytes())
    assert len(code) == 1 + gap + added + 1
    assert [kind for kind, *_ in code].count(RETURN) == 1 + added
    assert [kind for kind, *_ in code].count(JUMP) == 0


def test_a_result_is_written_once() -> None:
    program = Program()
    assert program.result(YES) == program.result(YES) != program.result(NO)
    assert len(program.to_bytes()) == 16


@pytest.mark.parametrize("count, refused", [(4096, False), (4097, True)])
def test_the_longest_program(count: int, refused: bool) -> None:
    program = Program()
    loads(program, program.result(YES), count - 1)
    if refused:
        with pytest.raises(ValueError, match="needs 4097 BPF instructions"):
            program.to_bytes()
    else:
        assert len(program.to_bytes()) == 4096 * 8
