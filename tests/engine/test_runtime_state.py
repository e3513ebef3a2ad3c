"""Health of the runtime and its network after each kind of answer."""

import asyncio

import pytest

from podkeeper.engine.runtime_state import CHECK_TIMEOUT_SECONDS, NOT_CHECKED, RuntimeState
from podkeeper.model.errors import RuntimeUnavailable
from podkeeper.model.runtime_calls import RuntimeHealth
from podkeeper.testing.virtual_time import simulate

NO_NETWORK = "the runtime's network is not ready"


class Runtime:
    def __init__(self, *answers: RuntimeHealth | Exception | None) -> None:
        self.answers = list(answers)  # None: no answer

    async def health(self) -> RuntimeHealth:
        match self.answers.pop(0):
            case None:
                await asyncio.sleep(1e9)
                raise AssertionError("unreachable")
            case Exception() as error:
                raise error
            case answer:
                return answer


def checked(*answers: RuntimeHealth | Exception | None) -> tuple[str | None, str | None]:
    async def scenario() -> tuple[str | None, str | None]:
        state = RuntimeState(Runtime(*answers))
        for _ in answers:
            await state.check()
        return state.runtime_error, state.network_error

    return simulate(scenario())[0]


WELL = RuntimeHealth()
CASES: dict[str, tuple[tuple[RuntimeHealth | Exception | None, ...], tuple[str | None, str | None]]] = {
    "before the first check": ((), (NOT_CHECKED, NOT_CHECKED)),
    "healthy": ((WELL,), (None, None)),
    "the network is not ready": ((RuntimeHealth(network_ready=False, message="no CNI"),), (None, "no CNI")),
    "the network is not ready, without a message": ((RuntimeHealth(network_ready=False),), (None, NO_NETWORK)),
    "the runtime is not ready": (
        (RuntimeHealth(runtime_ready=False, message="starting"),),
        ("the runtime is not ready: starting", None),
    ),
    "no connection": (
        (RuntimeUnavailable("cannot connect"),),
        ("the runtime does not answer: cannot connect", NOT_CHECKED),
    ),
    "no answer": ((None,), (f"the runtime does not answer within {CHECK_TIMEOUT_SECONDS:g} s", NOT_CHECKED)),
    "the network stays as it was without an answer": (
        (WELL, RuntimeUnavailable("cannot connect")),
        ("the runtime does not answer: cannot connect", None),
    ),
    "recovered": ((RuntimeUnavailable("cannot connect"), WELL), (None, None)),
}


@pytest.mark.parametrize("answers, expected", CASES.values(), ids=CASES.keys())
def test_errors_after_checks(
    answers: tuple[RuntimeHealth | Exception | None, ...], expected: tuple[str | None, str | None]
) -> None:
    assert checked(*answers) == expected


def test_an_unexpected_error_is_logged_and_counts_as_unhealthy(caplog: pytest.LogCaptureFixture) -> None:
    assert checked(ZeroDivisionError())[0] == "the health check of the runtime failed unexpectedly"
    assert [record.exc_info is not None for record in caplog.records] == [True]
    caplog.clear()


def test_a_check_without_an_answer_ends_after_the_timeout() -> None:
    assert simulate(RuntimeState(Runtime(None)).check())[1] == CHECK_TIMEOUT_SECONDS
