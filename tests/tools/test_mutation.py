"""Mutation testing of a tiny project, and the mutants of single statements."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutation import Results, Verdict, as_entry, chosen_mutants, equivalents, summary
from tools.mutation_operators import Mutant, mutants, normalised, parameter_defaults

REPOSITORY = Path(__file__).resolve().parent.parent.parent

SOURCE = '''\
"""Known mutants."""

import asyncio
import subprocess
import sys


def is_small(number):
    return number < LIMIT


def is_positive(number):
    return number > 0


def countdown(number):
    for _ in iter(lambda: number > 0, False):
        number -= 1


class Counter:
    def __init__(self):
        self.busy = False

    async def take(self):
        self.busy = True
        await asyncio.sleep(0)
        self.busy = False


def unreached(numbers):
    numbers.clear()


def print_seven():
    print(7)


def output():
    program = "from podkeeper.sums import print_seven; print_seven()"
    return subprocess.run([sys.executable, "-c", program], stdout=-1).stdout


# Last, because a worker must be able to start with a mutant that needs no fresh process.
LIMIT = 3
'''

TESTS = """\
import asyncio

from podkeeper.sums import Counter, output, countdown, is_positive, is_small


def test_small():
    assert is_small(2)
    assert not is_small(3)


def test_positive():
    assert is_positive(5)


def test_countdown():
    countdown(3)


def test_take():
    async def scenario():
        counter = Counter()
        task = asyncio.ensure_future(counter.take())
        await asyncio.sleep(0)
        assert counter.busy
        await task

    asyncio.run(scenario())


def test_requested():
    assert output() == b"7\\n"
"""

VERDICTS = {
    "return number <= LIMIT": "killed",
    "return number >= 0": "survived",
    "number += 1": "timeout",
    "LIMIT = 4": "killed",  # at module level: needs a fresh process
    "print(8)": "killed",  # in another process: needs the mutant on disk
    "await asyncio.sleep(0) self.busy = True": "killed",
    "self.busy = False await asyncio.sleep(0)": "killed",
    "numbers.clear() -> pass": "unreached",
}


def all_mutants(source: str, others: str = "") -> list[Mutant]:
    return mutants("sums.py", source.encode(), parameter_defaults([ast.parse(source), ast.parse(others)]))


def changed(mutant: Mutant) -> str:
    after = normalised(mutant.after)
    return f"{normalised(mutant.before)} -> pass" if after == "pass" else after


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tools.mutation", "--root", str(project), "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter namespaces without changing its user")
def test_a_mutant_changes_no_process_mount_or_temporary_file_of_the_machine(tmp_path: Path) -> None:
    for name in ("mounted", "kept"):
        (tmp_path / name).mkdir()
    program = f"""
import os, subprocess
from pathlib import Path
from tools.mutation_runner import enter_cell
enter_cell(Path({str(tmp_path)!r}))
subprocess.run(["mount", "-t", "tmpfs", "none", {str(tmp_path / "mounted")!r}], check=True)
for name in ({str(tmp_path / "mounted" / "file")!r}, {str(tmp_path / "kept" / "file")!r}, "/tmp/podkeeper-left-behind"):
    open(name, "w").close()
print(os.getpid(), sorted(name for name in os.listdir("/proc") if name.isdecimal()))
raise SystemExit(7)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("2 ['1', '2']\n", 7), ended.stderr
    assert list((tmp_path / "mounted").iterdir()) == []
    assert list((tmp_path / "kept").iterdir()) == [tmp_path / "kept" / "file"]
    assert not Path("/tmp/podkeeper-left-behind").exists()


@pytest.mark.parametrize(
    "option, number, why",
    [
        ("--sample", "-3", "must be at least 0: -3"),
        ("--sample", "1.5", "invalid int value: '1.5'"),
        ("--jobs", "0", "must be at least 1: 0"),
        ("--budget", "-3", "must be at least 0.0: -3"),
        ("--limit", "nan", "must be at least 0.0: nan"),
    ],
)
def test_a_number_out_of_range_is_rejected(option: str, number: str, why: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "sums", option, number)
    assert ended.returncode == 2
    assert f"argument {option}: {why}" in ended.stderr


def verdict(id: str, kind: str) -> Verdict:
    return {"id": id, "verdict": kind, "by": None, "seconds": 0.1, "left_out": 0}


