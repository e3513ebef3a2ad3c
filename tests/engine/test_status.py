"""The status manager in virtual time: what is sent in which order, and failures of calls, API and disk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.engine.api_sender import ApiSender
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.engine.manager import PodManager
from podkeeper.engine.observer import Observer
from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import ApiUnavailable, BadInput, Conflict, NotFound
from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from podkeeper.model.messages import (
    CONFIG_SOURCE_ANNOTATION,
    Op,
    PodUID,
    PodUpdate,
)
from podkeeper.model.pods import uid_of
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.status.publish import CachedStatus, is_urgent
from podkeeper.testing import build
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.fake_api import FakeApi, patched
from tests.engine.scripted_journal import ScriptedJournal
from tests.violations import violation

K = TypeVar("K", bound=Wire)


pod = partial(build.pod, namespace="ns", source="api", policy="Never")


def status(number: int = 0, *, phase: str = "Running", ready: bool = False) -> PodStatus:
    """Return a status. Its message is the number, so that the API shows which status it has."""
    condition = PodCondition(type="Ready", status="True" if ready else "False")
    return PodStatus(phase=phase, message=str(number), conditions=(condition,))


def container_status(ready: bool = True, exit_code: int | None = None) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning())
    if exit_code is not None:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=exit_code))
    return ContainerStatus(name="app", container_id="fake://app", state=state, ready=ready)


@dataclass
class StatusApi(FakeApi):
    """Pods in the API. `fail_before(verb, name)` is called before a call takes effect, `fail_after` after it."""

    pods: dict[str, Pod] = field(default_factory=dict)
    fail_before: Callable[[str, str], None] = lambda verb, name: None
    fail_after: Callable[[str, str], None] = lambda verb, name: None
    seconds: Callable[[str, str], float] = lambda verb, name: 0.0
    hung: set[str] = field(default_factory=set)  # names of pods whose patches do not return
    calls: list[tuple[float, str, str]] = field(default_factory=list)  # start time, verb, pod
    patched: list[tuple[float, str, str]] = field(default_factory=list)  # time, pod, number of the status
    deletions: list[tuple[str, int | None, str | None]] = field(default_factory=list)
    busy: dict[str, int] = field(default_factory=dict)
    most_at_once: int = 0

    def put(self, *pods: Pod) -> None:
        self.pods.update((each.metadata.name or "", each) for each in pods)

    @asynccontextmanager
    async def call(self, verb: str, name: str, namespace: str) -> AsyncIterator[None]:
        now = asyncio.get_running_loop().time
        self.calls.append((now(), verb, name))
        self.busy[name] = self.busy.get(name, 0) + 1
        if self.busy[name] != 1:
            raise violation(f"two calls at once for {name}")
        self.most_at_once = max(self.most_at_once, sum(self.busy.values()))
        try:
            await asyncio.sleep(self.seconds(verb, name))
            while verb == "patch" and name in self.hung:
                await asyncio.sleep(0.5)
            self.fail_before(verb, name)
            if name not in self.pods or self.pods[name].metadata.namespace != namespace:
                raise NotFound(f"cannot {verb} {name}: there is none")
            yield
            self.fail_after(verb, name)
        finally:
            self.busy[name] -= 1

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        async with self.call("get", name, namespace):
            found = self.pods[name]
            assert isinstance(found, kind)
            return found

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        async with self.call("patch", name, namespace):
            if patch["metadata"]["uid"] != self.pods[name].metadata.uid:
                raise Conflict(f"cannot patch {name}: it is another pod")
            found = self.pods[name] = patched(self.pods[name], patch)
            self.patched.append((asyncio.get_running_loop().time(), name, found.status.message or ""))
            assert isinstance(found, kind)
            return found

    async def delete(
        self,
        kind: type[K],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> None:
        async with self.call("delete", name, namespace):
            if uid not in (None, self.pods[name].metadata.uid):
                raise Conflict(f"cannot delete {name}: it is another pod")
            self.deletions.append((name, grace_seconds, uid))
            del self.pods[name]


@dataclass
class StatusJournal(ScriptedJournal):
    """A journal of statuses, without secrets."""

    seconds: float = 0.0

    def purge(self) -> None:
        raise violation("a status manager stores no secrets")


class Hooks(TypedDict, total=False):
    """Arguments of a status manager for deviations from the kubelet."""

    is_outdated: Callable[[Pod, Pod], bool]
    is_needed: Callable[[PodUID], bool]
    would_revive: Callable[[Pod, PodStatus], bool]
    align: Callable[[Pod, PodStatus, bool], PodStatus]
    only_running_is_ready: bool


class StatusHarness:
    """A status manager with a fake API and journal. `at` is the time."""

    def __init__(
        self,
        *pods: Pod,
        api: bool = True,
        journal: StatusJournal | None = None,
        concurrency: int = 16,
        calls: PortCalls | None = None,
        clock: VirtualClock | None = None,
        known: PodManager | None = None,
        sender: object = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.api = StatusApi()
        self.api.put(*(each for each in pods if (each.metadata.annotations or {})[CONFIG_SOURCE_ANNOTATION] != "file"))
        self.known = known or PodManager()
        for each in pods:
            self.known.update(each)
        self.could_run: set[str] = set()
        self.lags: list[float] = []
        self.clock = clock or VirtualClock()
        self.manager = StatusManager(
            api=None if not api else self.api if calls is None else calls.watch("api", self.api),
            pods=self.known,
            could_run=self.could_run.__contains__,
            clock=self.clock,
            sender=stand_in(
                ApiSender, sender or ApiSender[PodUID](clock=self.clock, what="status of pod", concurrency=concurrency)
            ),
            checkpoints=Checkpoints(
                journal if calls is None or journal is None else calls.watch("journal", journal), "status/"
            ),
            observer=stand_in(Observer, SimpleNamespace(status_synced=self.lags.append)),
            **(hooks or {}),
        )

    @property
    def at(self) -> float:
        return self.clock.monotonic()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.manager.run())
            yield
            task.cancel()

    def shown(self, name: str) -> str | None:
        return self.api.pods[name].status.message

    def set_all(self, pods: Iterable[Pod], number: int) -> None:
        for each in pods:
            self.manager.set_pod_status(each, status(number))

    def watch(self, name: str) -> None:
        """Deliver a pod of the API to the pod manager."""
        self.known.update(self.api.pods[name])


def many(count: int) -> list[Pod]:
    return [pod(f"p{index}") for index in range(count)]


# What is sent and when.


def test_a_change_is_sent_at_once_and_its_lag_observed() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        node.api.seconds = lambda verb, name: 0.25
        async with node.running():
            await asyncio.sleep(3)
            assert node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(1)
        assert node.api.patched == [(3.5, "web", "1")]
        assert node.manager.sent_versions == {"uid-web": 1}
        assert node.lags == [0.5]

    simulate(scenario())


def test_an_unchanged_status_is_not_sent_again() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(1)
            node.watch("web")
            assert not node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(60)
        assert [verb for _, verb, _ in node.api.calls] == ["get", "patch"]

    simulate(scenario())


def test_changes_during_a_call_are_sent_together_afterwards() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        node.api.seconds = lambda verb, name: 1.0
        async with node.running():
            for number in range(1, 6):
                node.manager.set_pod_status(web, status(number))
                await asyncio.sleep(0.3)
            await asyncio.sleep(10)
        assert [(at, number) for at, _, number in node.api.patched] == [(2.0, "1"), (4.0, "5")]
        assert node.lags == [2.0, pytest.approx(3.7)]  # the second since 0.3, the time of status 2

    simulate(scenario())


def test_an_overwritten_status_is_restored_by_the_batch() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(12)
            overwritten = replace(node.api.pods["web"], status=status(666))
            node.api.put(overwritten)
            node.watch("web")
            await asyncio.sleep(10)
            assert node.shown("web") == "1"
            node.watch("web")
            calls = len(node.api.calls)
            await asyncio.sleep(60)
            assert len(node.api.calls) == calls

    simulate(scenario())


@pytest.mark.parametrize("static", [False, True], ids=["an API pod", "a static pod"])
def test_a_status_overwritten_after_batches_found_it_equal_is_restored(static: bool) -> None:
    async def scenario() -> None:
        web = pod("web", source="file" if static else "api")
        node = StatusHarness(web, pod("web", uid="uid-mirror", mirror="hash")) if static else StatusHarness(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(1)
            for meddling in (666, 667):
                node.watch("web")  # the watch delivers the sent status
                await asyncio.sleep(25)  # two batches find the status equal
                agreed = len(node.api.calls)
                node.api.put(replace(node.api.pods["web"], status=status(meddling)))
                node.watch("web")
                await asyncio.sleep(10)
                assert len(node.api.calls) > agreed
                assert node.shown("web") == "1"

    simulate(scenario())


def test_a_batch_of_unsent_versions_does_not_mark_an_overwritten_status_as_equal() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(12)
            node.api.put(replace(node.api.pods["web"], status=status(666)))
            node.watch("web")
            assert await node.manager.sync_batch(every=False) == 0
            await asyncio.sleep(10)
            assert node.shown("web") == "1"

    simulate(scenario())


@pytest.mark.parametrize("static", [False, True])
def test_an_overwritten_status_whose_patch_failed_is_unsent(static: bool) -> None:
    async def scenario() -> None:
        web = pod("web", uid="hash", source="file", hashed="hash") if static else pod("web")
        node = StatusHarness(web, pod("web", uid="m-1", mirror="hash")) if static else StatusHarness(web)
        node.manager.set_pod_status(web, status(1, ready=True))
        await node.manager.sync_batch(every=True)
        node.api.put(replace(node.api.pods["web"], status=status(666)))
        node.watch("web")

        def away(verb: str, name: str) -> None:
            raise ApiUnavailable("cannot reach the API")

        node.api.fail_before = away
        await node.manager.sync_batch(every=True)
        assert node.shown("web") == "666"
        node.api.fail_before = lambda verb, name: None
        assert await node.manager.sync_batch(every=False) == 1  # like at shutdown
        assert node.shown("web") == "1"

    simulate(scenario())


def test_a_version_accepted_during_a_call_is_unsent() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(web, status(1))
        async with asyncio.TaskGroup() as group:
            batch = group.create_task(node.manager.sync_batch(every=False))
            await asyncio.sleep(1.5)  # during the patch
            node.manager.set_pod_status(web, status(2))
            assert await batch == 1
        assert node.shown("web") == "1"
        assert await node.manager.sync_batch(every=False) == 1
        assert node.shown("web") == "2"

    simulate(scenario())


def test_a_condition_of_another_client_is_kept() -> None:
    async def scenario() -> None:
        web = pod("web")
        gate = PodCondition(type="example.com/gate", status="True")
        node = StatusHarness(replace(web, status=PodStatus(conditions=(gate,))))
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(1)
        assert [each.type for each in node.api.pods["web"].status.conditions or ()] == ["example.com/gate", "Ready"]

    simulate(scenario())


def test_ready_and_terminal_statuses_are_sent_first() -> None:
    async def scenario() -> None:
        usual, ready, over = many(100), pod("ready"), pod("over")
        node = StatusHarness(*usual, ready, over, concurrency=4)
        node.api.seconds = lambda verb, name: 1.0
        node.set_all(usual, 1)
        node.manager.set_pod_status(ready, status(1, ready=True))
        node.manager.set_pod_status(over, status(1, phase="Succeeded"))
        async with node.running():
            await asyncio.sleep(60)
        assert len(node.api.patched) == 102
        assert {"ready", "over"} <= {name for _, name, _ in node.api.patched[:4]}

    simulate(scenario())


URGENCY: dict[str, tuple[PodStatus | None, PodStatus, bool]] = {
    "the first status of a pending pod": (None, status(phase="Pending"), False),
    "the first status of a ready pod": (None, status(ready=True), True),
    "the pod becomes ready": (status(), status(ready=True), True),
    "the pod becomes unready": (status(ready=True), status(), True),
    "the pod ends": (status(), status(phase="Succeeded"), True),
    "a ready pod stays ready": (status(1, ready=True), status(2, ready=True), False),
    "a failed pod stays failed": (status(1, phase="Failed"), status(2, phase="Failed"), False),
}


@pytest.mark.parametrize("old, new, expected", URGENCY.values(), ids=URGENCY.keys())
def test_is_urgent(old: PodStatus | None, new: PodStatus, expected: bool) -> None:
    assert is_urgent(old, new) is expected


def test_a_flood_of_urgent_statuses_does_not_starve_the_others() -> None:
    async def scenario() -> None:
        urgent, other = many(50), pod("other")
        node = StatusHarness(*urgent, other, concurrency=2)
        node.api.seconds = lambda verb, name: 0.5
        node.manager.set_pod_status(other, status(1))
        async with node.running():
            for turn in range(200):
                for each in urgent:
                    node.manager.set_pod_status(each, status(turn, ready=turn % 2 == 0))
                await asyncio.sleep(0.1)
        assert min(at for at, name, _ in node.api.patched if name == "other") <= 3

    simulate(scenario())


def test_a_pod_that_changes_all_the_time_does_not_starve_a_thousand_others() -> None:
    async def scenario() -> None:
        pods, talker = many(1000), pod("talker")
        node = StatusHarness(*pods, talker)
        node.api.seconds = lambda verb, name: 0.1
        async with node.running():
            node.set_all(pods, 1)
            for number in range(200):
                node.manager.set_pod_status(talker, status(number))
                await asyncio.sleep(0.1)
        first = {name: at for at, name, _ in reversed(node.api.patched)}
        assert len(first) == 1001
        assert max(first.values()) <= 1001 * 0.2 / 16 + 1  # the duration with sixteen calls at a time
        assert node.api.most_at_once == 16

    simulate(scenario())


# Failures of one pod.


def test_a_hung_patch_does_not_delay_other_pods() -> None:
    async def scenario() -> None:
        pods = many(100)
        node = StatusHarness(*pods)
        node.api.hung = {"p7"}
        async with node.running():
            for number in (1, 2, 3):
                at = node.at
                node.set_all(pods, number)
                await asyncio.sleep(0.1)
                sent = [name for when, name, found in node.api.patched if found == str(number) and when == at]
                assert sorted(sent) == sorted(each.metadata.name or "" for each in pods if each is not pods[7])
                await asyncio.sleep(15)  # a batch or two
            node.api.hung = set()
            await asyncio.sleep(0.5)
            assert node.shown("p7") == "3"

    simulate(scenario())


def test_more_hung_calls_than_slots_delay_others_only_for_their_leases() -> None:
    async def scenario() -> None:
        pods = many(100)
        node = StatusHarness(*pods)
        node.api.hung = {f"p{index}" for index in range(40)}
        async with node.running():
            node.set_all(pods, 1)
            await asyncio.sleep(10.1)
            assert {name for _, name, _ in node.api.patched} == {f"p{index}" for index in range(40, 100)}
            at = node.at
            node.set_all(pods[40:], 2)
            await asyncio.sleep(5.1)  # the last hung calls may still have slots
            assert all(node.shown(f"p{index}") == "2" for index in range(40, 100)), at

    simulate(scenario())


def test_a_failing_pod_is_retried_with_backoff_and_delays_no_other() -> None:
    async def scenario() -> None:
        bad, good = pod("bad"), pod("good")
        node = StatusHarness(bad, good)

        def fail_before(verb: str, name: str) -> None:
            if name == "bad" and verb == "patch":
                raise ApiUnavailable("cannot patch: 500")

        node.api.fail_before = fail_before
        async with node.running():
            for second in range(600):
                node.manager.set_pod_status(good, status(second))
                node.manager.set_pod_status(bad, status(second))
                await asyncio.sleep(1)
        assert len([name for _, name, _ in node.api.patched if name == "good"]) == 600
        tries = [at for at, verb, name in node.api.calls if (verb, name) == ("patch", "bad")]
        assert 20 <= len(tries) <= 50
        assert max(after - before for before, after in pairwise(tries)) <= 30

    simulate(scenario())


def test_an_unexpected_error_for_one_pod_affects_no_other() -> None:
    async def scenario() -> None:
        bad, good = pod("bad"), pod("good")
        node = StatusHarness(bad, good)

        def fail_before(verb: str, name: str) -> None:
            if name == "bad" and node.at < 60:
                raise ZeroDivisionError

        node.api.fail_before = fail_before
        async with node.running():
            node.set_all((bad, good), 1)
            await asyncio.sleep(0.1)
            assert node.shown("good") == "1"
            await asyncio.sleep(120)
            assert node.shown("bad") == "1"

    simulate(scenario())


# Failures of the API.


def test_after_an_hour_without_the_api_all_newest_statuses_are_sent_soon() -> None:
    async def scenario() -> None:
        pods = many(50)
        node = StatusHarness(*pods)

        def fail_before(verb: str, name: str) -> None:
            if node.at < 3600:
                raise ApiUnavailable("cannot connect")

        node.api.fail_before = fail_before
        async with node.running():
            for number in range(60):
                node.set_all(pods, number)
                await asyncio.sleep(60)
            assert node.api.patched == []
            assert len(node.api.calls) <= 50 * 3600 / 10  # few calls while the API is down
            await asyncio.sleep(30)
        assert {node.shown(each.metadata.name or "") for each in pods} == {"59"}
        assert len(node.api.patched) == 50
        assert all(lag >= 3600 for lag in node.lags)

    simulate(scenario())


def test_a_patch_whose_answer_was_lost_is_not_sent_twice() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)

        def lost(verb: str, name: str) -> None:
            if verb == "patch" and node.at < 1:
                raise ApiUnavailable("cannot read the answer")

        node.api.fail_after = lost
        async with node.running():
            node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(0.1)
            node.watch("web")
            await asyncio.sleep(29.9)
        assert [verb for _, verb, _ in node.api.calls] == ["get", "patch", "get"]
        assert node.manager.sent_versions == {"uid-web": 1}
        assert [node.at, *node.lags] == [30.0, pytest.approx(node.api.calls[-1][0])]

    simulate(scenario())


def test_a_pod_that_is_not_in_the_api_is_retried_only_by_batches() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        node.api.pods.clear()
        async with node.running():
            node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(25)
            assert [at for at, _, _ in node.api.calls] == [0.0, 10.0, 20.0]
            node.api.put(web)
            await asyncio.sleep(10)
        assert node.shown("web") == "1"

    simulate(scenario())


@pytest.mark.parametrize("when", ["get", "patch"])
def test_the_status_of_a_recreated_pod_is_dropped_and_not_sent(when: str) -> None:
    async def scenario() -> None:
        old, new = pod("web", uid="uid-old"), pod("web", uid="uid-new")
        node = StatusHarness(old)
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(old, status(1))
        async with node.running():
            await asyncio.sleep(0.5 if when == "get" else 1.5)
            node.api.put(new)
            await asyncio.sleep(30)
        assert node.api.patched == []
        assert node.manager.get_pod_status(uid_of(old)) is None
        assert node.manager.phases() == {}

    simulate(scenario())


def test_two_pods_of_one_name_are_sent_one_after_the_other() -> None:
    async def scenario() -> None:  # FakeApi refuses two calls at once for a name
        old, new = pod("web", uid="uid-old"), pod("web", uid="uid-new")
        node = StatusHarness(old)
        node.api.put(new)
        node.api.seconds = lambda verb, name: 3.0
        async with node.running():
            for number in range(20):
                node.set_all((old, new), number)
                await asyncio.sleep(1)
            await asyncio.sleep(20)
        assert node.shown("web") == "19"

    simulate(scenario())


@settings(max_examples=60)
@given(
    updates=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0.0, 0.1, 0.7, 3.0))), max_size=25),
    seconds=st.lists(st.sampled_from((0.0, 0.2, 1.0, 7.0)), min_size=1, max_size=7),
    faults=st.lists(st.sampled_from(("", "", "", "before", "after", "bug")), min_size=1, max_size=11),
)
def test_the_api_never_gets_an_older_version_and_gets_the_newest(
    updates: list[tuple[int, float]], seconds: list[float], faults: list[str]
) -> None:
    async def scenario() -> None:
        pods = many(3)
        node = StatusHarness(*pods, concurrency=2)
        calls = {"seconds": 0, "before": 0, "after": 0}

        def turn(kind: str) -> int:
            calls[kind] += 1
            return calls[kind]

        def fault(kind: str) -> None:
            chosen = faults[turn(kind) % len(faults)] if node.at < 100 else ""
            if chosen == kind:
                raise ApiUnavailable(f"cannot, {kind} it was done")
            if chosen == "bug" and kind == "before":
                raise ValueError("a bug")

        node.api.seconds = lambda verb, name: seconds[turn("seconds") % len(seconds)]
        node.api.fail_before = lambda verb, name: fault("before")
        node.api.fail_after = lambda verb, name: fault("after")
        async with node.running():
            for number, (index, pause) in enumerate(updates, 1):
                node.manager.set_pod_status(pods[index], status(number))
                await asyncio.sleep(pause)
            await asyncio.sleep(250)
        for each in pods:
            name = each.metadata.name or ""
            sent = [int(number) for _, found, number in node.api.patched if found == name]
            cached = node.manager.get_pod_status(uid_of(each))
            assert sent == sorted(sent)
            assert node.shown(name) == (None if cached is None else cached.message)

    simulate(scenario())


# The end of pods.


def test_a_deleted_pod_is_removed_from_the_api_after_its_last_status() -> None:
    async def scenario() -> None:
        web = pod("web", deleted=True)
        node = StatusHarness(web)
        received: list[str | None] = []
        node.manager.subscribe(lambda uid, accepted: received.append(accepted.phase))
        node.could_run.add(uid_of(web))
        async with node.running():
            node.manager.set_pod_status(web, status(1, phase="Failed"))
            await asyncio.sleep(15)
            assert (node.api.pods["web"].status.phase, node.api.deletions) == (None, [])  # a container could still run
            node.could_run.clear()
            node.manager.terminate_pod(web)
            await asyncio.sleep(1)
        assert node.api.deletions == [("web", 0, "uid-web")]
        assert received == ["Failed", "Failed"]
        assert (dict(node.manager.cached), dict(node.manager.phases())) == ({}, {})

    simulate(scenario())


def test_the_status_of_a_deleted_pod_stays_while_it_is_needed() -> None:
    async def scenario() -> None:
        web, needed = pod("web", deleted=True), {"uid-web"}
        node = StatusHarness(web, journal=(journal := StatusJournal()), hooks={"is_needed": needed.__contains__})
        async with node.running():
            node.manager.set_pod_status(web, status(1, phase="Failed"))
            node.manager.terminate_pod(web)
            await asyncio.sleep(30)
            assert node.api.deletions == [("web", 0, "uid-web")]
            assert node.manager.phases() == {"uid-web": "Failed"}
            assert "status/uid-web" in journal.values
            needed.clear()
            node.manager.remove_orphaned_statuses(())
            assert (dict(node.manager.cached), journal.values) == ({}, {})

    simulate(scenario())


@pytest.mark.parametrize("gone", [False, True], ids=["is retried", "another client has deleted the pod"])
def test_a_failed_deletion(gone: bool) -> None:
    async def scenario() -> None:
        web = pod("web", deleted=True)
        node = StatusHarness(web)

        def fail_before(verb: str, name: str) -> None:
            if verb == "delete" and node.at < 5:
                if gone:
                    del node.api.pods["web"]
                else:
                    raise ApiUnavailable("cannot connect")

        node.api.fail_before = fail_before
        async with node.running():
            node.manager.set_pod_status(web, status(1, phase="Succeeded"))
            node.manager.terminate_pod(web)
            await asyncio.sleep(40)
        assert node.api.pods == {}
        assert dict(node.manager.cached) == {}

    simulate(scenario())


def test_sync_batch_sends_failed_statuses_at_shutdown() -> None:
    async def scenario() -> None:
        pods = many(30)
        node = StatusHarness(*pods)
        node.api.seconds = lambda verb, name: 0.1

        def fail_before(verb: str, name: str) -> None:
            if node.at < 1.5:
                raise ApiUnavailable("cannot connect")

        node.api.fail_before = fail_before
        async with node.running():
            node.set_all(pods, 1)
            await asyncio.sleep(1.5)  # all have failed and are in backoff
            assert await node.manager.sync_batch(every=False) == 30
            assert {node.shown(each.metadata.name or "") for each in pods} == {"1"}
            assert node.at < 2.5
            assert await node.manager.sync_batch(every=False) == 0

    simulate(scenario())


def test_orphaned_statuses_are_removed() -> None:
    async def scenario() -> None:
        pods = many(3)
        node = StatusHarness(*pods)
        node.set_all(pods, 1)
        node.manager.remove_orphaned_statuses([uid_of(pods[1])])
        assert list(node.manager.cached) == list(node.manager.phases()) == [uid_of(pods[1])]
        async with node.running():
            await asyncio.sleep(30)
        assert [name for _, name, _ in node.api.patched] == ["p1"]
        node.manager.remove_orphaned_statuses(())
        async with node.running():
            await asyncio.sleep(11)
        assert dict(node.manager.sent_versions) == {}

    simulate(scenario())


# Static pods.


@pytest.mark.parametrize("hint", [False, True], ids=["until the next batch", "until mirror_changed"])
def test_the_status_of_a_static_pod_waits_for_its_mirror_pod(hint: bool) -> None:
    async def scenario() -> None:
        static, first, second = (
            pod("dns", uid="hash", source="file"),
            *(pod("dns", uid=uid, mirror="hash") for uid in ("m1", "m2")),
        )
        node = StatusHarness(static)
        async with node.running():
            node.manager.set_pod_status(static, status(1, ready=True))
            await asyncio.sleep(15)
            assert node.api.calls == []
            for mirror in (first, second):  # the second one replaces the first
                node.api.put(mirror)
                node.known.remove(first)
                node.known.update(mirror)
                node.manager.mirror_changed(PodUID("unknown"))
                if hint:
                    node.manager.mirror_changed(uid_of(static))
                await asyncio.sleep(0.1 if hint else 10)
                assert node.shown("dns") == "1"
                assert uid_of(mirror) in node.manager.sent_versions

    simulate(scenario())


# Without an API, and bad input.


def test_without_an_api_everything_but_sending_works() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web, api=False)
        received: list[tuple[str, str | None]] = []
        node.manager.subscribe(lambda uid, accepted: received.append((uid, accepted.phase)))
        async with node.running():
            assert node.manager.set_pod_status(
                web, replace(status(1), container_statuses=(container_status(ready=False),))
            )
            assert node.manager.set_container_readiness(uid_of(web), "fake://app", True)
            assert node.manager.set_container_startup(uid_of(web), "fake://app", True)
            node.manager.mirror_changed(uid_of(web))
            assert await node.manager.sync_batch(every=True) == 0
            await asyncio.sleep(60)
        kept = node.manager.get_pod_status(uid_of(web))
        assert kept is not None
        assert kept.container_statuses is not None
        assert (kept.container_statuses[0].ready, kept.container_statuses[0].started) == (True, True)
        assert dict(node.manager.phases()) == {"uid-web": "Running"}
        assert received == [("uid-web", "Running")] * 3
        assert not node.manager.has_changes

    simulate(scenario())


def test_a_pod_without_a_uid_is_rejected() -> None:
    async def scenario() -> None:
        without_uid = build.pod("web", namespace="ns", uid="")
        node = StatusHarness()
        for call in (
            lambda: node.manager.set_pod_status(without_uid, status()),
            lambda: node.manager.terminate_pod(without_uid),
        ):
            with pytest.raises(BadInput, match=r"metadata\.uid: Required value: cannot store the status of pod ns/web"):
                call()
        assert dict(node.manager.cached) == {}

    simulate(scenario())


def test_a_probe_result_for_an_unknown_pod_or_container_changes_nothing() -> None:
    async def scenario() -> None:
        web, silent = pod("web"), pod("no-status")
        node = StatusHarness(web, silent)
        node.manager.set_pod_status(web, replace(status(1), container_statuses=(container_status(),)))
        for uid, container_id in (
            ("unknown", "fake://app"),
            ("uid-no-status", "fake://app"),
            ("uid-web", "fake://dead"),
        ):
            assert not node.manager.set_container_readiness(PodUID(uid), container_id, False)
            assert not node.manager.set_container_startup(PodUID(uid), container_id, False)
        assert {uid: cached.version for uid, cached in node.manager.cached.items()} == {"uid-web": 1}

    simulate(scenario())


def test_a_terminated_container_stays_terminated() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        node.manager.set_pod_status(web, replace(status(1), container_statuses=(container_status(exit_code=3),)))
        assert not node.manager.set_pod_status(web, replace(status(2), container_statuses=(container_status(),)))
        kept = node.manager.get_pod_status(uid_of(web))
        assert kept is not None
        assert kept.message == "1"

    simulate(scenario())


def test_a_failing_subscriber_affects_no_other() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web)
        received: list[PodUID] = []

        def fail(uid: PodUID, accepted: PodStatus) -> None:
            raise RuntimeError("a bug")

        node.manager.subscribe(fail)
        node.manager.subscribe(lambda uid, accepted: received.append(uid))
        assert node.manager.set_pod_status(web, status(1))
        assert received == ["uid-web"]

    simulate(scenario())


# The journal.


def test_a_restart_keeps_exit_codes_and_readiness() -> None:
    async def scenario() -> None:
        web, gone = pod("web", source="file"), pod("gone", source="file")
        journal = StatusJournal()
        before = StatusHarness(web, gone, api=False, journal=journal)
        async with before.running():
            before.manager.set_pod_status(gone, status(1))
            before.manager.set_pod_status(
                web, replace(status(2, ready=True), container_statuses=(container_status(exit_code=3),))
            )
            await asyncio.sleep(1)
        kept = before.manager.get_pod_status(uid_of(web))
        after = StatusHarness(web, api=False, journal=StatusJournal(dict(journal.durable)))
        assert dict(after.manager.phases()) == {}  # not loaded yet
        for op in (Op.UPDATE, Op.REMOVE):
            after.manager.restore_added(PodUpdate(op, (web,), "api"))
        assert dict(after.manager.phases()) == {}
        after.manager.restore_added(PodUpdate(Op.ADD, (web,), "api"))
        assert dict(after.manager.phases()) == {"uid-web": "Running"}
        assert after.manager.get_pod_status(uid_of(web)) == kept
        assert not after.manager.set_pod_status(
            web, replace(status(3), container_statuses=(container_status(),))
        )  # it terminated
        assert after.manager.set_pod_status(
            web, replace(status(3), container_statuses=(container_status(exit_code=3),))
        )
        assert after.manager.cached[uid_of(web)].version == 2
        assert after.manager.get_pod_status(uid_of(gone)) is not None

    simulate(scenario())


def test_after_a_restart_an_unsent_status_is_sent() -> None:
    async def scenario() -> None:
        web = pod("web")
        journal = StatusJournal()
        before = StatusHarness(web, journal=journal)
        before.manager.set_pod_status(web, status(1, phase="Succeeded"))
        after = StatusHarness(web, journal=journal)
        after.manager.restore([web])
        async with after.running():
            await asyncio.sleep(11)
        assert after.shown("web") == "1"

    simulate(scenario())


def test_a_checkpoint_behind_the_api_is_not_sent_even_if_an_old_list_equals_it() -> None:
    """Simulation seed 13: the newest checkpoint was not written, and the first list was as old as the previous one."""

    async def scenario() -> None:
        web = pod("web")
        before = StatusHarness(web, journal=(journal := StatusJournal()))
        running = replace(status(1, ready=True), container_statuses=(container_status(),))
        before.manager.set_pod_status(web, running)
        exited = replace(status(2), container_statuses=(container_status(exit_code=3),))
        after = StatusHarness(replace(web, status=exited), journal=journal)
        after.manager.restore([replace(web, status=running)])
        async with after.running():
            await asyncio.sleep(11)
        assert after.shown("web") == "2"
        assert journal.values == {}

    simulate(scenario())


def test_checkpoints_are_dropped_with_their_pods() -> None:
    async def scenario() -> None:
        web, old = pod("web"), pod("old")
        first = StatusHarness(web, old, journal=(journal := StatusJournal()))
        first.set_all((web, old), 1)
        journal.put("else/where", b"not ours")
        second = StatusHarness(web, journal=journal)
        second.manager.remove_orphaned_statuses({uid_of(web)})
        assert sorted(journal.values) == ["else/where", "status/uid-web"]
        second.manager.restore([web])
        second.manager.remove_orphaned_statuses(frozenset())
        assert sorted(journal.values) == ["else/where"]

    simulate(scenario())


NOT_UTF_8 = b'{"name": "\xff"}'
TOO_DEEP = b'{"x": ' + b"[" * 2000


@pytest.mark.parametrize("data", [b"", b"not json", b"{}", b'{"version": "one"}', b"\xff", NOT_UTF_8, TOO_DEEP])
def test_a_checkpoint_that_cannot_be_decoded_is_dropped(data: bytes) -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web, journal=(journal := StatusJournal({"status/uid-web": data})))
        assert node.manager.get_pod_status(uid_of(web)) is None
        assert journal.values == {}
        assert node.manager.set_pod_status(web, status(1))

    simulate(scenario())


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3, 0.5, 0.7])
def test_a_status_is_sent_only_after_it_is_durable(pause: float) -> None:
    async def scenario() -> None:
        web = pod("web")
        node = StatusHarness(web, journal=(journal := StatusJournal(seconds=0.5)))
        node.api.seconds = lambda verb, name: 0.2
        safe: list[bool] = []

        def lost(verb: str, name: str) -> None:
            durable = msgspec.json.decode(journal.durable["status/uid-web"], type=CachedStatus)
            safe.append(verb == "get" or durable.version >= int(node.shown("web") or 0))

        node.api.fail_after = lost
        async with node.running():
            for number in range(1, 40):
                node.manager.set_pod_status(web, status(number))
                await asyncio.sleep(pause)
            await asyncio.sleep(5)
        assert len(node.api.patched) >= 39 * pause / 1.5  # a pod that keeps changing is sent as well
        assert node.shown("web") == "39"
        assert all(safe)

    simulate(scenario())


@pytest.mark.parametrize("journal", [StatusJournal(seconds=1e6), StatusJournal(failures=3)], ids=["hangs", "fails"])
def test_statuses_are_sent_even_if_the_disk_hangs_or_fails(journal: StatusJournal) -> None:
    async def scenario() -> None:
        pods = many(2)
        node = StatusHarness(*pods, journal=journal)
        async with node.running():
            node.manager.set_pod_status(pods[0], status(1))
            await asyncio.sleep(0.5)
            node.manager.set_pod_status(pods[1], status(1))
            await asyncio.sleep(2)
            assert [node.shown("p0"), node.shown("p1")] == ["1", "1"]
            await asyncio.sleep(60)
            assert journal.seconds > 0 or journal.durable == journal.values
            node.manager.set_pod_status(pods[0], status(2))
            assert await node.manager.sync_batch(every=False) == 1

    simulate(scenario())


# Whether a status survives a crash.


def test_a_status_is_saved_if_the_journal_or_the_api_has_it() -> None:
    async def scenario() -> None:
        web, journal = pod("web"), StatusJournal()
        node = StatusHarness(web, journal=journal)
        assert await node.manager.is_saved(uid_of(web))  # no status can be lost
        node.manager.set_pod_status(web, status(1))
        assert await node.manager.is_saved(uid_of(web))
        journal.failures = 1000
        node.manager.set_pod_status(web, status(2))
        assert not await node.manager.is_saved(uid_of(web))
        await node.manager.sync_batch(every=True)
        assert await node.manager.is_saved(uid_of(web))
        node.manager.set_pod_status(web, status(3))
        assert not await node.manager.is_saved(uid_of(web))  # the API has an older one
        journal.failures = 0
        assert not await node.manager.is_saved(uid_of(web))  # after the timeout; the next batch retries
        node.manager.set_pod_status(web, status(4))
        assert await node.manager.is_saved(uid_of(web))

    simulate(scenario())


def test_a_forgotten_pod_that_comes_back_is_not_saved_by_an_earlier_version() -> None:
    async def scenario() -> None:
        web, journal = pod("web"), StatusJournal()
        node = StatusHarness(web, journal=journal)
        node.manager.set_pod_status(web, status(1))
        await node.manager.sync_batch(every=True)
        node.manager.forget(uid_of(web))
        journal.failures = 1000
        node.manager.set_pod_status(web, status(2))  # version 1 again
        assert not await node.manager.is_saved(uid_of(web))
        await node.manager.sync_batch(every=True)
        assert await node.manager.is_saved(uid_of(web))

    simulate(scenario())


def test_without_a_mirror_pod_the_status_of_a_static_pod_is_saved_only_by_the_journal() -> None:
    async def scenario() -> None:
        static, journal = pod("static", source="file"), StatusJournal()
        node = StatusHarness(static, journal=journal)
        journal.failures = 1000
        node.manager.set_pod_status(static, status(1))
        await node.manager.sync_batch(every=True)
        assert not await node.manager.is_saved(uid_of(static))

    simulate(scenario())
