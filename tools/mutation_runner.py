"""Run tests against mutants: a warm process that has collected the tests once, and forks a child for each mutant.

    warm process: collects, forks workers -> worker: takes jobs -> child: swaps the code, runs the tests that reach it
                                                                -> or a fresh pytest over a changed copy of the source

A mutant inside a function is swapped in by replacing `__code__` of the function objects that exist. A mutant of module
level code, or of code that other processes run, needs the fresh process. Each child has a time limit for each test and
a memory limit. A worker kills everything that a child leaves behind, including processes in other sessions.

The same machinery records which test reaches which block, from copies of the source with marks (`mutation_blocks`).
"""

import base64
import ctypes
import gc
import json
import os
import pickle
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

import pytest

from tools.mutation_blocks import MAIN_PROCESS, MARKS, copy_source, write_compiled
from tools.mutation_operators import Mutant

TOOLS = Path(__file__).resolve().parent.parent
LIMIT_FACTOR = 5.0  # a test may take this multiple of its usual time, plus the plan's limit
FIRST_LIMIT_SECONDS = 90.0  # until a fresh process starts its first test
RECORD_LIMIT_SECONDS = 300.0
TEARDOWN_SECONDS = 10.0  # some tests stop a container runtime
WAITING_COST = 0.2  # cost of a second of elapsed time, relative to a second of CPU time
MEMORY_BYTES = 2 << 30  # limit for a mutant, in addition to the memory of the collected tests
FRESH_FILES = (1, 5)  # the first fresh process gets test file 1, the second one files 2 to 5, the third one the rest
NUMBER_WIDTH = 8

Outcome = Literal["passed", "failed", "timeout", "cannot swap", "error"]


@dataclass(frozen=True, slots=True)
class Test:
    """A test and its usual time."""

    id: str
    seconds: float  # elapsed time, which determines the time limit
    cost: float  # CPU seconds plus 0.2 of the elapsed seconds; orders the tests and counts against the budget

    @property
    def file(self) -> str:
        """Return the file of the test."""
        return self.id.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Job:
    """A mutant and the tests that may kill it, in order."""

    mutant: Mutant
    in_fork: tuple[tuple[int, ...], ...]  # by number; one tuple for each child
    in_fresh_process: tuple[int, ...]
    left_out: int = 0  # number of tests beyond the budget


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a warm process."""

    root: Path
    results: Path
    scratch: Path
    workers: int
    limit_seconds: float
    tests: list[Test]
    jobs: list[Job]

    @property
    def source(self) -> Path:
        """Return the source folder."""
        return self.root / "src"


@dataclass(frozen=True, slots=True)
class Run:
    """The result of some tests: the number of the deciding test, and the reason."""

    outcome: Outcome
    test: int | None = None


class CannotSwap(Exception):
    """The function that a mutant changes does not exist yet, or cannot take the changed code."""


# Swapping code.


class Functions:
    """All function objects of a source tree."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._found: dict[tuple[str, str, int], list[FunctionType]] = {}
        prefix = str(source)
        gc.unfreeze()  # frozen objects are not listed, and `tests/conftest.py` freezes them all
        for function in gc.get_objects():
            if type(function) is FunctionType and function.__code__.co_filename.startswith(prefix):
                code = function.__code__
                self._found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(function)

    def swap(self, mutant: Mutant) -> None:
        """Insert a mutant into this process. Raise CannotSwap or SyntaxError."""
        path = str(self._source / "podkeeper" / mutant.file)
        text = Path(path).read_bytes()
        before, after = (_by_name(compile(t, path, "exec", dont_inherit=True)) for t in (text, mutant.applied(text)))
        for depth, name in enumerate(mutant.functions):
            lines = [code.co_firstlineno for code in before.get(name, []) if code.co_firstlineno <= mutant.line]
            if not lines or len(after.get(name, [])) != len(before[name]):
                raise CannotSwap(name)
            functions = self._found.get((path, name, lines[-1]), [])
            if depth == 0 and not functions:
                raise CannotSwap(name)
            for function in functions:
                try:
                    function.__code__ = after[name][len(lines) - 1]
                except ValueError as error:  # another number of closure variables
                    raise CannotSwap(name) from error


