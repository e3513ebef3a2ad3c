"""Plant known small bugs, one by one, and show what catches each: `python -m tools.mutants [NAME...]`.

A suite that stays green over a planted bug proves nothing. Each mutant is one replacement in one file of a copy of the
source. Two hunters go after it, each on its own:

* the tests: first those named with the mutant, then all fast ones;
* the simulation: the seed named with the mutant, then the first one or more, one virtual hour each.

A catch counts only if the same test, or the same seed, passes without the bug. A mutant that neither catches fails the
run, and so does one that can no longer be planted. The run also fails if the simulation catches less than half of the
mutants in code that it runs. It cannot catch a bug in a module that it never imports, such as a real runtime or the
journal on disk.
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

from tools.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
HOURS = "1"
OTHER_SEEDS = 1  # tried after the mutant's own
PATIENCE_SECONDS = 180.0  # a planted bug may make a play endless


@dataclass(frozen=True, slots=True)
class Catch:
    """What caught a mutant, and how fast."""

    by: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.by} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    by_tests: Catch | None
    by_simulation: Catch | None
    trouble: str = ""  # why it could not be judged

    @property
    def caught(self) -> bool:
        """Whether anybody noticed."""
        return self.by_tests is not None or self.by_simulation is not None


class CannotPlant(Exception):
    """The text a mutant replaces is not (or not once) in its file."""


def plant(mutant: Mutant, source: Path) -> None:
    """Put one bug into a copy of the source."""
    path = source / "podkeeper" / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise CannotPlant(f"{text.count(mutant.before)} places in {mutant.file} read {mutant.before!r}")
    path.write_text(text.replace(mutant.before, mutant.after))


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """A copy of the source with one bug in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "src"
        # What is compiled comes along: it holds for all files but the one that is changed.
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("*.egg-info"))
        plant(mutant, copy)
        yield copy


def run_python(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module against some source; killed when it takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


# The tests.


def first_failure(source: Path, arguments: list[str]) -> str | None:
    """The first test that fails against this source, None when all pass."""
    try:
        done = run_python(source, "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments)
    except subprocess.TimeoutExpired:
        return None if arguments[0] == "-m" else arguments[0]  # which test hangs is not known, unless one was named
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr).strip().splitlines()[-1]


def caught_by_tests(mutant: Mutant, copy: Path) -> Catch | None:
    """Look for a test that notices."""
    started = time.monotonic()
    noticed, hint = first_failure(copy, list(mutant.tests)), ""
    if noticed is None:
        noticed, hint = first_failure(copy, ["-m", "not slow"]), " (name it with the mutant: this took long)"
    if noticed is None or first_failure(SOURCE, [noticed]) is not None:  # a test that fails anyway noticed nothing
        return None
    return Catch(noticed + hint, time.monotonic() - started)


# The simulation.


def broken_seed(source: Path, mutant: Mutant, seeds: list[int]) -> tuple[int, str] | None:
    """The first of the seeds in which a promise breaks against this source, and which."""
    how = ("--hours", HOURS, "--workload", ",".join(mutant.workload), "--faults", ",".join(mutant.faults))
    try:
        done = run_python(source, "tools.sim_catch", *how, *map(str, seeds))
    except subprocess.TimeoutExpired:
        return seeds[0], "the play never ends"
    if done.returncode != 0:
        return seeds[0], done.stderr.strip().splitlines()[-1]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return None if found is None else (found["seed"], found["what"])


def caught_by_simulation(mutant: Mutant, copy: Path, others: int) -> Catch | None:
    """Look for a seed that notices."""
    started = time.monotonic()
    seeds = [] if mutant.seed is None else [mutant.seed]
    seeds += [seed for seed in range(others) if seed not in seeds]
    found = broken_seed(copy, mutant, seeds) if seeds else None
    if found is None or broken_seed(SOURCE, mutant, [found[0]]) is not None:
        return None
    return Catch(f"seed {found[0]} ({found[1]})", time.monotonic() - started)


def simulated_files() -> frozenset[str]:
    """The files below src/podkeeper that a simulation imports. It can catch bugs in no others."""
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


def judge(mutant: Mutant, hunters: str, others: int) -> Verdict:
    """Plant one mutant and look for whoever notices."""
    try:
        with planted(mutant) as copy:
            by_tests = caught_by_tests(mutant, copy) if hunters != "simulation" else None
            by_simulation = caught_by_simulation(mutant, copy, others) if hunters != "tests" else None
            return Verdict(by_tests, by_simulation)
    except CannotPlant as error:
        return Verdict(None, None, str(error))


def shown(verdict: Verdict) -> str:
    """A verdict in words."""
    if verdict.trouble:
        return f"CANNOT BE PLANTED: {verdict.trouble}"
    if not verdict.caught:
        return "SURVIVED (or what fails, fails without it too)"
    return "; ".join(f"caught by {catch}" for catch in (verdict.by_tests, verdict.by_simulation) if catch)


def main(arguments: list[str]) -> int:
    """Judge all mutants, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description="Plant bugs; show who catches them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--by", choices=("both", "tests", "simulation"), default="both", help="who hunts")
    parser.add_argument("--others", type=int, default=OTHER_SEEDS, help="how many seeds besides the mutant's own")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
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


def summary(verdicts: dict[str, Verdict], in_simulated_code: Collection[str], hunters: str) -> int:
    """Print the result. Returns the exit status. `in_simulated_code`: the mutants that the simulation can catch."""
    survivors = [name for name, verdict in verdicts.items() if not verdict.caught]
    caught = {name for name, verdict in verdicts.items() if verdict.by_simulation is not None}
    print(f"{len(verdicts) - len(survivors)} mutants caught, {len(survivors)} not: {', '.join(survivors) or 'none'}")
    if hunters == "tests":
        return 1 if survivors else 0
    possible = set(in_simulated_code) | caught
    print(
        f"the simulation alone caught {len(caught)} of {len(possible)} in code that it runs (at least half are due), "
        f"and of {len(verdicts)} in all"
    )
    return 1 if survivors or len(caught) * 2 < len(possible) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
