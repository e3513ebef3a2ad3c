"""The status manager in virtual time: what the API is told, in which order, and what no trouble may delay or lose."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podkeeper.engine.manager import PodManager
from podkeeper.engine.notebook import Notebook
from podkeeper.engine.postman import Postman
from podkeeper.engine.status import StatusManager
from podkeeper.model.errors import ApiUnavailable, BadInput, Conflict, NotFound, TryLater
from podkeeper.model.k8s.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
    PodUID,
)
from podkeeper.model.wire import JSONObject, Wire
from podkeeper.rules.patch.strategic import apply
from podkeeper.rules.status.publish import CachedStatus, is_urgent
from podkeeper.testing.port_calls import PortCalls
from podkeeper.testing.virtual_time import VirtualClock, simulate
from tests.doubles import stand_in
from tests.violations import violation

K = TypeVar("K", bound=Wire)


def pod(
    name: str, uid: str = "", *, source: str = "api", mirror: bool = False, deleted: bool = False, hashed: str = ""
) -> Pod:
    annotations = {CONFIG_SOURCE_ANNOTATION: source} | ({CONFIG_MIRROR_ANNOTATION: "hash"} if mirror else {})
    annotations |= {CONFIG_HASH_ANNOTATION: hashed} if hashed else {}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=uid or f"uid-{name}",
            annotations=annotations,
            deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None,
        ),
        spec=PodSpec(containers=(), restart_policy="Never"),
    )


def status(number: int = 0, *, phase: str = "Running", ready: bool = False) -> PodStatus:
    """A status; its number is what the API's status can be told by."""
    condition = PodCondition(type="Ready", status="True" if ready else "False")
    return PodStatus(phase=phase, message=str(number), conditions=(condition,))


def container(ready: bool = True, exit_code: int | None = None) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning())
    if exit_code is not None:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=exit_code))
    return ContainerStatus(name="app", container_id="fake://app", state=state, ready=ready)


def uid_of(of: Pod) -> PodUID:
    return PodUID(of.metadata.uid or "")


