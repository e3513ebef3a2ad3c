"""State file of a campaign: the result of each seed.

A campaign can be stopped and continued.

    with StateFile.opened(path, plan, seeds) as state:
        for result in state.results(): totals.add(result)    # of earlier runs
        ...
        state.append(result)                                 # as soon as a seed has ended

    {"podkeeper_sim": 2, "code": "9f...", "options": {"seeds": "0:1000", "hours": "6", ...}}
    {"seed": 3, "hash": "e9...", "seconds": 21600.0, ...}
    ...

The file is only appended to: one line per seed, written and synced at once, in the order in which seeds end. A process
that is killed loses only the seeds in flight. After a power failure, an incomplete last line is dropped, and its seed
runs again.

A result depends on the code and the options. Therefore the header holds both, and a file with another header is
refused. So is a file that another campaign is using.
"""

import fcntl
import hashlib
import os
import platform
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import msgspec

import podkeeper
from podkeeper.model.errors import UNDECODABLE
from podkeeper.testing.sim.campaign import SeedResult
from podkeeper.testing.sim.faults import FAULTS
from podkeeper.testing.sim.plan_args import choice_shown, profile_shown
from podkeeper.testing.sim.run import SimPlan
from podkeeper.testing.sim.trace import TraceLine
from podkeeper.testing.sim.workload import WORKLOADS
from podkeeper.testing.sim.world import Violation

FORMAT = 2  # 1: other field names
_BEGINNING = b'{"podkeeper_sim":'


class StateRefused(Exception):
    """The file cannot be used for this campaign. The message has the reason and the next step."""


class StateHeader(msgspec.Struct, frozen=True):
    """Everything that determines the results in a file."""

    podkeeper_sim: int
    code: str
    options: dict[str, str]


class _SavedResult(msgspec.Struct, frozen=True):
    """The result of one seed, without the plan, which is the same for all seeds."""

    seed: int
    violation: Violation | None
    hash: str
    seconds: float
    cpu_seconds: float
    actions: int
    length: int
    agents: int
    pods_alive: float
    checks: dict[str, int]
    fault_counts: dict[str, int]
    lines: tuple[TraceLine, ...]


def state_header(plan: SimPlan, seeds: range, also: str = "") -> StateHeader:
    """Return the header for some seeds of a plan."""
    options = {
        "seeds": f"{seeds.start}:{seeds.stop}",
        "hours": f"{plan.hours:g}",
        "faults": choice_shown(plan.faults, FAULTS),
        "workload": choice_shown(plan.workload, WORKLOADS),
        "profile": " ".join(profile_shown(plan.profile)) or "default",
        "also": also or "none",
    }
    return StateHeader(FORMAT, code_hash(also), options)


