"""Plant known small bugs, one by one, and show which test catches each: `python -m tools.mutants [NAME...]`.

A suite that stays green over a planted bug proves nothing. Each mutant is one replacement in one
file of a copy of the source; the tests named with it run against that copy first, then all fast
tests. A catch counts only if the same test passes without the bug. One that nobody catches fails
the run, and so does one that can no longer be planted.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    caught_by: str | None
    seconds: float


class CannotPlant(Exception):
    """The text a mutant replaces is not (or not once) in its file."""


def plant(mutant: Mutant, source: Path) -> None:
    """Put one bug into a copy of the source."""
    path = source / "podkeeper" / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise CannotPlant(f"{mutant.name}: {text.count(mutant.before)} places in {mutant.file} read {mutant.before!r}")
    path.write_text(text.replace(mutant.before, mutant.after))


def first_failure(source: Path, arguments: list[str]) -> str | None:
    """The first test that fails against this source, None when all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else done.stdout.strip().splitlines()[-1]


def judge(mutant: Mutant) -> Verdict:
    """Plant one mutant and look for a test that notices."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        plant(mutant, copy)
        caught_by = first_failure(copy, list(mutant.tests)) or first_failure(copy, ["-m", "not slow"])
    if caught_by is not None and first_failure(SOURCE, [caught_by]) is not None:
        caught_by = None  # that test fails anyway: it has not noticed anything
    return Verdict(caught_by, time.monotonic() - started)


def main(arguments: list[str]) -> int:
    """Judge all mutants, or those named."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description="Plant bugs; show who catches them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}; known: {', '.join(m.name for m in MUTANTS)}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    survivors = []
    for number, mutant in enumerate(chosen, start=1):
        try:
            verdict = judge(mutant)
        except CannotPlant as error:
            print(f"[{number}/{len(chosen)}] CANNOT PLANT {error}", flush=True)
            survivors.append(mutant.name)
            continue
        outcome = f"caught by {verdict.caught_by}" if verdict.caught_by else "SURVIVED (or a test fails without it)"
        print(f"[{number}/{len(chosen)}] {mutant.name}: {outcome} in {verdict.seconds:.1f} s", flush=True)
        if not verdict.caught_by:
            survivors.append(mutant.name)
    print(
        f"{len(chosen) - len(survivors)} mutants caught, {len(survivors)} not" + (f": {survivors}" if survivors else "")
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
