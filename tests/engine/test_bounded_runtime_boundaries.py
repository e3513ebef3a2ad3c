"""Boundaries of `BoundedRuntime`: exact leases, deadlines and tickets, and the pod names of ids."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from podkeeper.engine.bounded_runtime import BoundedRuntime, CallLimits, SlowCall
from podkeeper.model.errors import CallTimedOut, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.engine.test_bounded_runtime import (
    CALLS,
    CHANGES,
    DEADLINES,
    FOR_EVER,
    Harness,
    Slow,
    container_config,
    now,
    pod,
    raised_by,
    run_scenario,
    sandbox,
    started,
)

# Leases and deadlines.

SLOW_SECONDS = dict.fromkeys(CALLS, 10.0) | {"stop_container": 40.0, "exec_sync": 11.0, "pull_image": 60.0}


@pytest.mark.parametrize("operation", CALLS)
def test_a_call_counts_as_slow_after_its_slow_seconds(operation: str) -> None:
    call, shown, _ = CALLS[operation]

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = SLOW_SECONDS[operation] + 1
        await asyncio.sleep(1000)
        caller = asyncio.ensure_future(call(harness.bounded))
        await asyncio.sleep(SLOW_SECONDS[operation] - 0.25)
        assert harness.bounded.slow_calls() == ()
        await asyncio.sleep(0.25)
        (slow,) = harness.bounded.slow_calls()
        assert (slow.operation, slow.seconds) == (shown, SLOW_SECONDS[operation])
        await caller
        assert harness.bounded.slow_calls() == ()

    run_scenario(scenario)


@pytest.mark.parametrize("operation", CALLS)
def test_a_call_that_ends_just_before_its_deadline_succeeds_and_is_counted_once(operation: str) -> None:
    call, shown, expected = CALLS[operation]
    seconds = DEADLINES[operation] - 0.25

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = seconds
        assert await call(harness.bounded) == expected
        await asyncio.sleep(3600)

    assert run_scenario(scenario).observed == [(shown, seconds, False)]


LEASES = {
    "run_sandbox": 10.0, "create_container": 10.0, "start_container": 10.0, "stop_sandbox": 10.0,
    "remove_sandbox": 10.0, "remove_container": 10.0, "remove_image": 10.0, "stop_container": 0.1, "pull_image": 60.0,
}  # fmt: skip


@pytest.mark.parametrize("operation", CHANGES)
def test_a_change_holds_its_slot_until_its_lease_ends(operation: str) -> None:
    call = CALLS[operation][0]

    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds[operation] = 100
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(_awaited(call(harness.bounded)))

    harness = run_scenario(scenario, CallLimits(start_slots=1, stop_slots=1, pull_slots=1))
    assert [at for at, _ in harness.runtime.begun] == pytest.approx([LEASES[operation] * index for index in range(3)])


async def _awaited(call: Awaitable[object]) -> None:
    await call


def test_a_change_that_outlived_its_lease_frees_no_second_slot_when_it_ends() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["run_sandbox"] = 12
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(harness.bounded.run_sandbox(sandbox(name)))

    assert started(run_scenario(scenario, CallLimits(start_slots=1))) == [(0.0, "a"), (10.0, "b"), (20.0, "c")]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_all_slots_are_free_after_a_burst(slots: int) -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 1
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for index in range(4):
                    group.create_task(harness.bounded.start_container(f"c{index}"))

    times = [at for at, _ in started(run_scenario(scenario, CallLimits(start_slots=slots)), "start_container")]
    burst = [float(index // slots) for index in range(4)]
    assert times == [*burst, *(burst[-1] + 1 + at for at in burst)]


# Tickets.


async def queue(harness: Harness, *names: str) -> None:
    """Occupy the only slot for one second. The other pods wait in this order."""
    harness.runtime.seconds["start_container busy"] = 1
    await asyncio.gather(*(harness.bounded.start_container(name) for name in ("busy", *names)))


@pytest.mark.parametrize("idle, first", [(9.75, "old"), (10.0, "new"), (10.25, "new")])
def test_a_ticket_expires_after_ten_idle_seconds(idle: float, first: str) -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container old"] = 1
        await harness.bounded.start_container("old")
        await asyncio.sleep(idle)
        await queue(harness, "new", "old")

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    last = "old" if first == "new" else "new"
    assert [name for _, name in started(harness, "start_container")] == ["old", "busy", first, last]


OTHERS: dict[str, dict[float, str]] = {
    "no others": {},
    "another one": {8.0: "c"},
    "several others": {8.0: "c", 9.0: "d", 9.5: "e"},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS.keys())
def test_the_ticket_of_each_pod_expires_after_its_own_last_call(others: dict[float, str]) -> None:
    async def scenario(harness: Harness) -> None:
        for at, name in {0.0: "a", 5.0: "b", **others}.items():
            await asyncio.sleep(at - now())
            await harness.bounded.start_container(name)
        await asyncio.sleep(12 - now())
        await queue(harness, "new", "a", "b")

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert [name for _, name in started(harness, "start_container")][-3:] == ["b", "new", "a"]


@pytest.mark.parametrize("waited", [False, True])
def test_pods_keep_their_order_whether_they_had_to_wait_or_not(waited: bool) -> None:
    async def scenario(harness: Harness) -> None:
        if waited:
            await queue(harness, "a", "b", "c")
        else:
            for name in "abc":
                await harness.bounded.start_container(name)
        await queue(harness, "new", "c", "b", "a")

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert [name for _, name in started(harness, "start_container")][-4:] == ["a", "b", "c", "new"]


def test_a_pod_that_keeps_calling_keeps_its_ticket() -> None:
    async def scenario(harness: Harness) -> None:
        for name in ("a", "b"):
            await harness.bounded.start_container(name)
        await asyncio.sleep(8)
        await harness.bounded.start_container("a")
        await asyncio.sleep(8)
        await queue(harness, "b", "new", "a")

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert [name for _, name in started(harness, "start_container")][-3:] == ["a", "b", "new"]


def test_calls_of_one_pod_keep_their_order() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["create_container"] = 1
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(harness.bounded.create_container("box", container_config("web")))
            group.create_task(harness.bounded.run_sandbox(sandbox("db")))
            await asyncio.sleep(0.5)
            group.create_task(harness.bounded.run_sandbox(sandbox("web")))

    harness = run_scenario(scenario, CallLimits(start_slots=1))
    assert [call for _, call in harness.runtime.begun] == [
        "create_container web", "create_container web", "run_sandbox web", "run_sandbox db",
    ]  # fmt: skip


# Names.


async def names_of(harness: Harness, *ids: str) -> list[str]:
    """Return the subjects shown for calls with these ids."""
    harness.runtime.seconds["reopen_log"] = FOR_EVER
    calls = [asyncio.ensure_future(harness.bounded.reopen_log(known)) for known in ids]
    await asyncio.sleep(10)
    shown = [call.subject for call in harness.bounded.slow_calls()]
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    return shown


FOUND = PodRecord(
    uid="u",
    name="found",
    namespace="other",
    sandboxes=(SandboxRecord(id="box-1", ready=False), SandboxRecord(id="box-2", ready=True)),
    containers=tuple(ContainerRecord(id=f"c{n}", name="app", state=RecordState.RUNNING) for n in (1, 2)),
)


def test_ids_that_were_started_or_inspected_are_shown_by_pod_name() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.records["u"] = FOUND
        await harness.bounded.run_sandbox(sandbox("web"))
        await harness.bounded.create_container("box-db", container_config("db"))
        await harness.bounded.pod_record(PodUID("u"))
        made = await names_of(harness, "box-web", "uid-web", "app-db", "uid-db", "box-db")
        assert made == ["ns/web", "ns/web", "ns/db", "ns/db", "box-db"]
        assert await names_of(harness, "u", "box-1", "box-2", "c1", "c2", "c3") == ["other/found"] * 5 + ["c3"]

    run_scenario(scenario)


def test_removed_ids_are_forgotten() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.records["u"] = FOUND
        await harness.bounded.pod_record(PodUID("u"))
        await harness.bounded.remove_sandbox("box-1")
        await harness.bounded.remove_container("c1")
        await harness.bounded.remove_sandbox("unknown")
        await harness.bounded.remove_container("unknown")
        assert await names_of(harness, "u", "box-1", "box-2", "c1", "c2") == [
            "other/found", "box-1", "other/found", "c1", "other/found",
        ]  # fmt: skip
        harness.runtime.records["u"] = PodRecord(uid="u", name="found", namespace="other")
        await harness.bounded.pod_record(PodUID("u"))
        assert await names_of(harness, "u", "box-2") == ["u", "other/found"]

    run_scenario(scenario)


def test_ids_whose_removal_failed_keep_their_name() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.records["u"] = FOUND
        await harness.bounded.pod_record(PodUID("u"))
        harness.runtime.errors = dict.fromkeys(["remove_sandbox", "remove_container"], RuntimeUnavailable("cannot"))
        await raised_by(harness.bounded.remove_sandbox("box-1"))
        await raised_by(harness.bounded.remove_container("c1"))
        assert await names_of(harness, "box-1", "c1") == ["other/found"] * 2

    run_scenario(scenario)


@pytest.mark.parametrize("rest", [{"containers": ()}, {"sandboxes": ()}], ids=["a sandbox", "a container"])
def test_a_pod_with_a_sandbox_or_a_container_keeps_its_name(rest: dict[str, tuple[()]]) -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.records["u"] = replace(FOUND, **rest)
        for _ in range(2):
            await harness.bounded.pod_record(PodUID("u"))
        assert await names_of(harness, "u") == ["other/found"]

    run_scenario(scenario)


def test_a_record_without_a_name_and_a_pod_without_a_uid_add_no_names() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.records["u"] = replace(FOUND, name="")
        await harness.bounded.pod_record(PodUID("u"))
        nameless = replace(pod("web"), metadata=replace(pod("web").metadata, uid=None))
        await harness.bounded.run_sandbox(replace(sandbox("web"), pod=nameless))
        assert await names_of(harness, "u", "c1", "", "box-web") == ["u", "c1", "", "ns/web"]

    run_scenario(scenario)


def test_above_the_limit_the_oldest_names_are_forgotten() -> None:
    kept = 32_768

    async def scenario(harness: Harness) -> None:
        running = RecordState.RUNNING
        many = tuple(ContainerRecord(id=str(number), name="app", state=running) for number in range(kept))
        harness.runtime.records["u"] = PodRecord(uid="u", name="many", namespace="ns", containers=many[1:])
        await harness.bounded.pod_record(PodUID("u"))
        assert await names_of(harness, "u", "1", str(kept - 1)) == ["ns/many"] * 3
        harness.runtime.records["v"] = PodRecord(uid="v", name="few", namespace="ns", containers=many[:1])
        await harness.bounded.pod_record(PodUID("v"))
        assert await names_of(harness, "u", "1", "2", "v", "0") == ["u", "1", "ns/many", "ns/few", "ns/few"]

    run_scenario(scenario)


# Cancelled callers and the end.


def test_a_caller_cancelled_several_times_raises_the_first_cancellation() -> None:
    async def scenario(harness: Harness) -> None:
        harness.runtime.seconds["start_container"] = 20
        caller = asyncio.ensure_future(harness.bounded.start_container("app"))
        for reason in ("first", "second", "third"):
            await asyncio.sleep(1)
            caller.cancel(reason)
        assert (await raised_by(caller)).args == ("first",)

    run_scenario(scenario)


def test_reads_do_not_need_the_bounded_runtime_to_run() -> None:
    async def scenario() -> None:
        harness = Harness(CallLimits())
        harness.runtime.seconds["list_pods"] = 5
        reads = [asyncio.ensure_future(harness.bounded.list_pods())]
        await asyncio.sleep(1)
        running = asyncio.ensure_future(harness.bounded.run())
        await asyncio.sleep(1)
        reads.append(asyncio.ensure_future(harness.bounded.list_pods()))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.gather(*reads) == [[], []]
        assert now() == 7

    simulate(scenario())


def test_a_caller_cancelled_before_the_bounded_runtime_runs_holds_no_slot() -> None:
    async def scenario() -> None:
        harness = Harness(CallLimits(start_slots=1))
        early = asyncio.ensure_future(harness.bounded.start_container("early"))
        await asyncio.sleep(1)
        early.cancel()
        running = asyncio.ensure_future(harness.bounded.run())
        await harness.bounded.start_container("late")
        assert harness.runtime.begun == [(1.0, "start_container late")]
        running.cancel()
        await asyncio.wait({running})

    simulate(scenario())


def test_a_read_that_fails_with_its_own_error_at_the_deadline_raises_that_error() -> None:
    error = RuntimeRefused("cannot list")

    class RaisesOnCancel(Slow):
        async def list_pods(self) -> Sequence[PodRecord]:
            try:
                return await super().list_pods()
            except asyncio.CancelledError:
                raise error from None

    async def scenario() -> None:
        runtime = RaisesOnCancel()
        runtime.seconds["list_pods"] = FOR_EVER
        bounded = BoundedRuntime(runtime, clock=VirtualClock())
        assert await raised_by(bounded.list_pods()) is error
        assert now() == 120

    simulate(scenario())


def test_changes_abandoned_when_the_agent_stops_are_counted_as_failed() -> None:
    async def scenario() -> None:
        harness = Harness(CallLimits(start_slots=2))
        harness.runtime.seconds["start_container"] = FOR_EVER
        running = asyncio.ensure_future(harness.bounded.run())
        calls = [asyncio.ensure_future(raised_by(harness.bounded.start_container(name))) for name in "abc"]
        await asyncio.sleep(15)
        assert harness.bounded.slow_calls() == tuple(
            SlowCall("start_container", name, seconds) for name, seconds in (("a", 15.0), ("b", 15.0))
        )
        running.cancel()
        await asyncio.wait({running})
        errors = [await call for call in calls]
        assert [type(error) for error in errors] == [RuntimeUnavailable] * 3
        assert sorted(harness.observed) == [("start_container", seconds, True) for seconds in (5.0, 15.0, 15.0)]
        assert harness.bounded.slow_calls() == ()

    simulate(scenario())


DEFAULTS: dict[str, Callable[[BoundedRuntime], Awaitable[object]]] = {
    "a change": lambda bounded: bounded.start_container("app"),
    "a read": lambda bounded: bounded.health(),
}


@pytest.mark.parametrize("call", DEFAULTS.values(), ids=DEFAULTS.keys())
def test_limits_and_observer_are_optional(call: Callable[[BoundedRuntime], Awaitable[object]]) -> None:
    async def scenario() -> None:
        runtime = Slow()
        runtime.seconds = {"start_container": FOR_EVER, "health": FOR_EVER}
        bounded = BoundedRuntime(runtime, clock=VirtualClock())
        running = asyncio.ensure_future(bounded.run())
        assert isinstance(await raised_by(call(bounded)), CallTimedOut)
        assert now() == 120
        running.cancel()
        await asyncio.wait({running})

    simulate(scenario())
