"""The first status of a pod, made from a note or an old list of it, keeps the dates that the API has."""

import asyncio

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodCondition, PodStatus
from podkeeper.rules.status.publish import aligned_with
from podkeeper.testing.virtual_time import simulate
from tests.engine.test_status import FakeJournal, Hooks, Node, pod, status, uid_of

WEB = pod("web")
LONG_AGO, BEGINNING, LATER = "2025-12-31T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def ready_since(time: str) -> PodCondition:
    return PodCondition(type="Ready", status="True", last_transition_time=time)


SHOWN = PodStatus(start_time=LONG_AGO, conditions=(ready_since(LONG_AGO),))
OFFLINE: Hooks = {"align": aligned_with}


def dates(of: PodStatus) -> tuple[str | None, str | None]:
    """The start time, and since when the pod is ready or not."""
    (ready,) = of.conditions or ()
    return of.start_time, ready.last_transition_time


def in_api(node: Node, name: str = "web") -> PodStatus:
    return node.api.pods[name].status


@pytest.mark.parametrize(
    ("ready", "hooks", "expected"),
    [
        (True, OFFLINE, (LONG_AGO, LONG_AGO)),
        (False, OFFLINE, (LONG_AGO, BEGINNING)),  # it has just become unready
        (True, Hooks(), (BEGINNING, BEGINNING)),  # as the kubelet does
    ],
)
def test_the_first_status_takes_its_dates_from_the_api_if_it_was_made_without_it(
    ready: bool, hooks: Hooks, expected: tuple[str, str]
) -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks=hooks)
        node.api.put(replace(WEB, status=SHOWN))
        node.manager.set_pod_status(WEB, status(1, ready=ready))
        await node.manager.sync_batch(every=False)
        assert dates(in_api(node)) == dates(node.manager.cached[uid_of(WEB)].status) == expected

    simulate(scenario())


def test_once_its_first_status_is_sent_a_pod_has_its_own_dates() -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks=OFFLINE)
        node.manager.set_pod_status(WEB, status(1))
        await node.manager.sync_batch(every=False)
        node.api.put(replace(node.api.pods["web"], status=replace(in_api(node), start_time=LONG_AGO)))
        node.manager.set_pod_status(WEB, status(2))
        await node.manager.sync_batch(every=False)
        assert dates(in_api(node)) == (BEGINNING, BEGINNING)

    simulate(scenario())


def test_a_pod_that_was_forgotten_and_comes_back_takes_the_dates_of_the_api_again() -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks=OFFLINE)
        node.manager.set_pod_status(WEB, status(1, ready=True))
        await node.manager.sync_batch(every=False)
        node.manager.forget(uid_of(WEB))
        node.api.put(replace(WEB, status=SHOWN))
        node.manager.set_pod_status(WEB, status(2, ready=True))
        await node.manager.sync_batch(every=True)
        assert dates(in_api(node)) == (LONG_AGO, LONG_AGO)

    simulate(scenario())


def test_a_pod_of_an_old_list_takes_the_newer_dates() -> None:
    async def scenario() -> None:
        node = Node(known := replace(WEB, status=replace(SHOWN, start_time=BEGINNING)), hooks=OFFLINE)
        node.api.put(replace(WEB, status=replace(SHOWN, conditions=(ready_since(LATER),))))
        node.manager.set_pod_status(known, status(1, ready=True))
        await node.manager.sync_batch(every=False)
        assert dates(in_api(node)) == (LONG_AGO, LATER)

    simulate(scenario())


def test_after_a_restart_a_noted_status_has_the_dates_of_the_api() -> None:
    async def scenario() -> None:
        first = Node(WEB, journal=(journal := FakeJournal()), hooks=OFFLINE)
        first.manager.set_pod_status(WEB, status(1, ready=True))
        await asyncio.sleep(60)
        second = Node(WEB, journal=journal, hooks=OFFLINE)
        second.api.put(replace(WEB, status=SHOWN))
        second.manager.set_pod_status(WEB, status(3, ready=True))
        await second.manager.sync_batch(every=False)
        assert dates(in_api(second)) == (LONG_AGO, LONG_AGO)

    simulate(scenario())


def test_a_static_pod_takes_its_dates_from_the_mirror_that_the_watch_has_not_shown() -> None:
    static = pod("dns", "hash", source="file", hashed="hash")
    mirror: Pod = replace(pod("dns", "m-1", mirror=True), status=SHOWN)

    async def scenario() -> None:
        node = Node(static, hooks=OFFLINE)
        node.manager.set_pod_status(static, status(1, ready=True))
        node.known.update(mirror)
        node.api.put(mirror)
        await node.manager.sync_batch(every=False)
        assert dates(in_api(node, "dns")) == (LONG_AGO, LONG_AGO)

    simulate(scenario())


def test_a_status_that_comes_while_the_first_one_is_sent_takes_the_dates_too() -> None:
    async def scenario() -> None:
        node = Node(WEB, hooks=OFFLINE)
        node.api.put(replace(WEB, status=SHOWN))
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(WEB, status(1, ready=True))
        async with node.running():
            await asyncio.sleep(0.5)  # the API is being asked
            node.manager.set_pod_status(WEB, status(2, ready=True))
            await asyncio.sleep(10)
        assert node.api.pods["web"].status.message == "2"
        assert dates(in_api(node)) == (LONG_AGO, LONG_AGO)

    simulate(scenario())
