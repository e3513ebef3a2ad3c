"""Plant known bugs one by one and show what catches each: `python -m tools.mutants [NAME...]`.

Each mutant is one replacement in one file of a copy of the source. Two methods try to catch it independently:

* the tests: first those listed with the mutant, then all fast tests,
* the simulation: the seed listed with the mutant, then one or more other seeds, one virtual hour each.

A catch counts only if the same test or seed passes without the bug. The run fails if neither method catches a mutant or
if a mutant cannot be planted. It also fails if the simulation catches less than half of the mutants in code that it
runs. The simulation cannot catch a bug in a module that it never imports, such as a real runtime or the journal file.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.mutant_list import MUTANTS, PlantedBug

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
HOURS = "1"
OTHER_SEEDS = 1  # in addition to the seed of the mutant
TIMEOUT_SECONDS = 180.0  # a planted bug may cause an endless simulation


@dataclass(frozen=True, slots=True)
class Catch:
    """The test or seed that caught a mutant, and the time it took."""

    by: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.by} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one mutant."""

    by_tests: Catch | None
    by_simulation: Catch | None
    problem: str = ""  # why the mutant could not be planted

    @property
    def caught(self) -> bool:
        return self.by_tests is not None or self.by_simulation is not None


class CannotPlant(Exception):
    """The text to replace does not occur exactly once in the file."""


def plant(mutant: PlantedBug, source: Path) -> None:
    """Insert one bug into a copy of the source."""
    path = source / "podkeeper" / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise CannotPlant(f"{text.count(mutant.before)} places in {mutant.file} match {mutant.before!r}")
    path.write_text(text.replace(mutant.before, mutant.after))


@contextmanager
def planted(mutant: PlantedBug) -> Iterator[Path]:
    """Create a copy of the source with one bug."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "src"
        # Copy compiled files, too. They are valid for all files except the changed one.
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("*.egg-info"))
        plant(mutant, copy)
        yield copy


def run_python(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module with the given source. Kill it after TIMEOUT_SECONDS."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )


# The tests.


def first_failure(source: Path, arguments: list[str]) -> str | None:
    """Return the first test that fails with this source, or None if all pass."""
    try:
        done = run_python(source, "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments)
    except subprocess.TimeoutExpired:
        return None if arguments[0] == "-m" else arguments[0]  # the test that hangs is only known if one was given
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr).strip().splitlines()[-1]


def caught_by_tests(mutant: PlantedBug, copy: Path) -> Catch | None:
    """Return the first test that fails with the mutant and passes without it."""
    started = time.monotonic()
    noticed, hint = first_failure(copy, list(mutant.tests)), ""
    if noticed is None:
        noticed, hint = first_failure(copy, ["-m", "not slow"]), " (list it with the mutant)"
    if (
        noticed is None or first_failure(SOURCE, [noticed]) is not None
    ):  # a test that also fails without the bug does not count
        return None
    return Catch(noticed + hint, time.monotonic() - started)


# The simulation.


def broken_seed(source: Path, mutant: PlantedBug, seeds: list[int]) -> tuple[int, str] | None:
    """Return the first seed that violates an invariant with this source, and the violation."""
    how = ("--hours", HOURS, "--workload", ",".join(mutant.workload), "--faults", ",".join(mutant.faults))
    try:
        done = run_python(source, "tools.sim_catch", *how, *map(str, seeds))
    except subprocess.TimeoutExpired:
        return seeds[0], "the simulation does not end"
    if done.returncode != 0:
        return seeds[0], done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return None if found is None else (found["seed"], found["what"])


def caught_by_simulation(mutant: PlantedBug, copy: Path, others: int) -> Catch | None:
    """Return the first seed that fails with the mutant and passes without it."""
    started = time.monotonic()
    seeds = [] if mutant.seed is None else [mutant.seed]
    seeds += [seed for seed in range(others) if seed not in seeds]
    found = broken_seed(copy, mutant, seeds) if seeds else None
    if found is None or broken_seed(SOURCE, mutant, [found[0]]) is not None:
        return None
    return Catch(f"seed {found[0]} ({found[1]})", time.monotonic() - started)


def simulated_files() -> frozenset[str]:
    """Return the files below src/podkeeper that a simulation imports. It can only catch bugs in these."""
    listing = (
        "import sys, tools.sim_catch as _; [print(getattr(each, '__file__', '')) for each in sys.modules.values()]"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", listing], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    package = SOURCE / "podkeeper"
    files = (Path(line) for line in done.stdout.splitlines() if line)
    return frozenset(str(file.relative_to(package)) for file in files if file.is_relative_to(package))


def judge(mutant: PlantedBug, methods: str, others: int) -> Verdict:
    """Plant one mutant and run the chosen methods."""
    try:
        with planted(mutant) as copy:
            by_tests = caught_by_tests(mutant, copy) if methods != "simulation" else None
            by_simulation = caught_by_simulation(mutant, copy, others) if methods != "tests" else None
            return Verdict(by_tests, by_simulation)
    except CannotPlant as error:
        return Verdict(None, None, str(error))


def shown(verdict: Verdict) -> str:
    if verdict.problem:
        return f"CANNOT BE PLANTED: {verdict.problem}"
    if not verdict.caught:
        return "SURVIVED (no test or seed fails only with this bug)"
    return "; ".join(f"caught by {catch}" for catch in (verdict.by_tests, verdict.by_simulation) if catch)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description="Plant known bugs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--by", choices=("both", "tests", "simulation"), default="both", help="method [default: both]")
    parser.add_argument("--others", type=int, default=OTHER_SEEDS, help="number of other seeds per mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel mutants")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}; known: {', '.join(m.name for m in MUTANTS)}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    verdicts: dict[str, Verdict] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        judged = pool.map(lambda mutant: judge(mutant, options.by, options.others), chosen)
        for number, (mutant, verdict) in enumerate(zip(chosen, judged, strict=True), start=1):
            verdicts[mutant.name] = verdict
            print(f"[{number}/{len(chosen)}] {mutant.name}: {shown(verdict)}", flush=True)
    simulated = simulated_files() if options.by != "tests" else frozenset()
    return summary(verdicts, {mutant.name for mutant in chosen if mutant.file in simulated}, options.by)


def summary(verdicts: dict[str, Verdict], in_simulated_code: Collection[str], methods: str) -> int:
    """Print the result and return the exit status. `in_simulated_code`: mutants that the simulation can catch."""
    survivors = [name for name, verdict in verdicts.items() if not verdict.caught]
    caught = {name for name, verdict in verdicts.items() if verdict.by_simulation is not None}
    print(f"{len(verdicts) - len(survivors)} mutants caught, {len(survivors)} not: {', '.join(survivors) or 'none'}")
    if methods == "tests":
        return 1 if survivors else 0
    possible = set(in_simulated_code) | caught
    print(
        f"the simulation alone caught {len(caught)} of {len(possible)} in code that it runs (expected at least half), "
        f"and of {len(verdicts)} in total"
    )
    return 1 if survivors or len(caught) * 2 < len(possible) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
