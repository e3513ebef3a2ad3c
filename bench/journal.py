"""The journal file beside SQLite: `python -m bench.journal [--json] [--directory DIR]`.

Three stores hold the same entries: `journal.file.FileJournal`, and one SQLite table (key, value) in WAL mode with
`synchronous=FULL` and with `synchronous=NORMAL`. All write in one thread and share a commit among concurrent syncs.
They run alternately in one run, so that a slow disk slows all of them. Compare ratios, not seconds.

`--directory` must be on a real disk: on a tmpfs a sync costs nothing. docs/decisions/0012-journal-file.md has the
result.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Protocol

from podkeeper.journal.file import FileJournal

ENTRY_BYTES = 2048
ROUNDS = 5
SYNCED_WRITES = 400  # per store and round
BATCH = 32  # entries per sync in the bulk test, about one group commit of a busy agent
_UPSERT = "INSERT INTO entries VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
REWRITES = 5  # how often the bulk test writes each entry


class Store(Protocol):
    """The part of the journal port that the bench needs."""

    def load(self) -> Mapping[str, bytes]:
        """Return all entries."""

    def put(self, key: str, value: bytes) -> None:
        """Set an entry. It is durable after the next `sync`."""

    async def sync(self) -> None:
        """Return when all entries are durable."""

    async def close(self) -> None:
        """Sync and close."""


class SqliteStore:
    """The journal port on SQLite: changes are collected in memory, one transaction per sync writes them."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(f"PRAGMA synchronous={synchronous}")
        self._connection.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB)")
        self._entries: dict[str, bytes] = dict(self._connection.execute("SELECT key, value FROM entries"))
        self._changed: dict[str, bytes] = {}

    def load(self) -> Mapping[str, bytes]:
        """Return all entries."""
        return dict(self._entries)

    def put(self, key: str, value: bytes) -> None:
        """Set an entry. It is durable after the next `sync`."""
        self._entries[key] = self._changed[key] = value

    async def sync(self) -> None:
        """Write all changes in one transaction."""
        changed, self._changed = self._changed, {}
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, changed)

    async def close(self) -> None:
        """Sync and close. SQLite then moves the WAL into the database."""
        await self.sync()
        self._thread.shutdown()
        self._connection.close()

    def _write(self, changed: Mapping[str, bytes]) -> None:
        if changed:
            self._connection.execute("BEGIN")
            self._connection.executemany(_UPSERT, changed.items())
            self._connection.execute("COMMIT")


STORES: dict[str, Callable[[Path], Store]] = {
    "file": lambda directory: FileJournal.open(directory / "journal"),
    "sqlite_full": lambda directory: SqliteStore(directory / "entries.db", "FULL"),
    "sqlite_normal": lambda directory: SqliteStore(directory / "entries.db", "NORMAL"),
}


