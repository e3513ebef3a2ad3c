"""A problem is logged when it begins and when it changes."""

import logging

import pytest

from podkeeper.concurrency.once import LogOnce

log = logging.getLogger("tests.once")


@pytest.fixture
def problems(caplog: pytest.LogCaptureFixture) -> LogOnce[str]:
    caplog.set_level(logging.DEBUG, "tests.once")
    return LogOnce(log)


def shown(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_lasting_problem_is_logged_once(problems: LogOnce[str], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        problems.problem("disk", "cannot write: %s", "full")
    assert shown(caplog) == [("WARNING", "cannot write: full"), ("DEBUG", "cannot write: full")]


def test_another_text_and_another_subject_are_logged(problems: LogOnce[str], caplog: pytest.LogCaptureFixture) -> None:
    problems.problem("disk", "cannot write: %s", "full")
    problems.problem("disk", "cannot write: %s", "read-only")
    problems.problem("net", "cannot write: %s", "read-only")
    assert [level for level, _ in shown(caplog)] == ["WARNING"] * 3


def test_only_the_first_problem_of_a_subject_is_logged(
    problems: LogOnce[str], caplog: pytest.LogCaptureFixture
) -> None:
    for seconds in (10, 20):
        problems.first("disk", "slow: %d s", seconds)
    problems.first("net", "slow: %d s", 20)
    assert problems.solved("disk")
    problems.first("disk", "slow: %d s", 30)
    expected = [
        ("WARNING", "slow: 10 s"),
        ("DEBUG", "slow: 20 s"),
        ("WARNING", "slow: 20 s"),
        ("WARNING", "slow: 30 s"),
    ]
    assert shown(caplog) == expected


def test_a_solved_problem_is_logged_when_it_returns(problems: LogOnce[str], caplog: pytest.LogCaptureFixture) -> None:
    assert not problems.solved("disk")
    problems.problem("disk", "100% full")
    assert problems.solved("disk")
    problems.problem("disk", "100% full")
    assert shown(caplog) == [("WARNING", "100% full")] * 2


def test_a_problem_is_not_logged_again_after_another_text_of_its_subject(
    problems: LogOnce[str], caplog: pytest.LogCaptureFixture
) -> None:
    problems.problem("disk", "full")
    problems.first("disk", "slow: %d s", 10)
    problems.problem("disk", "full")
    assert [level for level, _ in shown(caplog)] == ["WARNING", "DEBUG", "DEBUG"]


@pytest.mark.parametrize("kept", [{"disk"}, lambda subject: subject == "disk"], ids=["names", "predicate"])
def test_other_subjects_are_forgotten(problems: LogOnce[str], caplog: pytest.LogCaptureFixture, kept: object) -> None:
    problems.problem("disk", "full")
    problems.problem("net", "down")
    problems.keep_only(kept)  # type: ignore[arg-type]  # both forms are allowed
    problems.problem("disk", "full")
    problems.problem("net", "down")
    assert shown(caplog)[2:] == [("DEBUG", "full"), ("WARNING", "down")]