def _by_name(code: CodeType) -> dict[str, list[CodeType]]:
    found: dict[str, list[CodeType]] = {}

    def walk(outer: CodeType) -> None:
        for constant in outer.co_consts:
            if isinstance(constant, CodeType):
                found.setdefault(constant.co_qualname, []).append(constant)
                walk(constant)

    walk(code)
    return found


# Processes.


def adopt_orphans() -> None:
    """Make this process the reaper of orphaned descendants, so that it can kill them."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_descendants() -> None:
    """Kill all descendants of this process and wait for them."""
    while below := _descendants(os.getpid()):
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.001)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants(top: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                stat = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found, todo = [], [top]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def enter_cell(*kept: Path) -> None:
    """Continue in a child with its own mount and PID namespace. This process waits and exits with the same status.

    The child sees an empty /tmp, except for the `kept` directories, these tools and this Python.

    A mutant of the process runtime may change the root directory, kill all processes, or write outside its container.
    Run as root, it would affect the whole machine. Other users cannot enter such namespaces and should run mutants of
    that runtime in a container.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), "cannot enter namespaces for a mutant")

    check(libc.unshare(0x20020000))  # CLONE_NEWPID | CLONE_NEWNS
    check(libc.mount(b"none", b"/", None, 0x44000, None))  # MS_REC | MS_PRIVATE
    kept += (TOOLS, Path(sys.prefix), Path(sys.base_prefix))
    below_tmp = [path for path in kept if path.is_relative_to("/tmp")]
    handles = [os.open(path, os.O_PATH) for path in below_tmp]
    check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"mode=1777"))
    for path, handle in zip(below_tmp, handles, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        check(libc.mount(f"/proc/self/fd/{handle}".encode(), bytes(path), None, 0x5000, None))  # MS_BIND | MS_REC
        os.close(handle)
    _go_on_in_child()
    check(libc.mount(b"proc", b"/proc", b"proc", 0, None))
    _go_on_in_child()  # because the first process of a namespace ignores signals without a handler


def _go_on_in_child() -> None:
    """Fork. The parent reaps all children until the new one has ended, then exits with the same status."""
    pid = os.fork()
    while pid:
        ended, status = os.wait()
        if ended == pid:
            os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))


def _prepare_child(temporary: Path) -> None:
    """Give a child its own session, memory limit and temporary folder, without input and output."""
    os.setsid()
    silence = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silence, number)
    _limit_memory()
    _use_temporary(temporary)


def _write_error(build: Path) -> None:
    """Log an error of this tool in a child."""
    with open(build / "errors.txt", "a") as errors:
        traceback.print_exc(file=errors)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _use_temporary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o1777)  # like /tmp, because tests run as other users
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    tempfile.tempdir = None


def next_number(queue: int) -> int | None:
    """Read the number of the next job from a file whose position all workers share."""
    line = os.read(queue, NUMBER_WIDTH)
    return int(line) if line else None


def write_queue(path: Path, count: int) -> int:
    """Return a file of job numbers, open for reading."""
    path.write_text("".join(f"{number:>{NUMBER_WIDTH - 1}}\n" for number in range(count)))
    queue = os.open(path, os.O_RDONLY)
    os.set_inheritable(queue, True)
    return queue


# Running tests in any process.


@dataclass(eq=False)  # pytest keeps plugins in sets
class Collected:
    """A pytest plugin: after the collection, `serve` runs in the place of pytest's own loop over the tests."""

    serve: Callable[["Collected", pytest.Session], object]
    on_failure: Callable[[], None] = lambda: None
    items: dict[str, pytest.Item] = field(default_factory=dict)
    failed: bool = False
    skipped: bool = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        _shrink_no_examples()
        self.items = {item.nodeid: item for item in session.items}
        self.serve(self, session)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure at once, because the teardown may take long."""
        self.skipped = self.skipped or report.skipped
        if report.failed and not self.failed:
            self.failed = True
            self.on_failure()

    def run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self.failed = self.skipped = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def run_until_failure(self, tests: Sequence[str], report: Callable[[str], None]) -> None:
        """Run tests and report each start, and the end."""
        items = [self.items[name] for name in tests]
        for number, item in enumerate(items):
            report(f"start {number}")
            self.on_failure = partial(report, f"failed {number}")
            self.run(item, items[number + 1] if number + 1 < len(items) else None)
            if self.failed:
                # Tear down module fixtures, too. The worker does not wait long for them.
                item.session._setupstate.teardown_exact(None)
                return
        report("passed")


def environment_for(source: Path) -> dict[str, str]:
    """Return the environment of a process that imports this source."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(TOOLS))), "PYTHONHASHSEED": "0"}