def entry(number: int) -> bytes:
    """Return an entry of about the size of a small pod, different for each number."""
    return f"{number:012}".encode() * (ENTRY_BYTES // 12)


def key_of(pod: int) -> str:
    return f"pods/00000000-0000-4000-8000-{pod:012}"


def bytes_written() -> int:
    """Return the bytes that this process has passed to write calls."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


async def one_by_one(store: Store, round_number: int) -> tuple[list[float], float]:
    """Write single entries durably. Return the latencies in ms and the CPU time per 1000 writes in ms."""
    latencies = []
    cpu = time.process_time()
    for number in range(SYNCED_WRITES):
        value = entry(round_number * SYNCED_WRITES + number)
        began = time.perf_counter()
        store.put(key_of(number % 100), value)
        await store.sync()
        latencies.append((time.perf_counter() - began) * 1000)
    return latencies, (time.process_time() - cpu) * 1e6 / SYNCED_WRITES


async def bulk(store: Store, pods: int) -> None:
    """Write all entries several times, in random order, `BATCH` per sync."""
    order = list(range(pods))
    chance = random.Random(0)
    for rewrite in range(REWRITES):
        chance.shuffle(order)
        for start in range(0, pods, BATCH):
            for pod in order[start : start + BATCH]:
                store.put(key_of(pod), entry(rewrite * pods + pod))
            await store.sync()


async def durable_write_figures(base: Path) -> dict[str, float]:
    """Latency and CPU of durable writes, the stores alternating."""
    latencies: dict[str, list[float]] = {name: [] for name in STORES}
    cpu: dict[str, list[float]] = {name: [] for name in STORES}
    stores = {}
    for name, opened in STORES.items():
        (base / name).mkdir()
        stores[name] = opened(base / name)
    for number in range(ROUNDS):
        for name, store in stores.items():
            taken, cpu_time = await one_by_one(store, number)
            latencies[name] += taken
            cpu[name].append(cpu_time)
    for store in stores.values():
        await store.close()
    figures = {}
    for name in STORES:
        figures[f"{name}_write_p50_ms"] = median(latencies[name])
        figures[f"{name}_write_p99_ms"] = quantiles(latencies[name], n=100)[98]
        figures[f"{name}_cpu_ms_per_1000_writes"] = min(cpu[name])
    return figures


async def bulk_figures(base: Path, pods: int) -> dict[str, float]:
    """Size, write amplification and open time with the entries of many pods."""
    figures = {}
    payload = pods * REWRITES * len(entry(0))
    for name, opened in STORES.items():
        directory = base / f"bulk-{name}"
        directory.mkdir()
        store = opened(directory)
        before, began, cpu = bytes_written(), time.perf_counter(), time.process_time()
        await bulk(store, pods)
        figures[f"{name}_bulk_seconds"] = time.perf_counter() - began
        figures[f"{name}_bulk_cpu_seconds"] = time.process_time() - cpu
        figures[f"{name}_disk_ratio_to_notes"] = size_of(directory) / (pods * len(entry(0)))
        await store.close()
        figures[f"{name}_write_amplification"] = (bytes_written() - before) / payload
        opens = []
        for _ in range(3):
            began = time.perf_counter()
            store = opened(directory)
            assert len(store.load()) == pods
            opens.append((time.perf_counter() - began) * 1000)
            await store.close()
        figures[f"{name}_open_ms"] = min(opens)
    return figures


async def acknowledge_writes(name: str, directory: Path) -> None:
    """Write entries forever and print the number of each one that is durable. The parent kills this process."""
    store = STORES[name](directory)
    number = 0
    while True:
        store.put(key_of(number % 50), entry(number))
        await store.sync()
        print(number, flush=True)
        number += 1


def crash_figures(base: Path, crashes: int) -> dict[str, float]:
    """Kill a writing process at random times. Count acknowledged writes that are lost afterwards."""
    figures = {}
    chance = random.Random(1)
    for name in STORES:
        lost = 0
        for number in range(crashes):
            directory = base / f"crash-{name}-{number}"
            directory.mkdir()
            child = subprocess.Popen(
                [sys.executable, "-m", "bench.journal", "--write", name, "--directory", str(directory)],
                stdout=subprocess.PIPE,
            )
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(chance.uniform(0, 0.2))
            child.send_signal(signal.SIGKILL)
            acknowledged = [int(line) for line in child.stdout.read().split(b"\n")[:-1]]
            child.wait()
            last = max(acknowledged, default=0)
            entries = asyncio.run(_reopened(name, directory))
            newest = {at % 50: at for at in range(last + 1)}
            lost += sum(int(entries.get(key_of(pod), b"-1")[:12]) < at for pod, at in newest.items())
        figures[f"{name}_acknowledged_writes_lost_in_{crashes}_kills"] = float(lost)
    return figures


async def _reopened(name: str, directory: Path) -> Mapping[str, bytes]:
    store = STORES[name](directory)
    entries = store.load()
    await store.close()
    return entries


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """Return each SQLite figure as a multiple of the journal file's."""
    found = {}
    for name, value in figures.items():
        for store in ("sqlite_full", "sqlite_normal"):
            ours = figures.get(name.replace(store, "file", 1))
            if name.startswith(store) and ours:
                found[f"{name}_ratio_to_file"] = value / ours
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.journal", description="Compare the journal with SQLite.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--pods", type=int, default=10_000, help="pods with an entry [default: 10000]")
    parser.add_argument("--crashes", type=int, default=10, help="kills per store [default: 10]")
    parser.add_argument("--directory", type=Path, help="directory on the disk to measure [default: system's]")
    parser.add_argument("--write", choices=STORES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.write:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(acknowledge_writes(options.write, options.directory))
        return 0
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        base = Path(name)
        os.sync()  # flush writes of other processes first
        figures = asyncio.run(durable_write_figures(base))
        figures |= asyncio.run(bulk_figures(base, options.pods))
        figures |= crash_figures(base, options.crashes)
    figures |= ratios(figures)
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:58} {value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
