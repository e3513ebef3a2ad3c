"""Mutation testing: insert small bugs and show those that no fast test detects.

    python -m tools.mutation engine/status            all mutants of one module
    python -m tools.mutation rules --sample 300 --seed 1
    python -m tools.mutation engine/status --tests tests/engine/test_status.py    what these tests detect alone

PACKAGE is a package or module below `src/podkeeper`. The first run, and each run after a change of `src` or `tests`,
records which test reaches which block of code. Then each mutant gets the tests that reach it, the quickest and most
specific first, until one fails. `tools.mutation_operators` lists what is mutated and what is not.

Results go to `build/mutation`, line by line. The same command continues a run that was interrupted. The same source,
package, sample and seed give the same mutants. Change neither `src` nor `tests` during a run.
`tools/mutation_equivalent.toml` lists survivors that no test can kill.
"""

import argparse
import ast
import base64
import difflib
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tools.mutation_blocks import Block, write_marked_copies
from tools.mutation_operators import Defaults, Mutant, mutants, normalised, parameter_defaults
from tools.mutation_runner import (
    TOOLS,
    Job,
    Plan,
    Test,
    adopt_orphans,
    end_descendants,
    environment_for,
    write_queue,
)

EQUIVALENT = "tools/mutation_equivalent.toml"
APART = "tests/runtimes/process/"  # these tests fail in a process with threads of a library
BUDGET_SECONDS = 20.0
ELSEWHERE_SHARE = 0.25  # share of the budget for tests that reach a mutant in another process
MOST_FRESH_FILES = 12  # test files for a mutant of module level code
LIMIT_SECONDS = 6.0
SHOW_EVERY_SECONDS = 15.0
RECORDING = ("mutation_blocks.py", "mutation_runner.py")  # inputs of a recording in addition to src and tests
JUDGING = ("mutation_operators.py", "mutation_runner.py")
Verdict = dict[str, Any]
Number = TypeVar("Number", int, float)


class Stopped(Exception):
    """The run cannot continue."""


# Recording: which test reaches which block.


@dataclass(frozen=True, slots=True)
class Reach:
    """Which tests reach which block. Blocks and tests are numbered."""

    blocks: list[Block]
    tests: list[Test]
    breadth: list[int]  # by test: number of blocks that it reaches in any process
    here: list["array[int]"]  # by block: tests that reach it in their own process
    elsewhere: list["array[int]"]  # by block: tests that reach it in another process
    imports: frozenset[int]  # blocks that run when the tests are imported
    left_out: list[str]  # tests that fail without a mutant
    defaults: Defaults


