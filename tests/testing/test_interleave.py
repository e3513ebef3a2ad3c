"""`interleave` and `fail_each_call` find races, leaks, missing retries and missing resets."""

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
from podkeeper.testing.operations import OperationTest
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
                if self._bug == "swallows cancellation":
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
class Subject:
    bank: Bank
    account: Account
    done: list[int] = field(default_factory=list)


def operation(bug: str, run: Callable[[Subject], Awaitable[object]]) -> OperationTest[Subject]:
    @asynccontextmanager
    async def setup(calls: PortCalls) -> AsyncIterator[Subject]:
        bank = Bank()
        yield Subject(bank, Account(calls.watch("bank", bank, BANK_ERRORS), bug))

    def nothing_is_open(subject: Subject) -> None:
        assert subject.account.open_transfers == 0

    return OperationTest(setup=setup, run=run, state=lambda subject: subject.bank.stored, check=nothing_is_open)


def adding(bug: str = "") -> OperationTest[Subject]:
    return operation(bug, lambda subject: subject.account.add(5))


def test_a_sound_module_passes_at_every_await() -> None:
    summary = interleave(adding(), {"another addition": lambda subject: subject.account.add(7)}, depth=2, cancel=False)
    assert summary.places >= 4
    assert summary.runs == 2 * (summary.places + summary.places * (summary.places + 1) // 2)


def test_a_lost_update_is_found_and_its_await_is_named() -> None:
    with pytest.raises(
        AssertionError,
        match=r"'another addition' at await 2 of 7 \(.*Account.add\), with port calls that do not suspend:\n *ends as",
    ):
        interleave(adding("race"), {"another addition": lambda subject: subject.account.add(7)}, cancel=False)


def test_an_operation_that_ignores_its_cancellation_is_found() -> None:
    with pytest.raises(AssertionError, match="was cancelled but did not end as cancelled"):
        interleave(adding("swallows cancellation"), {})


def test_a_deadlock_is_found() -> None:
    async def wait_for_ever(subject: Subject) -> None:
        while not subject.account.closed:
            await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="not finished after 3600 virtual seconds"):
        interleave(operation("", wait_for_ever), {}, cancel=False)


def test_a_hot_loop_is_found() -> None:
    async def spin(subject: Subject) -> None:
        while not subject.account.closed:
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="hot loop"):
        interleave(operation("", spin), {}, cancel=False)


def test_an_event_that_raises_a_bug_is_reported() -> None:
    def fail(_: Subject) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        interleave(adding(), {"a bug": fail}, cancel=False)


def test_an_error_in_a_callback_is_reported() -> None:
    async def call_later(subject: Subject) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // subject.bank.stored)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        interleave(operation("", call_later), {"money arrives": lambda subject: subject.account.add(7)}, cancel=False)


def test_an_error_in_a_callback_of_afterwards_is_reported() -> None:
    async def call_later(_: Subject) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        interleave(replace(adding(), afterwards=call_later), {}, cancel=False)


def test_an_error_is_reported_with_its_type_and_message() -> None:
    async def time_out(_: Subject) -> None:
        raise TimeoutError("no answer")

    async def refuse(_: Subject) -> None:
        raise TryLater("busy")

    with pytest.raises(AssertionError, match="unexpected TimeoutError: no answer"):
        interleave(operation("", time_out), {}, cancel=False)
    with pytest.raises(AssertionError, match="still failing after 20 retries: TryLater: busy"):
        interleave(operation("", refuse), {}, cancel=False)
    with pytest.raises(AssertionError, match="unexpected TryLater: busy"):
        interleave(replace(adding(), afterwards=refuse), {}, cancel=False)


def test_two_events_are_each_reported_with_their_await() -> None:
    def record(subject: Subject) -> None:
        subject.done.append(subject.account.open_transfers)

    def the_second_saw_no_transfer(subject: Subject) -> None:
        assert subject.done != [0, 1]

    recorded = replace(adding(), check=the_second_saw_no_transfer)
    places = r"'a record' at await 0 of \d+ \(its start\), then 'a record' at await \d+ of \d+ \(.*Account.add\)"
    with pytest.raises(AssertionError, match=places):
        interleave(recorded, {"a record": record}, depth=2, cancel=False)


def test_leave_out_rejects_a_call_that_is_not_watched() -> None:
    with pytest.raises(AssertionError, match=r"leave_out names bank\.laod, which is not watched"):
        fail_each_call(adding(), leave_out=[("bank", "laod", TryLater)])