@dataclass
class FakeApi:
    """Pods in the API. `trouble(verb, name)` comes before a call takes effect, `lost` after it."""

    pods: dict[str, Pod] = field(default_factory=dict)
    trouble: Callable[[str, str], None] = lambda verb, name: None
    lost: Callable[[str, str], None] = lambda verb, name: None
    seconds: Callable[[str, str], float] = lambda verb, name: 0.0
    hung: set[str] = field(default_factory=set)  # names of pods whose patches do not return
    calls: list[tuple[float, str, str]] = field(default_factory=list)  # begun
    told: list[tuple[float, str, str]] = field(default_factory=list)  # when, whom, number of the status
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
            self.trouble(verb, name)
            if name not in self.pods or self.pods[name].metadata.namespace != namespace:
                raise NotFound(f"cannot {verb} {name}: there is none")
            yield
            self.lost(verb, name)
        finally:
            self.busy[name] -= 1

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        async with self.call("get", name, namespace):
            found = self.pods[name]
            assert isinstance(found, kind)
            return found

    async def create(self, what: K) -> K:
        raise violation("a status manager creates nothing")

    async def patch(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        raise violation("a status manager patches only the status")

    async def patch_status(self, kind: type[K], name: str, patch: JSONObject, namespace: str = "") -> K:
        async with self.call("patch", name, namespace):
            if patch["metadata"]["uid"] != self.pods[name].metadata.uid:
                raise Conflict(f"cannot patch {name}: it is another pod")
            old = msgspec.json.decode(msgspec.json.encode(self.pods[name]))
            patched = msgspec.convert(apply(old, patch, "v1/Pod"), kind)
            assert isinstance(patched, Pod)
            self.pods[name] = patched
            self.told.append((asyncio.get_running_loop().time(), name, patched.status.message or ""))
            return patched

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
class FakeJournal:
    """A dictionary; `sync` may be slow, or refuse."""

    notes: dict[str, bytes] = field(default_factory=dict)
    durable: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    refusals: int = 0

    def load(self) -> Mapping[str, bytes]:
        return dict(self.notes)

    def put(self, key: str, value: bytes) -> None:
        self.notes[key] = value

    def purge(self) -> None:
        raise violation("a status manager keeps no secrets")

    def drop(self, key: str) -> None:
        self.notes.pop(key, None)

    async def sync(self) -> None:
        writing = dict(self.notes)
        await asyncio.sleep(self.seconds)
        if self.refusals:
            self.refusals -= 1
            raise TryLater("cannot write: the disk is full")
        self.durable = writing


class Hooks(TypedDict, total=False):
    """What a status manager asks others, besides its neighbours."""

    is_outdated: Callable[[Pod, Pod], bool]
    is_needed: Callable[[PodUID], bool]
    takes_back: Callable[[Pod, PodStatus], bool]
    align: Callable[[Pod, PodStatus, bool], PodStatus]
    only_running_is_ready: bool


class Node:
    """A status manager with its neighbours; `at` is the time."""

    def __init__(
        self,
        *pods: Pod,
        api: bool = True,
        journal: FakeJournal | None = None,
        concurrency: int = 16,
        calls: PortCalls | None = None,
        clock: VirtualClock | None = None,
        known: PodManager | None = None,
        postman: object = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.api = FakeApi()
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
            postman=stand_in(
                Postman, postman or Postman[PodUID](clock=self.clock, what="status of pod", concurrency=concurrency)
            ),
            notebook=Notebook(
                journal if calls is None or journal is None else calls.watch("journal", journal), "status/"
            ),
            observe_lag=self.lags.append,
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
        """Let the pod manager see what the API has."""
        self.known.update(self.api.pods[name])


def many(count: int) -> list[Pod]:
    return [pod(f"p{index}") for index in range(count)]


# What is sent, and when.


def test_a_change_is_sent_at_once_and_its_lag_observed() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        node.api.seconds = lambda verb, name: 0.25
        async with node.running():
            await asyncio.sleep(3)
            assert node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(1)
        assert node.api.told == [(3.5, "web", "1")]
        assert node.manager.sent_versions == {"uid-web": 1}
        assert node.lags == [0.5]

    simulate(scenario())


def test_an_unchanged_status_is_not_sent_again() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(1)
            node.watch("web")
            assert not node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(60)
        assert [verb for _, verb, _ in node.api.calls] == ["get", "patch"]

    simulate(scenario())


def test_changes_made_while_one_is_sent_go_out_as_one_afterwards() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        node.api.seconds = lambda verb, name: 1.0
        async with node.running():
            for number in range(1, 6):
                node.manager.set_pod_status(web, status(number))
                await asyncio.sleep(0.3)
            await asyncio.sleep(10)
        assert [(at, number) for at, _, number in node.api.told] == [(2.0, "1"), (4.0, "5")]
        assert node.lags == [2.0, pytest.approx(3.7)]  # the second since 0.3, when 2 came

    simulate(scenario())


def test_a_status_that_somebody_overwrote_is_put_right_by_the_batch() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(12)
            meddled = replace(node.api.pods["web"], status=status(666))
            node.api.put(meddled)
            node.watch("web")
            await asyncio.sleep(10)
            assert node.shown("web") == "1"
            node.watch("web")
            calls = len(node.api.calls)
            await asyncio.sleep(60)
            assert len(node.api.calls) == calls

    simulate(scenario())


@pytest.mark.parametrize("static", [False, True], ids=["of its own", "of its mirror"])
def test_a_status_that_is_overwritten_after_batches_agreed_with_it_is_put_right(static: bool) -> None:
    async def scenario() -> None:
        web = pod("web", source="file" if static else "api")
        node = Node(web, pod("web", "uid-mirror", mirror=True)) if static else Node(web)
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(1)
            for meddling in (666, 667):
                node.watch("web")  # the watch shows what we sent
                await asyncio.sleep(25)  # two batches agree
                agreed = len(node.api.calls)
                node.api.put(replace(node.api.pods["web"], status=status(meddling)))
                node.watch("web")
                await asyncio.sleep(10)
                assert len(node.api.calls) > agreed
                assert node.shown("web") == "1"

    simulate(scenario())


def test_a_batch_of_unsent_versions_does_not_take_an_overwritten_status_for_agreed() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
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
def test_an_overwritten_status_whose_correction_failed_counts_as_unsent(static: bool) -> None:
    async def scenario() -> None:
        web = pod("web", "hash", source="file", hashed="hash") if static else pod("web")
        node = Node(web, pod("web", "m-1", mirror=True)) if static else Node(web)
        node.manager.set_pod_status(web, status(1, ready=True))
        await node.manager.sync_batch(every=True)
        node.api.put(replace(node.api.pods["web"], status=status(666)))
        node.watch("web")

        def away(verb: str, name: str) -> None:
            raise ApiUnavailable("cannot reach the API")

        node.api.trouble = away
        await node.manager.sync_batch(every=True)
        assert node.shown("web") == "666"
        node.api.trouble = lambda verb, name: None
        assert await node.manager.sync_batch(every=False) == 1  # as at shutdown
        assert node.shown("web") == "1"

    simulate(scenario())


def test_a_version_accepted_while_another_is_sent_counts_as_unsent() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(web, status(1))
        async with asyncio.TaskGroup() as group:
            batch = group.create_task(node.manager.sync_batch(every=False))
            await asyncio.sleep(1.5)  # in the middle of the patch
            node.manager.set_pod_status(web, status(2))
            assert await batch == 1
        assert node.shown("web") == "1"
        assert await node.manager.sync_batch(every=False) == 1
        assert node.shown("web") == "2"

    simulate(scenario())


def test_a_condition_of_somebody_else_is_kept() -> None:
    async def scenario() -> None:
        web = pod("web")
        gate = PodCondition(type="example.com/gate", status="True")
        node = Node(replace(web, status=PodStatus(conditions=(gate,))))
        async with node.running():
            node.manager.set_pod_status(web, status(1, ready=True))
            await asyncio.sleep(1)
        assert [each.type for each in node.api.pods["web"].status.conditions or ()] == ["example.com/gate", "Ready"]

    simulate(scenario())


def test_ready_and_terminal_statuses_overtake_the_rest() -> None:
    async def scenario() -> None:
        usual, ready, over = many(100), pod("ready"), pod("over")
        node = Node(*usual, ready, over, concurrency=4)
        node.api.seconds = lambda verb, name: 1.0
        node.set_all(usual, 1)
        node.manager.set_pod_status(ready, status(1, ready=True))
        node.manager.set_pod_status(over, status(1, phase="Succeeded"))
        async with node.running():
            await asyncio.sleep(60)
        assert len(node.api.told) == 102
        assert {"ready", "over"} <= {name for _, name, _ in node.api.told[:4]}

    simulate(scenario())


URGENCY: dict[str, tuple[PodStatus | None, PodStatus, bool]] = {
    "the first status of a pod that waits": (None, status(phase="Pending"), False),
    "the first status of a pod that is ready": (None, status(ready=True), True),
    "the pod becomes ready": (status(), status(ready=True), True),
    "the pod becomes unready": (status(ready=True), status(), True),
    "the pod ends": (status(), status(phase="Succeeded"), True),
    "a ready pod stays so": (status(1, ready=True), status(2, ready=True), False),
    "a pod that is over stays so": (status(1, phase="Failed"), status(2, phase="Failed"), False),
}


@pytest.mark.parametrize("old, new, expected", URGENCY.values(), ids=URGENCY.keys())
def test_urgency(old: PodStatus | None, new: PodStatus, expected: bool) -> None:
    assert is_urgent(old, new) is expected


def test_a_flood_of_urgent_statuses_does_not_starve_the_others() -> None:
    async def scenario() -> None:
        urgent, quiet = many(50), pod("quiet")
        node = Node(*urgent, quiet, concurrency=2)
        node.api.seconds = lambda verb, name: 0.5
        node.manager.set_pod_status(quiet, status(1))
        async with node.running():
            for turn in range(200):
                for each in urgent:
                    node.manager.set_pod_status(each, status(turn, ready=turn % 2 == 0))
                await asyncio.sleep(0.1)
        assert min(at for at, name, _ in node.api.told if name == "quiet") <= 3

    simulate(scenario())


def test_a_thousand_pods_and_one_that_never_stops_talking_all_have_their_turn() -> None:
    async def scenario() -> None:
        pods, talker = many(1000), pod("talker")
        node = Node(*pods, talker)
        node.api.seconds = lambda verb, name: 0.1
        async with node.running():
            node.set_all(pods, 1)
            for number in range(200):
                node.manager.set_pod_status(talker, status(number))
                await asyncio.sleep(0.1)
        first = {name: at for at, name, _ in reversed(node.api.told)}
        assert len(first) == 1001
        assert max(first.values()) <= 1001 * 0.2 / 16 + 1  # as fast as sixteen at a time can be
        assert node.api.most_at_once == 16

    simulate(scenario())


# One pod's trouble.


def test_one_hung_patch_delays_none_of_a_hundred_pods() -> None:
    async def scenario() -> None:
        pods = many(100)
        node = Node(*pods)
        node.api.hung = {"p7"}
        async with node.running():
            for number in (1, 2, 3):
                at = node.at
                node.set_all(pods, number)
                await asyncio.sleep(0.1)
                told = [name for when, name, told in node.api.told if told == str(number) and when == at]
                assert sorted(told) == sorted(each.metadata.name or "" for each in pods if each is not pods[7])
                await asyncio.sleep(15)  # a batch or two
            node.api.hung = set()
            await asyncio.sleep(0.5)
            assert node.shown("p7") == "3"

    simulate(scenario())


def test_more_hung_calls_than_slots_hold_nobody_up_for_longer_than_their_leases() -> None:
    async def scenario() -> None:
        pods = many(100)
        node = Node(*pods)
        node.api.hung = {f"p{index}" for index in range(40)}
        async with node.running():
            node.set_all(pods, 1)
            await asyncio.sleep(10.1)
            assert {name for _, name, _ in node.api.told} == {f"p{index}" for index in range(40, 100)}
            at = node.at
            node.set_all(pods[40:], 2)
            await asyncio.sleep(5.1)  # the last of the hung may still hold slots
            assert all(node.shown(f"p{index}") == "2" for index in range(40, 100)), at

    simulate(scenario())


def test_a_pod_the_api_always_refuses_is_retried_ever_more_slowly_and_alone() -> None:
    async def scenario() -> None:
        bad, good = pod("bad"), pod("good")
        node = Node(bad, good)

        def trouble(verb: str, name: str) -> None:
            if name == "bad" and verb == "patch":
                raise ApiUnavailable("cannot patch: 500")

        node.api.trouble = trouble
        async with node.running():
            for second in range(600):
                node.manager.set_pod_status(good, status(second))
                node.manager.set_pod_status(bad, status(second))
                await asyncio.sleep(1)
        assert len([name for _, name, _ in node.api.told if name == "good"]) == 600
        tries = [at for at, verb, name in node.api.calls if (verb, name) == ("patch", "bad")]
        assert 20 <= len(tries) <= 50
        assert max(after - before for before, after in pairwise(tries)) <= 30

    simulate(scenario())


def test_an_unforeseen_exception_in_one_sending_harms_no_other() -> None:
    async def scenario() -> None:
        bad, good = pod("bad"), pod("good")
        node = Node(bad, good)

        def trouble(verb: str, name: str) -> None:
            if name == "bad" and node.at < 60:
                raise ZeroDivisionError

        node.api.trouble = trouble
        async with node.running():
            node.set_all((bad, good), 1)
            await asyncio.sleep(0.1)
            assert node.shown("good") == "1"
            await asyncio.sleep(120)
            assert node.shown("bad") == "1"

    simulate(scenario())


# The API's trouble.


def test_after_an_hour_without_the_api_it_soon_knows_the_newest_of_everything() -> None:
    async def scenario() -> None:
        pods = many(50)
        node = Node(*pods)

        def trouble(verb: str, name: str) -> None:
            if node.at < 3600:
                raise ApiUnavailable("cannot connect")

        node.api.trouble = trouble
        async with node.running():
            for number in range(60):
                node.set_all(pods, number)
                await asyncio.sleep(60)
            assert node.api.told == []
            assert len(node.api.calls) <= 50 * 3600 / 10  # nobody hammers what is down
            await asyncio.sleep(30)
        assert {node.shown(each.metadata.name or "") for each in pods} == {"59"}
        assert len(node.api.told) == 50
        assert all(lag >= 3600 for lag in node.lags)

    simulate(scenario())


def test_a_patch_whose_answer_was_lost_is_not_sent_twice() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)

        def lost(verb: str, name: str) -> None:
            if verb == "patch" and node.at < 1:
                raise ApiUnavailable("cannot read the answer")

        node.api.lost = lost
        async with node.running():
            node.manager.set_pod_status(web, status(1))
            await asyncio.sleep(0.1)
            node.watch("web")
            await asyncio.sleep(29.9)
        assert [verb for _, verb, _ in node.api.calls] == ["get", "patch", "get"]
        assert node.manager.sent_versions == {"uid-web": 1}
        assert [node.at, *node.lags] == [30.0, pytest.approx(node.api.calls[-1][0])]

    simulate(scenario())


def test_a_pod_that_is_not_in_the_api_is_looked_for_with_each_batch_only() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
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
def test_a_recreated_pod_is_not_touched_and_the_old_status_dropped(when: str) -> None:
    async def scenario() -> None:
        old, new = pod("web", "uid-old"), pod("web", "uid-new")
        node = Node(old)
        node.api.seconds = lambda verb, name: 1.0
        node.manager.set_pod_status(old, status(1))
        async with node.running():
            await asyncio.sleep(0.5 if when == "get" else 1.5)
            node.api.put(new)
            await asyncio.sleep(30)
        assert node.api.told == []
        assert node.manager.get_pod_status(uid_of(old)) is None
        assert node.manager.phases() == {}

    simulate(scenario())


def test_two_pods_of_one_name_are_never_sent_at_once() -> None:
    async def scenario() -> None:  # FakeApi refuses two calls at once for a name
        old, new = pod("web", "uid-old"), pod("web", "uid-new")
        node = Node(old)
        node.api.put(new)
        node.api.seconds = lambda verb, name: 3.0
        async with node.running():
            for number in range(20):
                node.set_all((old, new), number)
                await asyncio.sleep(1)
            await asyncio.sleep(20)
        assert node.shown("web") == "19"

    simulate(scenario())


@settings(max_examples=60, deadline=None)
@given(
    updates=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0.0, 0.1, 0.7, 3.0))), max_size=25),
    seconds=st.lists(st.sampled_from((0.0, 0.2, 1.0, 7.0)), min_size=1, max_size=7),
    faults=st.lists(st.sampled_from(("", "", "", "before", "after", "bug")), min_size=1, max_size=11),
)
def test_the_api_never_goes_back_and_always_arrives(
    updates: list[tuple[int, float]], seconds: list[float], faults: list[str]
) -> None:
    async def scenario() -> None:
        pods = many(3)
        node = Node(*pods, concurrency=2)
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
        node.api.trouble = lambda verb, name: fault("before")
        node.api.lost = lambda verb, name: fault("after")
        async with node.running():
            for number, (index, pause) in enumerate(updates, 1):
                node.manager.set_pod_status(pods[index], status(number))
                await asyncio.sleep(pause)
            await asyncio.sleep(250)
        for each in pods:
            name = each.metadata.name or ""
            told = [int(number) for _, found, number in node.api.told if found == name]
            cached = node.manager.get_pod_status(uid_of(each))
            assert told == sorted(told)
            assert node.shown(name) == (None if cached is None else cached.message)

    simulate(scenario())


