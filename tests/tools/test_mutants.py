"""The planted bugs can be planted, and the result counts only bugs that the simulation can catch."""

import pytest

from tools.mutant_list import MUTANTS, PlantedBug
from tools.mutants import ROOT, SOURCE, Catch, Verdict, simulated_files, summary

TEST, SEED = Catch("a test", 1.0), Catch("a seed", 1.0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_each_mutant_changes_one_place_and_names_tests_that_exist(mutant: PlantedBug) -> None:
    assert (SOURCE / "podkeeper" / mutant.file).read_text().count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


def test_mutants_have_unique_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_simulation_runs_the_engine_and_no_real_runtime_disk_or_server() -> None:
    simulated = simulated_files()
    assert {"engine/syncer.py", "rules/container/restart.py", "app/build.py", "sources/apiserver.py"} <= simulated
    real = ("runtimes/process/", "runtimes/cri/", "volumes/", "journal/", "host/", "sources/file.py", "sources/http.py")
    assert [file for file in sorted(simulated) if file.startswith(real) and not file.endswith("__init__.py")] == []


SUMMARIES = {
    "all caught, half by the simulation": ({"a": Verdict(TEST, SEED), "b": Verdict(TEST, None)}, {"a", "b"}, 0),
    "code that the simulation does not run does not count": (
        {"a": Verdict(TEST, SEED), "b": Verdict(TEST, None), "c": Verdict(TEST, None)},
        {"a", "b"},
        0,
    ),
    "less than half by the simulation": (
        {"a": Verdict(TEST, SEED), "b": Verdict(TEST, None), "c": Verdict(TEST, None)},
        {"a", "b", "c"},
        1,
    ),
    "one mutant survived": ({"a": Verdict(TEST, SEED), "b": Verdict(None, None)}, {"a"}, 1),
}


@pytest.mark.parametrize("verdicts, in_simulated_code, status", SUMMARIES.values(), ids=SUMMARIES.keys())
def test_the_exit_status(verdicts: dict[str, Verdict], in_simulated_code: set[str], status: int) -> None:
    assert summary(verdicts, in_simulated_code, "both") == status