def pytest_main(files: Iterable[str], plugin: object) -> int:
    """Run pytest in this process, without output capture, because forked children would share its files."""
    quiet = ["-q", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "--no-header"]
    return int(pytest.main([*quiet, "--rootdir", os.getcwd(), *files], plugins=[plugin]))


def _shrink_no_examples() -> None:
    """Disable shrinking in Hypothesis, because any counterexample is enough."""
    engine = sys.modules.get("hypothesis.internal.conjecture.engine")
    if engine is not None:
        vars(engine)["MAX_SHRINKING_SECONDS"] = 0


def watch(pid: int, pipe: int, limits: Sequence[float], first_limit: float) -> Run:
    """Wait for the report of a child. A child that dies without a report has failed."""
    deadline = time.monotonic() + first_limit
    current: int | None = None
    buffer = b""
    while True:
        ended = _has_ended(pid)  # before reading, so that everything the child wrote is read below
        ready, _, _ = select.select([pipe], [], [], max(0.0, min(0.2, deadline - time.monotonic())))
        if ready:
            chunk = os.read(pipe, 65536)
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                word, _, number = line.decode().partition(" ")
                match word:
                    case "start":
                        current = int(number)
                        deadline = time.monotonic() + limits[current]
                    case "failed":
                        _give_time_for_teardown(pid)
                        return Run("failed", int(number))
                    case "passed":
                        return Run("passed")
                    case "cannot":
                        return Run("cannot swap")
                    case "error":
                        return Run("error")
            if not chunk:
                return Run("failed", current)
        elif time.monotonic() >= deadline:
            return Run("timeout", current)
        elif ended:
            return Run("failed", current)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended. Reap orphans, because tests check that they are gone."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if ended.si_pid == pid:
            return True
        os.waitpid(ended.si_pid, 0)
    return False


def _give_time_for_teardown(pid: int) -> None:
    deadline = time.monotonic() + TEARDOWN_SECONDS
    while time.monotonic() < deadline and not _has_ended(pid):
        time.sleep(0.005)


# A worker: one mutant at a time.