# The end of pods.


def test_a_deleted_pod_leaves_the_api_once_its_last_status_is_there() -> None:
    async def scenario() -> None:
        web = pod("web", deleted=True)
        node = Node(web)
        told: list[str | None] = []
        node.manager.subscribe(lambda uid, accepted: told.append(accepted.phase))
        node.could_run.add(uid_of(web))
        async with node.running():
            node.manager.set_pod_status(web, status(1, phase="Failed"))
            await asyncio.sleep(15)
            assert (node.api.pods["web"].status.phase, node.api.deletions) == (None, [])  # it could still run
            node.could_run.clear()
            node.manager.terminate_pod(web)
            await asyncio.sleep(1)
        assert node.api.deletions == [("web", 0, "uid-web")]
        assert told == ["Failed", "Failed"]
        assert (dict(node.manager.cached), dict(node.manager.phases())) == ({}, {})

    simulate(scenario())


def test_the_status_of_a_deleted_pod_stays_while_it_is_needed() -> None:
    async def scenario() -> None:
        web, needed = pod("web", deleted=True), {"uid-web"}
        node = Node(web, journal=(journal := FakeJournal()), hooks={"is_needed": needed.__contains__})
        async with node.running():
            node.manager.set_pod_status(web, status(1, phase="Failed"))
            node.manager.terminate_pod(web)
            await asyncio.sleep(30)
            assert node.api.deletions == [("web", 0, "uid-web")]
            assert node.manager.phases() == {"uid-web": "Failed"}
            assert "status/uid-web" in journal.notes
            needed.clear()
            node.manager.remove_orphaned_statuses(())
            assert (dict(node.manager.cached), journal.notes) == ({}, {})

    simulate(scenario())