def code_hash(also: str = "") -> str:
    """Return a hash of everything besides the options that determines a result: podkeeper's source and Python."""
    digest = hashlib.sha256(f"{platform.python_implementation()} {sys.version}\n".encode())
    root = Path(podkeeper.__file__).parent
    sources = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    if also and (file := import_module(also.partition(":")[0]).__file__) is not None:
        sources.append(Path(file))
    for path in sorted(sources):
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class StateFile:
    """An open state file. It is locked, so no other campaign can use it."""

    def __init__(self, file: int, plan: SimPlan, saved: list[_SavedResult]) -> None:
        self._file = file
        self._plan = plan
        self._saved = saved

    @classmethod
    @contextmanager
    def opened(cls, path: Path, plan: SimPlan, seeds: range, also: str = "") -> Iterator["StateFile"]:
        """Open or create the file of a campaign. Raises StateRefused if it belongs to another campaign."""
        try:
            # O_NONBLOCK, because opening a FIFO without it blocks.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise StateRefused(f"cannot open {path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise StateRefused(f"cannot use {path}: it is not a regular file")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StateRefused(f"cannot use {path}: another campaign is using it") from None
            saved = _read(file, path, state_header(plan, seeds, also), seeds)
            yield cls(file, plan, saved)
        finally:
            os.close(file)

    def results(self) -> Iterator[SeedResult]:
        """Return the results of earlier runs, in the order of their arrival."""
        for saved in self._saved:
            yield SeedResult(
                plan=replace(self._plan, seed=saved.seed),
                violation=saved.violation,
                hash=saved.hash,
                seconds=saved.seconds,
                cpu_seconds=saved.cpu_seconds,
                actions=saved.actions,
                length=saved.length,
                agents=saved.agents,
                pods_alive=saved.pods_alive,
                checks=Counter(saved.checks),
                fault_counts=Counter(saved.fault_counts),
                lines=saved.lines,
            )

    def append(self, result: SeedResult) -> None:
        """Save a result. It is on the disk when this returns."""
        saved = _SavedResult(
            seed=result.plan.seed,
            violation=result.violation,
            hash=result.hash,
            seconds=result.seconds,
            cpu_seconds=result.cpu_seconds,
            actions=result.actions,
            length=result.length,
            agents=result.agents,
            pods_alive=result.pods_alive,
            checks=dict(result.checks),
            fault_counts=dict(result.fault_counts),
            lines=result.lines,
        )
        _write_line(self._file, saved)


def _read(file: int, path: Path, header: StateHeader, seeds: range) -> list[_SavedResult]:
    """Check the header, or write it into a new file. Drop an incomplete last line. Return the results."""
    with os.fdopen(os.dup(file), "rb") as reader:
        content = reader.read()
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        # The file is empty, or the process was killed during its first write.
        if not (_BEGINNING.startswith(content[: len(_BEGINNING)]) or content.startswith(_BEGINNING)):
            raise StateRefused(f"cannot use {path}: it is not the state file of a campaign")
        os.ftruncate(file, 0)
        _write_line(file, header)
        return []
    first, *lines = whole.splitlines()
    try:
        found = msgspec.json.decode(first, type=StateHeader)
    except UNDECODABLE:
        raise StateRefused(f"cannot use {path}: it is not the state file of a campaign") from None
    if difference := _difference(found, header):
        raise StateRefused(
            f"cannot continue {path}: {difference}. To start again, remove the file or name another one."
        )
    saved: dict[int, _SavedResult] = {}
    for number, line in enumerate(lines, start=2):
        try:
            result = msgspec.json.decode(line, type=_SavedResult)
        except UNDECODABLE as error:
            raise StateRefused(
                f"cannot continue {path}: line {number} is damaged ({error}). "
                "Remove that line to run its seed again, or remove the file to start again."
            ) from error
        seed = result.seed
        if seed in saved:
            raise StateRefused(
                f"cannot continue {path}: line {number} repeats seed {seed}: remove one of the two lines"
            )
        if seed not in seeds:
            allowed = f"{seeds.start}:{seeds.stop}"
            raise StateRefused(
                f"cannot continue {path}: line {number} has seed {seed}, which is not in {allowed}: remove that line"
            )
        saved[seed] = result
    os.ftruncate(file, len(whole))
    return list(saved.values())


def _difference(found: StateHeader, wanted: StateHeader) -> str:
    """Return why the results of one header are not valid for another. Empty: they are valid."""
    differences = _differing(found.options, wanted.options)
    if differences:
        return f"it was written with other options ({differences})"
    if found.podkeeper_sim != wanted.podkeeper_sim or found.code != wanted.code:
        return f"it was written by another version of the code ({found.code}, and this is {wanted.code})"
    return ""


def _differing(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    return "; ".join(f"{name}: {found.get(name, 'none')} in the file, {wanted.get(name, 'none')} now" for name in names)


def _write_line(file: int, what: msgspec.Struct) -> None:
    line = msgspec.json.encode(what) + b"\n"
    while line:  # if the disk is full, the rest fails, and the next start drops the incomplete line
        line = line[os.write(file, line) :]
    os.fsync(file)