def digest(root: Path, *tools: str) -> str:
    """Return a hash of the source, the tests and some modules of this tool."""
    state = hashlib.sha256()
    paths = [*(TOOLS / "tools" / name for name in tools), *sorted((root / "src").rglob("*.py"))]
    for path in [*paths, *sorted((root / "tests").rglob("*"))]:
        if path.is_file() and path.suffix != ".pyc" and not _is_of_tools(root, path):
            place = path.relative_to(root if path.is_relative_to(root) else TOOLS)
            state.update(f"{place}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


def _is_of_tools(root: Path, path: Path) -> bool:
    """Return whether a test tests the tools, which are not mutated."""
    return path.is_relative_to(root / "tests" / "tools")


def reach(root: Path, build: Path, state: str, workers: int, tests: Sequence[str]) -> Reach:
    """Return the stored recording, or record now. `tests`: files and folders, empty for all. Raise Stopped."""
    files = test_files(root, tests)
    if tests:
        with tempfile.TemporaryDirectory(prefix="mut-") as name:
            return record(root, Path(name, "reach"), workers, files)
    cached = build / f"reach-{state}.pickle"
    if cached.exists():
        known: Reach = pickle.loads(cached.read_bytes())
        return known
    for old in build.glob("reach-*"):
        if state not in old.name:
            old.unlink()
    found = record(root, build / f"reach-{state}", workers, files)
    cached.write_bytes(pickle.dumps(found))
    for part in build.glob(f"reach-{state}-*.jsonl"):
        part.unlink()
    return found


def test_files(root: Path, chosen: Sequence[str]) -> list[str]:
    """Return the test files at these paths, or all. Raise Stopped."""
    found: set[Path] = set()
    for name in chosen or ["tests"]:
        path = root / name
        if not path.exists():
            raise Stopped(f"{name}: no such test file or folder in {root}")
        found |= {path} if path.is_file() else set(path.rglob("test_*.py"))
    return sorted(str(path.relative_to(root)) for path in found if not _is_of_tools(root, path))


def record(root: Path, parts: Path, workers: int, files: list[str]) -> Reach:
    """Run the fast tests once with marked source. `parts` holds an unfinished recording, if any."""
    source = root / "src"
    results = [parts.with_name(f"{parts.name}-{number}.jsonl") for number in range(workers)]
    done = {line["file"] for line in _recorded(parts) if "file" in line}
    started = time.monotonic()
    todo = [file for file in files if file not in done]
    print(f"recording which test reaches what: {len(todo)} test files", flush=True)
    with tempfile.TemporaryDirectory(prefix="mut-") as name:
        os.chmod(name, 0o711)  # containers may run as other users
        scratch = Path(name)
        copies = [scratch / str(number) / "src" for number in range(workers)]
        blocks = write_marked_copies(source, copies)
        (scratch / "files.json").write_text(json.dumps(todo))
        queue = write_queue(scratch / "queue", len(todo))
        running = []
        for copy, result in zip(copies, results, strict=True):
            words = ["record", str(copy), str(result), str(scratch / "files.json"), str(queue)]
            running.append(_start(root, copy, words, queue))
        while any(process.poll() is None for process in running):
            time.sleep(0.2)
            count = sum(result.read_bytes().count(b'{"file":') for result in results if result.exists())
            _show(f"{count}/{len(files)} files, {time.monotonic() - started:.0f} s", tick=True)
        end_descendants()
    lines = _recorded(parts)
    if {line["file"] for line in lines if "file" in line} != set(files):
        raise Stopped("recording ended early: see build/mutation/log.txt, and run the fast tests")
    return _reach_of(blocks, lines, _defaults(source))


def _recorded(parts: Path) -> list[dict[str, Any]]:
    """Return the recorded results of completed test files."""
    lines: list[dict[str, Any]] = []
    for part in sorted(parts.parent.glob(f"{parts.name}-*.jsonl")):
        unfinished: list[dict[str, Any]] = []
        for text in part.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # incomplete line of an interrupted run
            if "test" in line:
                unfinished.append(line)
                continue
            if "file" in line:
                ours = [test for test in unfinished if test["test"].partition("::")[0] == line["file"]]
                lines += {
                    test["test"]: test for test in ours
                }.values()  # the last result of each test, because a file may be started twice
                unfinished = []
            lines.append(line)
    return lines


def _reach_of(blocks: list[Block], lines: list[dict[str, Any]], defaults: Defaults) -> Reach:
    passed = sorted((line for line in lines if line.get("passed")), key=lambda line: str(line["test"]))
    here = [array("I") for _ in blocks]
    elsewhere = [array("I") for _ in blocks]
    breadth = []
    for number, line in enumerate(passed):
        own, others = _marked(line["here"]), _marked(line["elsewhere"])
        breadth.append(len({*own, *others}))
        for block in own:
            here[block].append(number)
        for block in others:
            elsewhere[block].append(number)
    return Reach(
        blocks=blocks,
        tests=[Test(line["test"], line["seconds"], line["cost"]) for line in passed],
        breadth=breadth,
        here=here,
        elsewhere=elsewhere,
        imports=frozenset(block for line in lines if "imports" in line for block in _marked(line["imports"])),
        left_out=sorted(line["test"] for line in lines if line.get("failed")),
        defaults=defaults,
    )


def _marked(packed: str) -> list[int]:
    return [found.start() for found in re.finditer(b"\x01", zlib.decompress(base64.b64decode(packed)))]


def _defaults(source: Path) -> Defaults:
    return parameter_defaults([ast.parse(path.read_bytes()) for path in (source / "podkeeper").rglob("*.py")])


def _start(root: Path, source: Path, words: Sequence[str], queue: int) -> subprocess.Popen[bytes]:
    """Start a runner process that does not receive the terminal's signals."""
    program = [sys.executable, "-m", "tools.mutation_runner", *words]
    with open(root / "build" / "mutation" / "log.txt", "ab") as log:
        return subprocess.Popen(
            program,
            cwd=root,
            env=environment_for(source),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(queue,),
            start_new_session=True,
        )


# Selection of mutants and tests.


def modules_of(source: Path, packages: Iterable[str]) -> list[Path]:
    """Return the modules of these packages. Raise Stopped."""
    found: set[Path] = set()
    for package in packages:
        place = source / "podkeeper" / package.removesuffix(".py")
        module = place.with_suffix(".py")
        if not place.is_dir() and not module.is_file():
            raise Stopped(f"{package}: no such package or module below {source / 'podkeeper'}")
        found |= set(place.rglob("*.py")) if place.is_dir() else {module}
    return sorted(found)


def chosen_mutants(source: Path, packages: Iterable[str], defaults: Defaults, sample: int, seed: int) -> list[Mutant]:
    """Return all mutants (`sample` 0) or a uniform sample."""
    everything: list[Mutant] = []
    texts: dict[str, bytes] = {}
    for path in modules_of(source, packages):
        file = str(path.relative_to(source / "podkeeper"))
        texts[file] = path.read_bytes()
        everything += mutants(file, texts[file], defaults)
    if sample:
        random.Random(seed).shuffle(everything)
    chosen = []
    for mutant in everything:
        try:
            compile(mutant.applied(texts[mutant.file]), mutant.file, "exec", dont_inherit=True)
        except SyntaxError:
            continue
        chosen.append(mutant)
        if len(chosen) == sample:
            break
    return chosen


class Planner:
    """Chooses and orders the tests for each mutant."""

    def __init__(self, found: Reach, budget_seconds: float) -> None:
        self._reach = found
        self._budget = budget_seconds
        self._by_name: dict[str, set[int]] = {}
        self._by_file: dict[str, list[int]] = {}
        for number, block in enumerate(found.blocks):
            self._by_file.setdefault(block.file, []).append(number)
            for name in block.names:
                self._by_name.setdefault(name, set()).add(number)

    def job(self, mutant: Mutant) -> Job:
        """Return the job for a mutant: its tests in order."""
        if not mutant.functions:
            tests, left_out = self._for_module_level(mutant)
            return Job(mutant, (), tuple(tests), left_out)
        block = self._block_of(mutant)
        if block is None:
            return Job(mutant, (), ())
        here, left_out = self._within_budget(self._ordered(self._reach.here[block]))
        # Tests that start the whole program are slow, so they get less time if other tests reach the same block.
        share = ELSEWHERE_SHARE if here else 1.0
        others, left_out_too = self._within_budget(self._ordered(self._reach.elsewhere[block]), share)
        apart = [test for test in here if self._reach.tests[test].file.startswith(APART)]
        together = [test for test in here if not self._reach.tests[test].file.startswith(APART)]
        # Code that runs during the import of the tests runs without a swapped-in mutant.
        again = here if block in self._reach.imports else []
        fresh = tuple(dict.fromkeys([*others, *again]))
        return Job(mutant, tuple(tuple(part) for part in (together, apart) if part), fresh, left_out + left_out_too)

    def _block_of(self, mutant: Mutant) -> int | None:
        """Return the innermost block that contains a mutant."""
        blocks = self._reach.blocks
        found = [n for n in self._by_file.get(mutant.file, []) if blocks[n].holds(mutant.line, mutant.column)]
        return min(found, key=lambda number: blocks[number].size, default=None)

    def _ordered(self, tests: Iterable[int]) -> list[int]:
        """Return tests by cost and specificity. Only some cases of a parametrized test come early."""
        found = self._reach
        by_cost = sorted(tests, key=lambda test: (found.tests[test].cost + 0.001) * found.breadth[test])
        cases: Counter[str] = Counter()
        rank = {}
        for test in by_cost:
            function = found.tests[test].id.partition("[")[0]
            cases[function] += 1
            rank[test] = cases[function].bit_length()
        return sorted(by_cost, key=lambda test: rank[test])

    def _for_module_level(self, mutant: Mutant) -> tuple[list[int], int]:
        """Return tests that reach code with the names that a statement binds, and other tests of the module."""
        found = self._reach
        users = set().union(*(self._by_name.get(name, set()) for name in mutant.names))
        using = {test for block in users for test in (*found.here[block], *found.elsewhere[block])}
        own = self._by_file.get(mutant.file, [])
        of_module = {test for block in own for test in (*found.here[block], *found.elsewhere[block])}
        both = using & of_module
        ranked = [*self._ordered(both), *self._ordered(using - both), *self._ordered(of_module - both)]
        # Fresh processes collect whole files.
        files = list(dict.fromkeys(found.tests[test].file for test in ranked))[:MOST_FRESH_FILES]
        chosen, _ = self._within_budget([test for test in ranked if found.tests[test].file in files])
        return chosen, len(ranked) - len(chosen)

    def _within_budget(self, tests: Sequence[int], share: float = 1.0) -> tuple[list[int], int]:
        chosen: list[int] = []
        spent = 0.0
        for test in tests:
            spent += self._reach.tests[test].cost
            if spent > share * self._budget and chosen:
                break
            chosen.append(test)
        return chosen, len(tests) - len(chosen)


# Results.


@dataclass(frozen=True, slots=True)
class Results:
    """The results file: a header that identifies the run, then one line per mutant."""

    path: Path
    head: dict[str, Any]

    def known(self) -> dict[str, Verdict]:
        """Return the verdicts of an earlier identical run by mutant."""
        try:
            first, *lines = self.path.read_text().splitlines()
        except (OSError, ValueError):
            return {}
        if json.loads(first) != self.head:
            return {}
        verdicts = {}
        for line in lines:
            try:
                verdict = json.loads(line)
            except ValueError:
                continue  # incomplete line of an interrupted run
            verdicts[verdict["id"]] = verdict
        return verdicts

    def resume(self) -> dict[str, Verdict]:
        """Open the file for more lines. Return known verdicts except errors of the tool, which are judged again."""
        verdicts = {id: verdict for id, verdict in self.known().items() if verdict["verdict"] != "error"}
        new = self.path.with_suffix(".new")
        new.write_text("".join(json.dumps(line) + "\n" for line in (self.head, *verdicts.values())))
        new.replace(self.path)
        return verdicts


def equivalents(path: Path) -> dict[tuple[str, str, str, str], str]:
    """Return the survivors that no test can kill, with reasons. Raise Stopped."""
    if not path.exists():
        return {}
    found = {}
    for entry in tomllib.loads(path.read_text()).get("equivalent", []):
        if not entry.get("reason"):
            raise Stopped(f"{path}: {entry['file']}: {entry['before']}: no reason given")
        key = entry["file"], entry["scope"], normalised(entry["before"]), normalised(entry["after"])
        found[key] = entry["reason"]
    return found


def as_entry(mutant: Mutant) -> str:
    """Return a survivor as an entry of the list of equivalents. JSON strings are valid TOML strings."""
    file, scope, before, after = (json.dumps(part, ensure_ascii=False) for part in mutant.key)
    return f'[[equivalent]]\nfile = {file}\nscope = {scope}\nbefore = {before}\nafter = {after}\nreason = ""\n'


def small_diff(mutant: Mutant) -> str:
    """Return the changed lines."""
    lines = difflib.unified_diff(mutant.before.splitlines(), mutant.after.splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def shown(mutant: Mutant, verdict: Verdict) -> str:
    """Return the text for a survivor."""
    what = "no test reaches" if verdict["verdict"] == "unreached" else "SURVIVED"
    more = f", {verdict['left_out']} more tests not tried" if verdict["left_out"] else ""
    head = f"{what} {mutant.file}:{mutant.line} {mutant.scope or 'module level'} ({mutant.operator}{more})"
    return f"{head}\n{small_diff(mutant)}"


def table(chosen: Sequence[Mutant], verdicts: dict[str, Verdict], excused: Iterable[Mutant]) -> Iterator[str]:
    """Return the figures per module and in total."""
    columns = ("mutants", "killed", "timeout", "survived", "unreached", "equivalent", "error")
    counts: dict[str, Counter[str]] = {}
    kinds = {mutant.id: "equivalent" for mutant in excused}
    for mutant in chosen:
        kind = kinds.get(mutant.id) or verdicts.get(mutant.id, {}).get("verdict")
        if kind is not None:
            for row in (mutant.file, "all"):
                counts.setdefault(row, Counter()).update(("mutants", kind))
    width = max(map(len, counts), default=3)
    yield f"{'module':{width}}  {'  '.join(columns)}  score"
    for row in sorted(counts, key=lambda row: (row == "all", row)):
        count = counts[row]
        due = count["mutants"] - count["equivalent"] - count["error"]
        score = f"{100 * (count['killed'] + count['timeout']) / due:4.0f}%" if due else "    -"
        yield f"{row:{width}}  {'  '.join(f'{count[c]:>{len(c)}}' for c in columns)}  {score}"


_last_shown = 0.0


def _show(line: str, *, tick: bool = False) -> None:
    """Print progress. With `tick`, only from time to time."""
    global _last_shown
    if not tick or time.monotonic() - _last_shown >= SHOW_EVERY_SECONDS:
        _last_shown = time.monotonic()
        print(line, flush=True)


def judge(plan: Plan, results: Results, due: Set[str]) -> None:
    """Run the jobs of a plan and show the survivors. `due`: mutants without a verdict."""
    by_id = {job.mutant.id: job.mutant for job in plan.jobs}
    (plan.scratch / "plan").write_bytes(pickle.dumps(plan))
    queue = write_queue(plan.scratch / "queue", len(plan.jobs))
    started = time.monotonic()
    total = len(due)
    seen = due & results.known().keys()
    before = len(seen)
    process = _start(plan.root, plan.source, ["warm", str(plan.scratch / "plan"), str(queue)], queue)
    ended = False
    survivors = 0
    while not ended:
        ended = process.poll() is not None
        if not ended:
            time.sleep(0.3)
        verdicts = results.known()
        for id in due & verdicts.keys() - seen:
            if verdicts[id]["verdict"] in ("survived", "unreached"):
                survivors += 1
                _show(shown(by_id[id], verdicts[id]))
        seen = due & verdicts.keys()
        spent = time.monotonic() - started
        left = f", about {spent / (len(seen) - before) * (total - len(seen)):.0f} s left" if len(seen) > before else ""
        _show(f"{len(seen)}/{total} done, {survivors} survivors, {spent:.0f} s{left}", tick=True)
    if process.returncode or len(seen) < total:
        status = f"workers ended early (status {process.returncode})"
        raise Stopped(f"{status}: see log.txt and errors.txt in build/mutation")


def summary(chosen: Sequence[Mutant], verdicts: dict[str, Verdict], excused: Sequence[Mutant], build: Path) -> bool:
    """Print the results. Return whether the tool itself had no error."""
    spared = {mutant.id for mutant in excused}
    alive = [m for m in chosen if verdicts.get(m.id, {}).get("verdict") in ("survived", "unreached")]
    alive = [mutant for mutant in alive if mutant.id not in spared]
    print(f"\n{len(alive)} survivors:\n")
    for mutant in sorted(alive, key=lambda m: (m.file, m.start)):
        print(shown(mutant, verdicts[mutant.id]))
    (build / "survivors.toml").write_text("\n".join(map(as_entry, alive)))
    print(*table(chosen, verdicts, excused), sep="\n")
    seconds = sorted(verdict["seconds"] for verdict in verdicts.values())
    if seconds:
        cut = sum(bool(verdicts[mutant.id]["left_out"]) for mutant in alive)
        print(f"time for a mutant: median {seconds[len(seconds) // 2]:.1f} s, mean {sum(seconds) / len(seconds):.1f} s")
        print(f"{cut} survivors have more tests, which were skipped because of the budget")
    errors = sum(verdict["verdict"] == "error" for verdict in verdicts.values())
    if errors:
        print(f"{errors} mutants were not judged: see errors.txt in build/mutation")
    return not errors


def _at_least(minimum: Number) -> Callable[[str], Number]:
    kind = type(minimum)

    def read(text: str) -> Number:
        number = kind(text)
        if not number >= minimum:  # not `<`, because of nan
            raise argparse.ArgumentTypeError(f"must be at least {minimum}: {text}")
        return number

    read.__name__ = kind.__name__  # argparse prints it
    return read


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation", description="Find bugs that no fast test notices."
    )
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="package or module below src/podkeeper")
    parser.add_argument("--sample", type=_at_least(0), default=0, help="number of random mutants [default: all]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--jobs", type=_at_least(1), default=os.cpu_count() or 1, help="parallel mutants")
    parser.add_argument("--budget", type=_at_least(0.0), default=BUDGET_SECONDS, help="CPU seconds of tests per mutant")
    parser.add_argument(
        "--limit",
        type=_at_least(0.0),
        default=LIMIT_SECONDS,
        help="seconds per test, plus 5 times its usual time",
    )
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="use only these tests [default: all]")
    parser.add_argument("--again", action="store_true", help="discard the results of an earlier run")
    parser.add_argument("--root", type=Path, default=TOOLS, help="project with src/podkeeper and tests")
    options = parser.parse_args(arguments)
    packages = [package for given in options.packages for package in given.split()]
    root = options.root.resolve()
    build = root / "build" / "mutation"
    build.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        modules_of(root / "src", packages)
        found = reach(root, build, digest(root, *RECORDING), options.jobs, options.tests)
        excused_keys = equivalents(root / EQUIVALENT)
    except (Stopped, KeyboardInterrupt) as error:
        end_descendants()
        print(str(error) or "interrupted")
        return 2
    for test in found.left_out:
        print(f"skipped, because it fails without a mutant: {test}")
    chosen = chosen_mutants(root / "src", packages, found.defaults, options.sample, options.seed)
    excused = [mutant for mutant in chosen if mutant.key in excused_keys]
    due = {mutant.id: mutant for mutant in chosen}
    for mutant in excused:
        due.pop(mutant.id)
    state = digest(root, *JUDGING)
    name = "-".join(package.replace("/", "_") for package in packages)
    results = Results(
        build / f"{name}-{options.sample or 'all'}-{options.seed}{'-some-tests' if options.tests else ''}.jsonl",
        {
            "state": state,
            "packages": packages,
            "sample": options.sample,
            "seed": options.seed,
            "budget": options.budget,
            "limit": options.limit,
            "tests": options.tests,
        },
    )
    if options.again:
        results.path.unlink(missing_ok=True)
    verdicts = results.resume()
    planner = Planner(found, options.budget)
    jobs = [planner.job(mutant) for mutant in due.values() if mutant.id not in verdicts]
    print(f"{len(chosen)} mutants, {len(excused)} judged equivalent, {len(due) - len(jobs)} known", flush=True)
    status = 0
    scratch = Path(tempfile.mkdtemp(prefix="mut-"))
    scratch.chmod(0o711)
    try:
        if jobs:
            plan = Plan(root, results.path, scratch, options.jobs, options.limit, found.tests, jobs)
            judge(plan, results, due.keys())
        if digest(root, *JUDGING) != state:
            results.path.unlink(missing_ok=True)
            raise Stopped("src or tests changed during the run, so its verdicts are invalid: run the command again")
    except (Stopped, KeyboardInterrupt) as error:
        print(str(error) or "interrupted: the same command continues")
        status = 2
    finally:
        end_descendants()
        shutil.rmtree(scratch, ignore_errors=True)
    judged_all = summary(chosen, results.known(), excused, build)
    return status or (0 if judged_all else 2)


if __name__ == "__main__":
    from tools import mutation  # so that pickled classes have one module name

    sys.exit(mutation.main(sys.argv[1:]))