def test_leave_out_rejects_an_error_that_the_call_never_raises() -> None:
    with pytest.raises(AssertionError, match=r"leave_out names Conflict, which bank\.load never raises"):
        fail_each_call(adding(), leave_out=[("bank", "load", Conflict)])


def test_watching_an_undocumented_port_requires_its_errors() -> None:
    with pytest.raises(ValueError, match="'bank' is not in DOCUMENTED"):
        PortCalls().watch("bank", Bank())


def test_watching_a_method_that_the_port_lacks_is_rejected() -> None:
    with pytest.raises(AttributeError, match="bank has no method 'svae'"):
        PortCalls().watch("bank", Bank(), {"svae": (TryLater,)})


def test_a_test_without_runs_is_rejected() -> None:
    with pytest.raises(AssertionError, match=r"no run was made: \d+ awaits, 0 events, cancel=False"):
        interleave(adding(), {}, cancel=False)
    with pytest.raises(ValueError, match="depth is 0, expected at least 1"):
        interleave(adding(), {"another addition": lambda subject: subject.account.add(7)}, depth=0)


def test_a_sequential_order_that_fails_is_shown() -> None:
    def oops(subject: Subject) -> None:
        raise ValueError("oops")

    order = re.escape("('odd', then the operation): the event raised ValueError: oops")
    with pytest.raises(AssertionError, match=f"a sequential order failed {order}"):
        interleave(adding(), {"fine": lambda subject: None, "odd": oops}, cancel=False)


def test_a_hanging_operation_is_reported_with_the_line_at_which_it_waits() -> None:
    with pytest.raises(AssertionError, match=r"not finished .*: the operation at .*test_interleave.*:\d+ in .*hang"):
        interleave(operation("", hang), {})


async def hang(subject: Subject) -> None:
    await asyncio.Event().wait()


def test_the_return_value_of_a_plain_event_is_ignored() -> None:
    summary = interleave(adding(), {"an entry": lambda subject: subject.__dict__.setdefault("more", 3)}, cancel=False)
    assert summary.runs == summary.places


def test_only_the_calls_of_the_operation_fail() -> None:
    @asynccontextmanager
    async def setup(calls: PortCalls) -> AsyncIterator[Subject]:
        bank = calls.watch("bank", Bank(), BANK_ERRORS)
        await bank.save(1)
        yield Subject(bank, Account(bank, ""))

    async def add_again(subject: Subject) -> None:
        await subject.account.add(7)

    adding = OperationTest(
        setup=setup,
        run=lambda subject: subject.account.save_until_it_works(5),
        state=lambda subject: subject.bank.stored,
        afterwards=add_again,
    )
    assert fail_each_call(adding).places == 1


def test_every_call_fails_with_every_error_before_and_after_its_effect() -> None:
    summary = fail_each_call(operation("", lambda subject: subject.account.save_until_it_works(5)), unexpected=False)
    assert (summary.places, summary.runs) == (1, 2)
    assert fail_each_call(adding(), unexpected=False, lost_answers=False).runs == 2


def test_a_lost_response_keeps_the_effect_of_the_call() -> None:
    with pytest.raises(AssertionError, match=r"bank.save \(call 1\) raises TryLater after its effect:\n.*ends as 10"):
        fail_each_call(adding(), unexpected=False)


def test_a_missing_cleanup_is_found() -> None:
    with pytest.raises(AssertionError, match=r"bank.load \(call 1\) raises TryLater without effect"):
        fail_each_call(adding("leak"), unexpected=False, lost_answers=False)


def test_an_operation_without_calls_to_a_watched_port_is_rejected() -> None:
    with pytest.raises(AssertionError, match="no call to a watched port"):
        fail_each_call(operation("", lambda subject: asyncio.sleep(0)))


@pytest.mark.parametrize("bug", ["", "no reset"])
def test_a_backoff_that_is_not_reset_is_found(bug: str) -> None:
    saving = operation(bug, lambda subject: subject.account.save_until_it_works(5))

    def pauses() -> list[float]:
        return check_backoff_resets(
            saving, "bank", "save", TryLater, lambda subject: subject.account.save_until_it_works(6)
        )

    if bug:
        with pytest.raises(
            AssertionError, match="the delay after a success is 16 s, expected the initial delay of 1 s"
        ):
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
