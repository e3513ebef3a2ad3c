"""Replay recorded files of the reference against our real functions and classes.

In: a file of one component (plain or gzip JSON): tables of rows, scripts of steps, or both. Out: for
each case whether we did as the reference did, and where not. A table or component nobody here knows
is a failure, never a skip: a gap must not look like success.
"""

import gzip
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from tests.oracle import logs, plan, pods, probe, qos, static, status, storage, syncloop, worker
from tests.oracle.compare import Difference, Json, Replay

SHOWN_DIFFERENCES_PER_CASE = 4

TABLES: dict[tuple[str, str], Replay] = {
    (component, name): replay
    for component, rooms in {
        "decisions": [
            *(logs.TABLES, plan.TABLES, pods.TABLES, probe.TABLES, qos.TABLES, static.TABLES),
            *(status.DECISION_TABLES, worker.TABLES),
        ],
        "status": [status.TABLES],
    }.items()
    for tables in rooms
    for name, replay in tables.items()
}
"""(component, table) -> its replay."""

SCRIPTS: dict[str, Callable[[Json], Iterable[Difference]]] = {
    **storage.SCRIPTS,
    **syncloop.SCRIPTS,
    **worker.SCRIPTS,
    **status.SCRIPTS,
}
"""component -> the replay of one of its scripts."""


class Part(StrEnum):
    """Which part of a file is replayed."""

    ALL = "all"
    TABLES = "tables"
    SCRIPTS = "scripts"


class Refused(Exception):
    """The file cannot be replayed at all; the message says why and what would be right."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One case in which we differ from the reference."""

    case: str
    differences: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """What a replay found."""

    passed: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, case: str, found: Callable[[], Iterable[Difference]]) -> None:
        """Run one case; an exception in our code is a difference like any other."""
        try:
            first = tuple(str(difference) for difference in islice(found(), SHOWN_DIFFERENCES_PER_CASE))
        except Exception:
            first = ("raised\n" + traceback.format_exc(limit=-4),)
        if first:
            self.failures.append(Failure(case, first))
        else:
            self.passed += 1


def read_recording(path: Path) -> dict[str, Json]:
    """Read one recorded file and refuse what is not one of the newer release."""
    try:
        raw = path.read_bytes()
        document = msgspec.json.decode(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise Refused(f"cannot read {path} as a recorded file: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("component"), str):
        raise Refused(f"cannot replay {path}: it names no component; give a file shaped like oracle/*/visible.json.gz")
    if "older" in str(document.get("set", "")):
        raise Refused(f"cannot replay {path}: it holds the older release's expectations; give the newer release's file")
    return document


def replay(document: dict[str, Json], part: Part = Part.ALL) -> Report:
    """Replay all cases of one recorded document."""
    component = document["component"]
    report = Report()
    if part is not Part.SCRIPTS:
        for name, rows in document.get("tables", {}).items():
            for index, row in enumerate(rows):
                title = _title(row["in"].get("title") if isinstance(row["in"], dict) else None)
                report.add(f"{component}/{name}[{index}]{title}", partial(_row, component, name, row))
    if part is not Part.TABLES:
        for script in document.get("scripts") or document.get("sequences") or ():
            case = f"{component}/{script.get('id', '?')}{_title(script.get('title'))}"
            report.add(case, partial(_script, component, script))
    if not report.passed and not report.failures:
        report.failures.append(Failure(component, (f"the file holds no {part} to replay",)))
    return report


def _title(title: str | None) -> str:
    return f" ({title})" if title else ""


def _row(component: str, name: str, row: Json) -> Iterator[Difference]:
    known = TABLES.get((component, name))
    if known is None:
        yield Difference(f"table {name}", "a replay", "no such table is known here")
    else:
        yield from known(row["in"], row["out"])


def _script(component: str, script: Json) -> Iterator[Difference]:
    known = SCRIPTS.get(component)
    if known is None:
        yield Difference(f"scripts of {component}", "a replay", "no such component is known here")
    else:
        yield from known(script)