@pytest.mark.parametrize("gone", [False, True], ids=["a failed deletion is retried", "somebody else was faster"])
def test_a_deletion_that_goes_wrong(gone: bool) -> None:
    async def scenario() -> None:
        web = pod("web", deleted=True)
        node = Node(web)

        def trouble(verb: str, name: str) -> None:
            if verb == "delete" and node.at < 5:
                if gone:
                    del node.api.pods["web"]
                else:
                    raise ApiUnavailable("cannot connect")

        node.api.trouble = trouble
        async with node.running():
            node.manager.set_pod_status(web, status(1, phase="Succeeded"))
            node.manager.terminate_pod(web)
            await asyncio.sleep(40)
        assert node.api.pods == {}
        assert dict(node.manager.cached) == {}

    simulate(scenario())


def test_what_is_final_can_be_sent_before_the_agent_ends() -> None:
    async def scenario() -> None:
        pods = many(30)
        node = Node(*pods)
        node.api.seconds = lambda verb, name: 0.1

        def trouble(verb: str, name: str) -> None:
            if node.at < 1.5:
                raise ApiUnavailable("cannot connect")

        node.api.trouble = trouble
        async with node.running():
            node.set_all(pods, 1)
            await asyncio.sleep(1.5)  # all have failed and wait
            assert await node.manager.sync_batch(every=False) == 30
            assert {node.shown(each.metadata.name or "") for each in pods} == {"1"}
            assert node.at < 2.5
            assert await node.manager.sync_batch(every=False) == 0

    simulate(scenario())