def test_a_run_continues_with_the_verdicts_that_it_has_and_without_errors(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", {"seed": 1})
    assert results.resume() == {}
    with results.path.open("a") as file:
        for line in (verdict("a", "killed"), verdict("b", "error"), verdict("c", "error"), verdict("c", "survived")):
            file.write(json.dumps(line) + "\n")
        file.write('{"id": "d", "verd')  # interrupted
    known = {"a": verdict("a", "killed"), "c": verdict("c", "survived")}
    assert results.resume() == known
    with results.path.open("a") as file:
        file.write(json.dumps(verdict("d", "killed")) + "\n")
    assert results.known() == {**known, "d": verdict("d", "killed")}
    assert Results(results.path, {"seed": 2}).resume() == {}
    assert results.resume() == {}


def test_a_run_fails_if_mutants_have_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second, *_ = chosen = all_mutants(SOURCE)
    judged = {first.id: verdict(first.id, "error"), second.id: verdict(second.id, "killed")}
    assert not summary(chosen, judged, (), tmp_path)
    assert "1 mutants were not judged: see errors.txt in build/mutation" in capsys.readouterr().out
    del judged[first.id]
    assert summary(chosen, judged, (), tmp_path)
    assert "not judged" not in capsys.readouterr().out


@pytest.mark.slow
def test_each_mutant_of_a_tiny_project_gets_its_verdict(tmp_path: Path) -> None:
    for place in ("src/podkeeper", "tests", "tools"):
        (tmp_path / place).mkdir(parents=True)
    for package in ("src/podkeeper", "tests"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "src/podkeeper/sums.py").write_text(SOURCE)
    (tmp_path / "tests/test_sums.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow: not fast"]\n')
    by_change = {changed(mutant): mutant for mutant in all_mutants(SOURCE)}
    # All others are listed as equivalent, so that no tests run for them.
    others = [mutant for mutant in all_mutants(SOURCE) if changed(mutant) not in VERDICTS]
    listed = "\n".join(as_entry(mutant).replace('reason = ""', 'reason = "not tried here"') for mutant in others)
    (tmp_path / "tools/mutation_equivalent.toml").write_text(listed)

    first = run(tmp_path, "sums", "--limit", "1")

    assert first.returncode == 0, first.stdout + first.stderr
    (results,) = (tmp_path / "build/mutation").glob("sums-*.jsonl")
    verdicts = {line["id"]: line["verdict"] for line in map(json.loads, results.read_text().splitlines()[1:])}
    assert {change: verdicts[by_change[change].id] for change in VERDICTS} == VERDICTS
    assert len(verdicts) == len(VERDICTS)
    # One verdict is an error of the tool and one is cut off: the same command judges these two mutants alone.
    *lines, error, cut_off = results.read_text().splitlines(keepends=True)
    error = json.dumps({**json.loads(error), "verdict": "error"}) + "\n"
    results.write_text("".join([*lines, error, cut_off[:20]]))
    second = run(tmp_path, "sums", "--limit", "1")
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"{len(VERDICTS) - 2} known" in second.stdout
    assert second.stdout.splitlines()[-4:-2] == first.stdout.splitlines()[-4:-2]


def test_a_sample_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    (tmp_path / "podkeeper").mkdir()
    (tmp_path / "podkeeper/sums.py").write_text(SOURCE)
    samples = [chosen_mutants(tmp_path, ["sums"], {}, 5, seed) for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    assert len(samples[0]) == 5


def test_a_survivor_is_recognised_as_equivalent_after_changes_elsewhere(tmp_path: Path) -> None:
    (survivor,) = [mutant for mutant in all_mutants(SOURCE) if changed(mutant) == "return number >= 0"]
    listed = tmp_path / "equivalent.toml"
    listed.write_text(as_entry(survivor).replace('reason = ""', 'reason = "zero is never passed"'))
    moved = all_mutants("import os\n" + SOURCE)
    assert [changed(mutant) for mutant in moved if mutant.key in equivalents(listed)] == ["return number >= 0"]


OPERATORS = {
    "if a < b:\n    go()": ["if a <= b:", "if True:", "if False:", "go() -> pass"],
    "if a is None or b:\n    go()": [
        "if a is not None or b:",
        "if (a is None and b):",
        "if (b):",
        "if (a is None):",
        "if True:",
        "if False:",
        "go() -> pass",
    ],
    "log.info('gone', 3)": [],
    "raise Gone(f'{a} + {b}')": ["raise Gone(f'{a} + {b}') -> pass"],
    "self.a = max(self.a, b)": ["self.a = max(self.a, b) -> pass", "self.a = min(self.a, b)"],
    "return a == 'x'": ["return None", "return a != 'x'", "return a == 'x~'"],
    "a -= 2": ["a -= 2 -> pass", "a += 2", "a -= 3", "a -= 0"],
    "for a in list(b):\n    go(a)": ["for a in b:", "go(a) -> pass"],
    "made(b, known=1, needed=c)": [
        "made(b, known=1, needed=c) -> pass",
        "made(b, needed=c)",
        "made(b, known=2, needed=c)",
    ],
    "x = replace(a, b=c)": ["x = replace(a)"],
    "async with lock:\n    a = await b": ["if True:"],
    "self.a = b\nawait c()": ["self.a = b -> pass", "await c() -> pass", "await c() self.a = b"],
    "a = await b()\nself.a = a": ["self.a = a -> pass"],  # the second needs the first
    "try:\n    go()\nexcept E:\n    a.undo()\nfinally:\n    b.close()": [
        "go() -> pass",
        "a.undo() -> pass",
        "raise",
        "b.close() -> pass",
    ],
    "match a:\n    case A() | B() if c:\n        go()\n    case never:\n        assert_never(never)": [
        "case _ if False:",
        "case A() if c:",
        "case B() if c:",
        "case A() | B() if True:",
        "go() -> pass",
    ],
}


@pytest.mark.parametrize("statements, expected", OPERATORS.items(), ids=OPERATORS.keys())
def test_mutants_of_a_statement(statements: str, expected: list[str]) -> None:
    source = "async def f(self, a, b, c):\n    " + statements.replace("\n", "\n    ") + "\n"
    found = all_mutants(source, "def made(b, *, known=0, needed): ...")
    assert sorted({changed(mutant) for mutant in found}) == sorted(expected)


def test_signatures_annotations_and_protocols_are_not_mutated() -> None:
    source = """
class Port(Protocol):
    def f(self, a: int = 3) -> bool:
        return True

class Name:
    def __repr__(self) -> str:
        return str(self.a + 1)

    def f(self, a: "int | None") -> None:
        b: list[int] | None
        assert a == 3
"""
    assert all_mutants(source) == []