class Worker:
    """Judges mutants in forked children of the warm process and in fresh processes."""

    def __init__(self, plan: Plan, number: int, collected: Collected, functions: Functions) -> None:
        self._plan = plan
        self._collected = collected
        self._functions = functions
        self._folder = plan.scratch / str(number)
        self._folder.mkdir()
        self._copy: Path | None = None
        self._confirmed: set[tuple[bool, int]] = set()
        self._unreliable: set[int] = set()

    def work(self, queue: int) -> None:
        adopt_orphans()
        results = os.open(self._plan.results, os.O_WRONLY | os.O_APPEND)
        while (number := next_number(queue)) is not None:
            job = self._plan.jobs[number]
            started = time.monotonic()
            verdict = self._judge(job)
            verdict |= {"id": job.mutant.id, "seconds": round(time.monotonic() - started, 2), "left_out": job.left_out}
            os.write(results, json.dumps(verdict).encode() + b"\n")

    def _judge(self, job: Job) -> dict[str, Any]:
        fresh = list(job.in_fresh_process)
        for tests in job.in_fork:
            run = self._decided(job.mutant, tests, in_fork=True)
            if run.outcome == "cannot swap":
                fresh = list(dict.fromkeys([*fresh, *(test for stage in job.in_fork for test in stage)]))
                break
            if run.outcome != "passed":
                return self._verdict(run)
        for part in self._fresh_parts(fresh):
            run = self._decided(job.mutant, part, in_fork=False)
            if run.outcome != "passed":
                return self._verdict(run)
        return {"verdict": "survived" if job.in_fork or fresh else "unreached", "by": None}

    def _verdict(self, run: Run) -> dict[str, Any]:
        by = None if run.test is None else self._plan.tests[run.test].id
        return {"verdict": "killed" if run.outcome == "failed" else run.outcome, "by": by}

    def _fresh_parts(self, tests: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Run the likeliest test files first, alone, because a fresh process takes long to collect many files."""
        files: dict[str, list[int]] = {}
        for test in tests:
            files.setdefault(self._plan.tests[test].file, []).append(test)
        groups = list(files.values())
        for start, end in zip((0, *FRESH_FILES), (*FRESH_FILES, None), strict=True):
            if part := groups[start:end]:
                yield tuple(test for group in part for test in group)

    def _decided(self, mutant: Mutant, tests: Sequence[int], *, in_fork: bool) -> Run:
        """Run tests until one fails that passes without the mutant."""
        run_tests = self._run_in_fork if in_fork else self._run_fresh
        while reliable := [test for test in tests if test not in self._unreliable]:
            run = run_tests(mutant, reliable)
            culprit = reliable[0] if run.test is None else run.test
            if run.outcome not in ("failed", "timeout") or (in_fork, culprit) in self._confirmed:
                return run
            if run_tests(None, [culprit]).outcome == "passed":
                self._confirmed.add((in_fork, culprit))
                return run
            self._unreliable.add(culprit)
        return Run("passed")

    def _limits(self, tests: Sequence[int]) -> list[float]:
        return [self._plan.limit_seconds + LIMIT_FACTOR * self._plan.tests[test].seconds for test in tests]

    def _run_in_fork(self, mutant: Mutant | None, tests: Sequence[int]) -> Run:
        names = [self._plan.tests[test].id for test in tests]
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._be_child(mutant, names, writing)
        os.close(writing)
        try:
            return self._numbered(watch(pid, reading, self._limits(tests), FIRST_LIMIT_SECONDS), tests)
        finally:
            self._clean_up(reading)

    def _be_child(self, mutant: Mutant | None, names: Sequence[str], writing: int) -> None:
        try:
            try:
                enter_cell(self._plan.root, self._folder)
                _prepare_child(self._folder / "t")
                if mutant is not None:
                    self._functions.swap(mutant)
            except CannotSwap:
                _write_line(writing, "cannot swap")
                return
            except BaseException:
                _write_error(self._plan.results.parent)
                _write_line(writing, "error")
                return
            self._collected.run_until_failure(names, lambda word: _write_line(writing, word))
        finally:
            os._exit(0)

    def _run_fresh(self, mutant: Mutant | None, tests: Sequence[int]) -> Run:
        if self._copy is None:
            self._copy = self._folder / "src"
            copy_source(self._plan.source, self._copy)
        names = [self._plan.tests[test].id for test in tests]
        (self._folder / "tests.json").write_text(json.dumps(names))
        reading, writing = os.pipe()
        if mutant is not None:
            self._compile(mutant, changed=True)
        program = [sys.executable, "-m", "tools.mutation_runner", "fresh", str(self._folder), str(writing)]
        started = subprocess.Popen(
            program,
            cwd=self._plan.root,
            env=environment_for(self._copy),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        try:
            run = watch(started.pid, reading, self._limits(tests), FIRST_LIMIT_SECONDS)
            return self._numbered(run, tests)
        finally:
            self._clean_up(reading)
            started.returncode = 0  # already reaped
            if mutant is not None:
                self._compile(mutant, changed=False)

    def _compile(self, mutant: Mutant, *, changed: bool) -> None:
        assert self._copy is not None
        path = self._copy / "podkeeper" / mutant.file
        text = path.read_bytes()
        code = compile(mutant.applied(text) if changed else text, str(path), "exec", dont_inherit=True)
        write_compiled(path, code)

    def _numbered(self, run: Run, tests: Sequence[int]) -> Run:
        return run if run.test is None else Run(run.outcome, tests[run.test])

    def _clean_up(self, pipe: int) -> None:
        os.close(pipe)
        end_descendants()
        shutil.rmtree(self._folder / "t", ignore_errors=True)


def _write_line(file: int, word: str) -> None:
    with suppress(OSError):  # if a test closed it, the worker uses the exit status
        os.write(file, word.encode() + b"\n")


# Entry points of the processes.


def serve_mutants(plan: Plan, queue: int) -> int:
    """Run the warm process: collect the tests, fork the workers and wait for them."""
    wanted = {test for job in plan.jobs for stage in job.in_fork for test in stage}
    files = dict.fromkeys(plan.tests[test].file for test in sorted(wanted))
    collected = Collected(lambda collected, session: _run_workers(plan, queue, collected))
    if not files:  # all mutants need fresh processes
        return _run_workers(plan, queue, collected)
    return pytest_main(files, collected)


def _run_workers(plan: Plan, queue: int, collected: Collected) -> int:
    """Fork the workers and wait for them. If one ends early, `tools.mutation` reports the missing verdicts."""
    functions = Functions(plan.source)
    gc.collect()
    gc.freeze()
    workers = []
    for number in range(plan.workers):
        if pid := os.fork():
            workers.append(pid)
            continue
        try:
            Worker(plan, number, collected, functions).work(queue)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return max([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers])


def serve_fresh(folder: Path, pipe: int) -> int:
    """Run a fresh process: run these tests in this order."""
    names = json.loads((folder / "tests.json").read_text())
    os.set_inheritable(pipe, False)
    enter_cell(Path.cwd(), folder)
    if os.getsid(0) != os.getpid():
        os.setsid()
    _limit_memory()
    _use_temporary(folder / "t")

    def serve(collected: Collected, session: pytest.Session) -> None:
        tests = [name for name in names if name in collected.items]
        if len(tests) < len(names):  # the mutant changes the collected tests
            _write_line(pipe, "failed 0")
            return
        collected.run_until_failure(tests, lambda word: _write_line(pipe, word))

    status = pytest_main(dict.fromkeys(name.partition("::")[0] for name in names), Collected(serve))
    if status:  # the collection failed before any test
        _write_line(pipe, "failed 0")
    return status


def serve_record(marked: Path, results: Path, files: list[str], queue: int) -> int:
    """Run a recording process: run each test file in a child and record which blocks each test reaches."""
    os.environ[MAIN_PROCESS] = str(os.getpid())
    adopt_orphans()
    module = __import__(f"podkeeper.{MARKS}", fromlist=["marks"])
    size = len(module.marks)
    marks: memoryview = module._map

    def packed(start: int) -> str:
        return base64.b64encode(zlib.compress(bytes(marks[start : start + size]))).decode()

    def serve(collected: Collected, session: pytest.Session) -> None:
        if session.testsfailed:
            raise session.Interrupted("a test file cannot be imported")
        by_file: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
        output = os.open(results, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(output, json.dumps({"imports": packed(0)}).encode() + b"\n")

        def write_reached(item: pytest.Item, following: pytest.Item | None) -> None:
            marks[:] = bytes(2 * size)
            started, used = time.monotonic(), sum(os.times()[:4])
            collected.run(item, following)
            seconds = time.monotonic() - started
            record = {
                "test": item.nodeid,
                "passed": not collected.failed and not collected.skipped,
                "failed": collected.failed,
                "seconds": round(seconds, 4),
                "cost": round(sum(os.times()[:4]) - used + WAITING_COST * seconds, 4),
                "here": packed(0),
                "elsewhere": packed(size),
            }
            os.write(output, json.dumps(record).encode() + b"\n")

        gc.collect()
        gc.freeze()
        while (number := next_number(queue)) is not None:
            items = by_file.get(files[number], [])
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    _prepare_child(marked.parent / "t")
                    for place, item in enumerate(items):
                        write_reached(item, items[place + 1] if place + 1 < len(items) else None)
                    _write_line(writing, "passed")
                except BaseException:
                    _write_error(results.parent)
                finally:
                    os._exit(0)
            os.close(writing)
            run = watch(pid, reading, [], RECORD_LIMIT_SECONDS)
            os.close(reading)
            end_descendants()
            shutil.rmtree(marked.parent / "t", ignore_errors=True)
            if run.outcome != "passed":  # the tests that did not run
                os.write(output, json.dumps({"test": files[number], "failed": True}).encode() + b"\n")
            os.write(output, json.dumps({"file": files[number]}).encode() + b"\n")

    return pytest_main(files, Collected(serve))


def main(arguments: list[str]) -> int:
    """Run one of the processes of `tools.mutation`."""
    match arguments:
        case ["warm", plan, queue]:
            return serve_mutants(pickle.loads(Path(plan).read_bytes()), int(queue))
        case ["fresh", folder, pipe]:
            return serve_fresh(Path(folder), int(pipe))
        case ["record", marked, results, files, queue]:
            return serve_record(Path(marked), Path(results), json.loads(Path(files).read_text()), int(queue))
    print("this module is started by tools.mutation only")
    return 2


if __name__ == "__main__":
    from tools import mutation_runner

    sys.exit(mutation_runner.main(sys.argv[1:]))