def test_orphans_are_forgotten() -> None:
    async def scenario() -> None:
        pods = many(3)
        node = Node(*pods)
        node.set_all(pods, 1)
        node.manager.remove_orphaned_statuses([uid_of(pods[1])])
        assert list(node.manager.cached) == list(node.manager.phases()) == [uid_of(pods[1])]
        async with node.running():
            await asyncio.sleep(30)
        assert [name for _, name, _ in node.api.told] == ["p1"]
        node.manager.remove_orphaned_statuses(())
        async with node.running():
            await asyncio.sleep(11)
        assert dict(node.manager.sent_versions) == {}

    simulate(scenario())


# Static pods.


@pytest.mark.parametrize("hint", [False, True], ids=["with the next batch", "at once when told"])
def test_a_static_pods_status_waits_for_its_mirror(hint: bool) -> None:
    async def scenario() -> None:
        static, first, second = (
            pod("dns", "hash", source="file"),
            *(pod("dns", uid, mirror=True) for uid in ("m1", "m2")),
        )
        node = Node(static)
        async with node.running():
            node.manager.set_pod_status(static, status(1, ready=True))
            await asyncio.sleep(15)
            assert node.api.calls == []
            for mirror in (first, second):  # the second: somebody deleted the first
                node.api.put(mirror)
                node.known.remove(first)
                node.known.update(mirror)
                node.manager.mirror_changed(PodUID("nobody"))
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
        node = Node(web, api=False)
        heard: list[tuple[str, str | None]] = []
        node.manager.subscribe(lambda uid, accepted: heard.append((uid, accepted.phase)))
        async with node.running():
            assert node.manager.set_pod_status(web, replace(status(1), container_statuses=(container(ready=False),)))
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
        assert heard == [("uid-web", "Running")] * 3
        assert not node.manager.has_news

    simulate(scenario())


