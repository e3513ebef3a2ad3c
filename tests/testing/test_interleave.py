"""The interleaving and failure tools find what they are made for: races, leaks, missing retries and resets."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from podkeeper.model.errors import Conflict, TryLater
from podkeeper.ports import api, cgroups, journal, prober, runtime, source, volumes
from podkeeper.testing.failures import check_backoff_resets, fail_each_call
from podkeeper.testing.interleave import interleave
from podkeeper.testing.operations import Operation
from podkeeper.testing.port_calls import DOCUMENTED, PortCalls

PORTS = {
    "runtime": (runtime.Runtime, runtime.Stats),
    "api": (api.Api,),
    "volumes": (volumes.Volumes,),
    "cgroups": (cgroups.Cgroups,),
    "journal": (journal.Journal,),
    "prober": (prober.Prober,),
    "source": (source.Source,),
}
PLAIN = {
    ("volumes", "mounted_pods"),
    ("journal", "load"),
    ("journal", "put"),
    ("journal", "drop"),
    ("journal", "purge"),
}


class Bank:
    """A port with two awaits per transfer."""

    def __init__(self) -> None:
        self.stored = 0

    async def load(self) -> int:
        return self.stored

    async def save(self, amount: int) -> None:
        self.stored = amount


BANK_ERRORS = {"load": (TryLater,), "save": (TryLater,)}


class Account:
    """A module with a choice of bugs."""

    def __init__(self, bank: Bank, bug: str) -> None:
        self._bank = bank
        self._bug = bug
        self._lock = asyncio.Lock()
        self.open_transfers = 0
        self.pause = 1.0
        self.closed = False

    async def add(self, amount: int) -> None:
        if self._bug == "race":
            await self._bank.save(await self._bank.load() + amount)
            return
        async with self._lock:
            self.open_transfers += 1
            try:
                balance = await self._bank.load()
                if self._bug == "deaf":
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        balance += 0
                await self._bank.save(balance + amount)
            except TryLater:
                if self._bug != "leak":
                    self.open_transfers -= 1
                raise
            except asyncio.CancelledError:
                self.open_transfers -= 1
                raise
            else:
                self.open_transfers -= 1

    async def save_until_it_works(self, amount: int) -> None:
        while True:
            try:
                await self._bank.save(amount)
            except TryLater:
                await asyncio.sleep(self.pause)
                self.pause *= 2
            else:
                if self._bug != "no reset":
                    self.pause = 1.0
                return


@dataclass
class Stage:
    bank: Bank
    account: Account
    done: list[int] = field(default_factory=list)


def operation(bug: str, run: Callable[[Stage], Awaitable[object]]) -> Operation[Stage]:
    @asynccontextmanager
    async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
        bank = Bank()
        yield Stage(bank, Account(calls.watch("bank", bank, BANK_ERRORS), bug))

    def nothing_is_open(stage: Stage) -> None:
        assert stage.account.open_transfers == 0

    return Operation(stage=stage, run=run, state=lambda stage: stage.bank.stored, check=nothing_is_open)


def adding(bug: str = "") -> Operation[Stage]:
    return operation(bug, lambda stage: stage.account.add(5))


def test_a_sound_module_passes_at_every_await() -> None:
    explored = interleave(adding(), {"another addition": lambda stage: stage.account.add(7)}, depth=2, cancel=False)
    assert explored.places >= 4
    assert explored.runs == 2 * (explored.places + explored.places * (explored.places + 1) // 2)


def test_a_lost_update_is_found_and_its_await_is_named() -> None:
    with pytest.raises(
        AssertionError, match=r"'another addition' at await 2 of 7 \(.*Account.add\), overtaking it:\n *ends as"
    ):
        interleave(adding("race"), {"another addition": lambda stage: stage.account.add(7)}, cancel=False)


def test_an_operation_that_ignores_its_cancellation_is_found() -> None:
    with pytest.raises(AssertionError, match="was cancelled and went on"):
        interleave(adding("deaf"), {})


def test_a_deadlock_is_found() -> None:
    async def wait_for_ever(stage: Stage) -> None:
        while not stage.account.closed:
            await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="not finished after 3600 virtual seconds"):
        interleave(operation("", wait_for_ever), {}, cancel=False)


def test_a_hot_loop_is_found() -> None:
    async def spin(stage: Stage) -> None:
        while not stage.account.closed:
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="hot loop"):
        interleave(operation("", spin), {}, cancel=False)


def test_an_event_that_raises_a_bug_is_reported() -> None:
    def fail(_: Stage) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        interleave(adding(), {"a bug": fail}, cancel=False)


def test_an_error_in_a_callback_is_reported() -> None:
    async def call_later(stage: Stage) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // stage.bank.stored)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        interleave(operation("", call_later), {"money arrives": lambda stage: stage.account.add(7)}, cancel=False)


def test_an_error_in_a_callback_of_what_runs_afterwards_is_reported() -> None:
    async def call_later(_: Stage) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        interleave(replace(adding(), afterwards=call_later), {}, cancel=False)


def test_an_error_is_reported_as_what_it_is() -> None:
    async def time_out(_: Stage) -> None:
        raise TimeoutError("no answer")

    async def refuse(_: Stage) -> None:
        raise TryLater("busy")

    with pytest.raises(AssertionError, match="unexpected TimeoutError: no answer"):
        interleave(operation("", time_out), {}, cancel=False)
    with pytest.raises(AssertionError, match="still failing after 20 retries: TryLater: busy"):
        interleave(operation("", refuse), {}, cancel=False)
    with pytest.raises(AssertionError, match="unexpected TryLater: busy"):
        interleave(replace(adding(), afterwards=refuse), {}, cancel=False)


def test_of_two_events_each_is_reported_with_its_await() -> None:
    def look(stage: Stage) -> None:
        stage.done.append(stage.account.open_transfers)

    def the_second_saw_no_transfer(stage: Stage) -> None:
        assert stage.done != [0, 1]

    looked_at = replace(adding(), check=the_second_saw_no_transfer)
    places = r"'a look' at await 0 of \d+ \(the start\), then 'a look' at await \d+ of \d+ \(.*Account.add\)"
    with pytest.raises(AssertionError, match=places):
        interleave(looked_at, {"a look": look}, depth=2, cancel=False)


def test_an_exception_for_a_call_that_nobody_watches_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"leave_out names bank\.laod, which is not watched"):
        fail_each_call(adding(), leave_out=[("bank", "laod", TryLater)])


def test_an_exception_for_an_error_that_a_call_never_raises_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"leave_out names Conflict, which bank\.load never raises"):
        fail_each_call(adding(), leave_out=[("bank", "load", Conflict)])


def test_a_port_without_documented_errors_needs_them() -> None:
    with pytest.raises(ValueError, match="no errors are documented for 'bank'"):
        PortCalls().watch("bank", Bank())


def test_a_method_that_the_port_does_not_have_is_refused() -> None:
    with pytest.raises(AttributeError, match="bank has no method 'svae'"):
        PortCalls().watch("bank", Bank(), {"svae": (TryLater,)})


def test_a_case_without_runs_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"no run was made: \d+ awaits, 0 events, cancel=False"):
        interleave(adding(), {}, cancel=False)
    with pytest.raises(ValueError, match="depth must be at least 1, not 0"):
        interleave(adding(), {"another addition": lambda stage: stage.account.add(7)}, depth=0)


def test_a_sequential_order_that_fails_is_shown() -> None:
    def oops(stage: Stage) -> None:
        raise ValueError("oops")

    order = re.escape("('odd', then the operation): the event raised ValueError: oops")
    with pytest.raises(AssertionError, match=f"a sequential order failed {order}"):
        interleave(adding(), {"fine": lambda stage: None, "odd": oops}, cancel=False)


def test_an_operation_that_hangs_is_shown_with_the_line_where_it_waits() -> None:
    with pytest.raises(AssertionError, match=r"not finished .*: the operation at .*test_interleave.*:\d+ in .*hang"):
        interleave(operation("", hang), {})


async def hang(stage: Stage) -> None:
    await asyncio.Event().wait()


def test_what_a_plain_event_returns_does_not_matter() -> None:
    explored = interleave(adding(), {"an entry": lambda stage: stage.__dict__.setdefault("more", 3)}, cancel=False)
    assert explored.runs == explored.places


def test_only_the_calls_of_the_operation_fail() -> None:
    @asynccontextmanager
    async def stage(calls: PortCalls) -> AsyncIterator[Stage]:
        bank = calls.watch("bank", Bank(), BANK_ERRORS)
        await bank.save(1)
        yield Stage(bank, Account(bank, ""))

    async def add_again(stage: Stage) -> None:
        await stage.account.add(7)

    adding = Operation(
        stage=stage,
        run=lambda stage: stage.account.save_until_it_works(5),
        state=lambda stage: stage.bank.stored,
        afterwards=add_again,
    )
    assert fail_each_call(adding).places == 1


def test_every_call_fails_with_every_error_on_both_sides() -> None:
    explored = fail_each_call(operation("", lambda stage: stage.account.save_until_it_works(5)), unexpected=False)
    assert (explored.places, explored.runs) == (1, 2)
    assert fail_each_call(adding(), unexpected=False, lost_answers=False).runs == 2


def test_a_lost_answer_is_not_a_failure_without_effect() -> None:
    with pytest.raises(AssertionError, match=r"bank.save \(call 1\) raises TryLater after its effect:\n.*ends as 10"):
        fail_each_call(adding(), unexpected=False)


def test_a_missing_clean_up_is_found() -> None:
    with pytest.raises(AssertionError, match=r"bank.load \(call 1\) raises TryLater without effect"):
        fail_each_call(adding("leak"), unexpected=False, lost_answers=False)


def test_an_operation_without_calls_to_a_watched_port_is_refused() -> None:
    with pytest.raises(AssertionError, match="no call to a watched port"):
        fail_each_call(operation("", lambda stage: asyncio.sleep(0)))


@pytest.mark.parametrize("bug", ["", "no reset"])
def test_a_backoff_that_is_not_reset_is_found(bug: str) -> None:
    saving = operation(bug, lambda stage: stage.account.save_until_it_works(5))

    def pauses() -> list[float]:
        return check_backoff_resets(
            saving, "bank", "save", TryLater, lambda stage: stage.account.save_until_it_works(6)
        )

    if bug:
        with pytest.raises(AssertionError, match="after a success the pause is 16 s, expected 1 s"):
            pauses()
    else:
        assert pauses() == [1, 2, 4, 8]


@pytest.mark.parametrize("port", PORTS)
def test_every_method_of_a_port_has_its_documented_errors(port: str) -> None:
    methods = {
        name
        for protocol in PORTS[port]
        for name, _ in inspect.getmembers(protocol, inspect.isfunction)
        if not name.startswith("_") and (port, name) not in PLAIN
    }
    assert methods == DOCUMENTED[port].keys()
