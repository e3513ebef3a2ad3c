"""Mark every block of the source, to record which test reaches which block.

A block is a run of statements that are executed together, up to the next branch or loop. Marking costs one store into
shared memory, in all threads. Python's tracing hooks call back for every line or call, and do not reach other
processes. The marks do: processes that a test starts from the same source map the same file. Their marks
go to its second half, because a mutant that such a process runs must be on disk.

The marked source is a copy of `src` in which only the compiled files differ. They are of the kind that Python loads
without checking the source, so tests that read the source still find the original.
"""

import ast
import importlib.util
import marshal
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

MARKS = "_mutation_marks"
MAIN_PROCESS = "MUTATION_MAIN_PROCESS"  # environment: the process whose marks go to the first half

_MARKS_MODULE = """\
import mmap
import os

try:
    _file = os.open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "marks"), os.O_RDWR)
    _map = memoryview(mmap.mmap(_file, {size} * 2))
    os.close(_file)
    marks = _map[:{size}] if os.environ.get("{variable}") == str(os.getpid()) else _map[{size}:]
except OSError:
    marks = bytearray({size})
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of statements. Lines count from 1, columns in bytes from 0."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    names: frozenset[str]  # all names and attributes in the block

    @property
    def size(self) -> tuple[int, int]:
        """Return a key by which an inner block is smaller than an outer one."""
        return self.end[0] - self.start[0], self.end[1] - self.start[1]

    def holds(self, line: int, column: int) -> bool:
        """Return whether the block contains a position."""
        return self.start <= (line, column) < self.end


class _Marker(ast.NodeTransformer):
    """Adds marks to the functions of a module and lists its blocks."""

    def __init__(self, file: str, first_number: int) -> None:
        self.blocks: list[Block] = []
        self._file = file
        self._first = first_number
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        self._mark_bodies(node)
        self._depth -= 1
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._depth:
            self._mark_bodies(node)
            return node
        return super().generic_visit(node)

    def _mark_bodies(self, node: ast.AST) -> None:
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, field, self._marked(body, node))
        for field in ("handlers", "cases"):
            for part in getattr(node, field, []):
                self._mark_bodies(part)

    def _marked(self, body: list[ast.stmt], owner: ast.AST) -> list[ast.stmt]:
        is_function = isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef)
        new: list[ast.stmt] = []
        if is_function and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            new, body = body[:1], body[1:]
        while body:
            length = next((n for n, statement in enumerate(body, start=1) if _is_compound(statement)), len(body))
            run, body = body[:length], body[length:]
            new += [self._mark(run), *map(self._visited, run)]
        return new

    def _visited(self, statement: ast.stmt) -> ast.stmt:
        if _is_compound(statement):
            self.visit(statement)
        return statement

    def _mark(self, run: list[ast.stmt]) -> ast.stmt:
        number = self._first + len(self.blocks)
        nodes = [node for statement in run for node in ast.walk(statement)]
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        first, last = run[0], run[-1]
        start = min((d.lineno, d.col_offset) for d in [first, *getattr(first, "decorator_list", [])])
        end = (last.end_lineno or last.lineno, last.end_col_offset or last.col_offset)
        self.blocks.append(Block(self._file, start, end, frozenset(names)))
        mark = ast.parse(f"{MARKS}[{number}] = 1").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, first)
        return mark


def _is_compound(statement: ast.stmt) -> bool:
    return hasattr(statement, "body") or isinstance(statement, ast.Match)


def marked_module(file: str, source: bytes, first_number: int) -> tuple[CodeType, list[Block]]:
    """Return a compiled module with marks, and its blocks. Marks are numbered from `first_number`."""
    tree = ast.parse(source)
    marker = _Marker(file, first_number)
    marker.visit(tree)
    head = 1 if ast.get_docstring(tree) is not None else 0
    while head < len(tree.body) and isinstance(line := tree.body[head], ast.ImportFrom) and line.module == "__future__":
        head += 1
    tree.body[head:head] = ast.parse(f"from podkeeper.{MARKS} import marks as {MARKS}").body
    return compile(tree, file, "exec", dont_inherit=True), marker.blocks


def write_compiled(path: Path, code: CodeType) -> None:
    """Make Python load this code for a source file, whatever the file contains."""
    target = Path(importlib.util.cache_from_source(str(path)))
    target.parent.mkdir(exist_ok=True)
    unchecked = (1).to_bytes(4, "little")
    target.unlink(missing_ok=True)  # it may be a link to the file of another copy
    target.write_bytes(importlib.util.MAGIC_NUMBER + unchecked + bytes(8) + marshal.dumps(code))


def copy_source(source: Path, target: Path) -> None:
    """Copy the source and its compiled files, which are valid for all unchanged modules."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.egg-info"))


def write_marked_copies(source: Path, targets: list[Path]) -> list[Block]:
    """Create copies of the source with marks, one per test process. Return all blocks."""
    blocks: list[Block] = []
    for target in targets:
        copy_source(source, target)
    for path in sorted((source / "podkeeper").rglob("*.py")):
        file = path.relative_to(source)
        code, found = marked_module(str(file.relative_to("podkeeper")), path.read_bytes(), len(blocks))
        blocks += found
        for target in targets:
            write_compiled(target / file, code)
    for target in targets:
        (target / "podkeeper" / f"{MARKS}.py").write_text(_MARKS_MODULE.format(size=len(blocks), variable=MAIN_PROCESS))
        (target / "marks").write_bytes(bytes(2 * len(blocks)))
        (target / "marks").chmod(0o666)  # containers may run as other users
    return blocks