def test_a_status_for_a_pod_without_a_uid_is_refused_by_name() -> None:
    async def scenario() -> None:
        nameless = Pod(metadata=ObjectMeta(name="web", namespace="ns"))
        node = Node()
        for ask in (
            lambda: node.manager.set_pod_status(nameless, status()),
            lambda: node.manager.terminate_pod(nameless),
        ):
            with pytest.raises(BadInput, match=r"metadata.uid: cannot keep a status for pod ns/web: .* right"):
                ask()
        assert dict(node.manager.cached) == {}

    simulate(scenario())


def test_a_probes_word_on_what_is_unknown_changes_nothing() -> None:
    async def scenario() -> None:
        web, silent = pod("web"), pod("silent")
        node = Node(web, silent)
        node.manager.set_pod_status(web, replace(status(1), container_statuses=(container(),)))
        for uid, container_id in (("nobody", "fake://app"), ("uid-silent", "fake://app"), ("uid-web", "fake://dead")):
            assert not node.manager.set_container_readiness(PodUID(uid), container_id, False)
            assert not node.manager.set_container_startup(PodUID(uid), container_id, False)
        assert {uid: cached.version for uid, cached in node.manager.cached.items()} == {"uid-web": 1}

    simulate(scenario())


def test_a_container_that_ended_does_not_come_back() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        node.manager.set_pod_status(web, replace(status(1), container_statuses=(container(exit_code=3),)))
        assert not node.manager.set_pod_status(web, replace(status(2), container_statuses=(container(),)))
        kept = node.manager.get_pod_status(uid_of(web))
        assert kept is not None
        assert kept.message == "1"

    simulate(scenario())


