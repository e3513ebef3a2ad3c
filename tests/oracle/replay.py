"""Replay files with recorded kubelet behaviour against our functions and classes.

In: a file of one component (plain or gzip JSON) with tables of rows, scripts of steps, or both. Out: for each case,
the differences from the kubelet. An unknown table or component is a failure, not a skip, so that a gap does not look
like a success.
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
    for component, modules in {
        "decisions": [
            *(logs.TABLES, plan.TABLES, pods.TABLES, probe.TABLES, qos.TABLES, static.TABLES),
            *(status.DECISION_TABLES, worker.TABLES),
        ],
        "status": [status.TABLES],
    }.items()
    for tables in modules
    for name, replay in tables.items()
}
"""The replay of each (component, table)."""

SCRIPTS: dict[str, Callable[[Json], Iterable[Difference]]] = {
    **storage.SCRIPTS,
    **syncloop.SCRIPTS,
    **worker.SCRIPTS,
    **status.SCRIPTS,
}
"""The replay of a script of each component."""


class Part(StrEnum):
    """The part of a file to replay."""

    ALL = "all"
    TABLES = "tables"
    SCRIPTS = "scripts"


class InvalidRecording(Exception):
    """The file cannot be replayed. The message has the reason and the expected file."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One case in which we differ from the kubelet."""

    case: str
    differences: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """The result of a replay."""

    passed: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, case: str, found: Callable[[], Iterable[Difference]]) -> None:
        """Run one case. An exception in our code is a difference, too."""
        try:
            first = tuple(str(difference) for difference in islice(found(), SHOWN_DIFFERENCES_PER_CASE))
        except Exception:
            first = ("raised\n" + traceback.format_exc(limit=-4),)
        if first:
            self.failures.append(Failure(case, first))
        else:
            self.passed += 1


def read_recording(path: Path) -> dict[str, Json]:
    """Read one recorded file of the newer release. Raises InvalidRecording for all others."""
    try:
        raw = path.read_bytes()
        document = msgspec.json.decode(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise InvalidRecording(f"cannot read {path} as a recorded file: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("component"), str):
        raise InvalidRecording(
            f"cannot replay {path}: it has no component; expected a file shaped like oracle/*/visible.json.gz"
        )
    if "older" in str(document.get("set", "")):
        raise InvalidRecording(
            f"cannot replay {path}: it is a recording of the older release; expected one of the newer release"
        )
    return document


def replay(document: dict[str, Json], part: Part = Part.ALL) -> Report:
    """Replay all cases of one recorded file."""
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
        report.failures.append(Failure(component, (f"the file has no {part} to replay",)))
    return report


def _title(title: str | None) -> str:
    return f" ({title})" if title else ""


def _row(component: str, name: str, row: Json) -> Iterator[Difference]:
    known = TABLES.get((component, name))
    if known is None:
        yield Difference(f"table {name}", "a replay", "unknown table")
    else:
        yield from known(row["in"], row["out"])


def _script(component: str, script: Json) -> Iterator[Difference]:
    known = SCRIPTS.get(component)
    if known is None:
        yield Difference(f"scripts of {component}", "a replay", "unknown component")
    else:
        yield from known(script)
