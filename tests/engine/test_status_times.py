"""The first status of a pod, made from a stored pod or an old list, takes its times from the API."""

import asyncio

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodCondition, PodStatus
from podkeeper.model.pods import uid_of
from podkeeper.rules.status.publish import aligned_with
from podkeeper.testing.virtual_time import simulate
from tests.engine.test_status import Hooks, StatusHarness, StatusJournal, pod, status

WEB = pod("web")
LONG_AGO, BEGINNING, LATER = "2025-12-31T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def ready_since(time: str) -> PodCondition:
    return PodCondition(type="Ready", status="True", last_transition_time=time)


SHOWN = PodStatus(start_time=LONG_AGO, conditions=(ready_since(LONG_AGO),))
OFFLINE: Hooks = {"align": aligned_with}


def times(of: PodStatus) -> tuple[str | None, str | None]:
    """Return the start time and the transition time of the Ready condition."""
    (ready,) = of.conditions or ()
    return of.start_time, ready.last_transition_time


def in_api(node: StatusHarness, name: str = "web") -> PodStatus:
    return node.api.pods[name].status


@pytest.mark.parametrize(
    ("ready", "hooks", "expected"),
    [
        (True, OFFLINE, (LONG_AGO, LONG_AGO)),
        (False, OFFLINE, (LONG_AGO, BEGINNING)),  # it has just become unready
        (True, Hooks(), (BEGINNING, BEGINNING)),  # as the kubelet does
    ],
)
def test_the_first_status_takes_its_times_from_the_api(ready: bool, hooks: Hooks, expected: tuple[str, str]) -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, hooks=hooks)
        node.api.put(replace(WEB, status=SHOWN))
        node.manager.set_pod_status(WEB, status(1, ready=ready))
        await node.manager.sync_batch(every=False)
        assert times(in_api(node)) == times(node.manager.cached[uid_of(WEB)].status) == expected

    simulate(scenario())


def test_later_statuses_have_their_own_times() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, hooks=OFFLINE)
        node.manager.set_pod_status(WEB, status(1))
        await node.manager.sync_batch(every=False)
        node.api.put(replace(node.api.pods["web"], status=replace(in_api(node), start_time=LONG_AGO)))
        node.manager.set_pod_status(WEB, status(2))
        await node.manager.sync_batch(every=False)
        assert times(in_api(node)) == (BEGINNING, BEGINNING)

    simulate(scenario())


def test_a_forgotten_pod_that_comes_back_takes_the_times_of_the_api_again() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, hooks=OFFLINE)
        node.manager.set_pod_status(WEB, status(1, ready=True))
        await node.manager.sync_batch(every=False)
        node.manager.forget(uid_of(WEB))
        node.api.put(replace(WEB, status=SHOWN))
        node.manager.set_pod_status(WEB, status(2, ready=True))
        await node.manager.sync_batch(every=True)
        assert times(in_api(node)) == (LONG_AGO, LONG_AGO)

    simulate(scenario())


def test_a_pod_of_an_old_list_takes_the_newer_times() -> None:
    async def scenario() -> None:
        node = StatusHarness(known := replace(WEB, status=replace(SHOWN, start_time=BEGINNING)), hooks=OFFLINE)
        node.api.put(replace(WEB, status=replace(SHOWN, conditions=(ready_since(LATER),))))
        node.manager.set_pod_status(known, status(1, ready=True))
        await node.manager.sync_batch(every=False)
        assert times(in_api(node)) == (LONG_AGO, LATER)

    simulate(scenario())


def test_after_a_restart_a_restored_status_takes_the_times_of_the_api() -> None:
    async def scenario() -> None:
        first = StatusHarness(WEB, journal=(journal := StatusJournal()), hooks=OFFLINE)
        first.manager.set_pod_status(WEB, status(1, ready=True))
        await asyncio.sleep(60)
        second = StatusHarness(WEB, journal=journal, hooks=OFFLINE)
        second.api.put(replace(WEB, status=SHOWN))
        second.manager.set_pod_status(WEB, status(3, ready=True))
        await second.manager.sync_batch(every=False)
        assert times(in_api(second)) == (LONG_AGO, LONG_AGO)

    simulate(scenario())


def test_a_static_pod_takes_its_times_from_a_mirror_pod_that_the_watch_has_not_delivered() -> None:
    static = pod("dns", uid="hash", source="file", hashed="hash")
    mirror: Pod = replace(pod("dns", uid="m-1", mirror="hash"), status=SHOWN)

    async def scenario() -> None:
        node = StatusHarness(static, hooks=OFFLINE)
        node.manager.set_pod_status(static, status(1, ready=True))
        node.known.update(mirror)
        node.api.put(mirror)
        await node.manager.sync_batch(every=False)
        assert times(in_api(node, "dns")) == (LONG_AGO, LONG_AGO)

    simulate(scenario())


def test_a_status_accepted_during_the_first_call_takes_the_times_of_the_api() -> None:
    async def scenario() -> None:
        node = StatusHarness(WEB, hooks=OFFLINE)
        node.api.put(replace(WEB, status=SHOWN))
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, status(1, ready=True))
        async with node.running():
            await asyncio.sleep(0.5)  # during the GET
            node.manager.set_pod_status(WEB, status(2, ready=True))
            await asyncio.sleep(10)
        assert node.api.pods["web"].status.message == "2"
        assert times(in_api(node)) == (LONG_AGO, LONG_AGO)

    simulate(scenario())