def test_a_subscriber_that_fails_harms_nobody() -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web)
        heard: list[PodUID] = []

        def fail(uid: PodUID, accepted: PodStatus) -> None:
            raise RuntimeError("not my day")

        node.manager.subscribe(fail)
        node.manager.subscribe(lambda uid, accepted: heard.append(uid))
        assert node.manager.set_pod_status(web, status(1))
        assert heard == ["uid-web"]

    simulate(scenario())


# The journal.


def test_a_restart_loses_no_exit_code_and_no_ready_bit() -> None:
    async def scenario() -> None:
        web, gone = pod("web", source="file"), pod("gone", source="file")
        journal = FakeJournal()
        before = Node(web, gone, api=False, journal=journal)
        async with before.running():
            before.manager.set_pod_status(gone, status(1))
            before.manager.set_pod_status(
                web, replace(status(2, ready=True), container_statuses=(container(exit_code=3),))
            )
            await asyncio.sleep(1)
        kept = before.manager.get_pod_status(uid_of(web))
        after = Node(web, api=False, journal=FakeJournal(dict(journal.durable)))
        assert dict(after.manager.phases()) == {}  # known when asked for
        after.manager.restore([web])
        assert dict(after.manager.phases()) == {"uid-web": "Running"}
        assert after.manager.get_pod_status(uid_of(web)) == kept
        assert not after.manager.set_pod_status(web, replace(status(3), container_statuses=(container(),)))  # it ended
        assert after.manager.set_pod_status(web, replace(status(3), container_statuses=(container(exit_code=3),)))
        assert after.manager.cached[uid_of(web)].version == 2
        assert after.manager.get_pod_status(uid_of(gone)) is not None

    simulate(scenario())


def test_after_a_restart_the_api_is_told_what_it_missed() -> None:
    async def scenario() -> None:
        web = pod("web")
        journal = FakeJournal()
        before = Node(web, journal=journal)
        before.manager.set_pod_status(web, status(1, phase="Succeeded"))
        after = Node(web, journal=journal)
        after.manager.restore([web])
        async with after.running():
            await asyncio.sleep(11)
        assert after.shown("web") == "1"

    simulate(scenario())


def test_a_note_older_than_the_api_is_not_sent_though_a_stale_list_agrees_with_it() -> None:
    """Simulation seed 13: the disk had refused the newest note, and the first list was as old as the one it had."""

    async def scenario() -> None:
        web = pod("web")
        before = Node(web, journal=(journal := FakeJournal()))
        running = replace(status(1, ready=True), container_statuses=(container(),))
        before.manager.set_pod_status(web, running)
        exited = replace(status(2), container_statuses=(container(exit_code=3),))
        after = Node(replace(web, status=exited), journal=journal)
        after.manager.restore([replace(web, status=running)])
        async with after.running():
            await asyncio.sleep(11)
        assert after.shown("web") == "2"
        assert journal.notes == {}

    simulate(scenario())


def test_notes_go_with_their_pods() -> None:
    async def scenario() -> None:
        web, old = pod("web"), pod("old")
        first = Node(web, old, journal=(journal := FakeJournal()))
        first.set_all((web, old), 1)
        journal.put("else/where", b"not ours")
        second = Node(web, journal=journal)
        second.manager.remove_orphaned_statuses({uid_of(web)})
        assert sorted(journal.notes) == ["else/where", "status/uid-web"]
        second.manager.restore([web])
        second.manager.remove_orphaned_statuses(frozenset())
        assert sorted(journal.notes) == ["else/where"]

    simulate(scenario())


NOT_UTF_8 = b'{"name": "\xff"}'
TOO_DEEP = b'{"x": ' + b"[" * 2000


@pytest.mark.parametrize("note", [b"", b"not json", b"{}", b'{"version": "one"}', b"\xff", NOT_UTF_8, TOO_DEEP])
def test_a_note_that_cannot_be_read_is_dropped(note: bytes) -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web, journal=(journal := FakeJournal({"status/uid-web": note})))
        assert node.manager.get_pod_status(uid_of(web)) is None
        assert journal.notes == {}
        assert node.manager.set_pod_status(web, status(1))

    simulate(scenario())


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3, 0.5, 0.7])
def test_nothing_is_sent_before_the_journal_has_it(pause: float) -> None:
    async def scenario() -> None:
        web = pod("web")
        node = Node(web, journal=(journal := FakeJournal(seconds=0.5)))
        node.api.seconds = lambda verb, name: 0.2
        safe: list[bool] = []

        def lost(verb: str, name: str) -> None:
            durable = msgspec.json.decode(journal.durable["status/uid-web"], type=CachedStatus)
            safe.append(verb == "get" or durable.version >= int(node.shown("web") or 0))

        node.api.lost = lost
        async with node.running():
            for number in range(1, 40):
                node.manager.set_pod_status(web, status(number))
                await asyncio.sleep(pause)
            await asyncio.sleep(5)
        assert len(node.api.told) >= 39 * pause / 1.5  # nor does a pod that goes on changing have to stop for it
        assert node.shown("web") == "39"
        assert all(safe)

    simulate(scenario())


@pytest.mark.parametrize("journal", [FakeJournal(seconds=1e6), FakeJournal(refusals=3)], ids=["hangs", "refuses"])
def test_a_disk_in_trouble_does_not_keep_statuses_from_the_api(journal: FakeJournal) -> None:
    async def scenario() -> None:
        pods = many(2)
        node = Node(*pods, journal=journal)
        async with node.running():
            node.manager.set_pod_status(pods[0], status(1))
            await asyncio.sleep(0.5)
            node.manager.set_pod_status(pods[1], status(1))
            await asyncio.sleep(2)
            assert [node.shown("p0"), node.shown("p1")] == ["1", "1"]
            await asyncio.sleep(60)
            assert journal.seconds > 0 or journal.durable == journal.notes
            node.manager.set_pod_status(pods[0], status(2))
            assert await node.manager.sync_batch(every=False) == 1

    simulate(scenario())


# Whether a crash would keep it.


def test_a_status_is_saved_once_the_journal_or_the_api_has_it() -> None:
    async def scenario() -> None:
        web, journal = pod("web"), FakeJournal()
        node = Node(web, journal=journal)
        assert await node.manager.is_saved(uid_of(web))  # there is nothing to lose
        node.manager.set_pod_status(web, status(1))
        assert await node.manager.is_saved(uid_of(web))
        journal.refusals = 1000
        node.manager.set_pod_status(web, status(2))
        assert not await node.manager.is_saved(uid_of(web))
        await node.manager.sync_batch(every=True)
        assert await node.manager.is_saved(uid_of(web))
        node.manager.set_pod_status(web, status(3))
        assert not await node.manager.is_saved(uid_of(web))  # the API has an older one
        journal.refusals = 0
        assert not await node.manager.is_saved(uid_of(web))  # given up; the next batch tries again
        node.manager.set_pod_status(web, status(4))
        assert await node.manager.is_saved(uid_of(web))

    simulate(scenario())


def test_the_status_of_a_pod_that_was_forgotten_and_comes_back_is_not_the_one_sent_before() -> None:
    async def scenario() -> None:
        web, journal = pod("web"), FakeJournal()
        node = Node(web, journal=journal)
        node.manager.set_pod_status(web, status(1))
        await node.manager.sync_batch(every=True)
        node.manager.forget(uid_of(web))
        journal.refusals = 1000
        node.manager.set_pod_status(web, status(2))  # version 1 again
        assert not await node.manager.is_saved(uid_of(web))
        await node.manager.sync_batch(every=True)
        assert await node.manager.is_saved(uid_of(web))

    simulate(scenario())


def test_the_status_of_a_static_pod_without_a_mirror_is_saved_by_the_journal_only() -> None:
    async def scenario() -> None:
        static, journal = pod("static", source="file"), FakeJournal()
        node = Node(static, journal=journal)
        journal.refusals = 1000
        node.manager.set_pod_status(static, status(1))
        await node.manager.sync_batch(every=True)
        assert not await node.manager.is_saved(uid_of(static))

    simulate(scenario())
