"""Queries about pods, in virtual time: what each one returns, and when terminating pods count as terminated."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from podkeeper.app.agent import Agent
from podkeeper.app.build import Ports
from podkeeper.app.local.pod_queries import CLEANUP_SECONDS, AmbiguousPodName, PodNotFound, PodQueries
from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.errors import AgentError
from podkeeper.model.k8s.core import ContainerPort, Pod
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import Behaviour, Operation
from podkeeper.testing import build
from podkeeper.testing import node as testing_node
from podkeeper.testing.node import NODE, NodeHarness
from podkeeper.testing.virtual_time import Stuck, simulate

T = TypeVar("T")
LIMIT_SECONDS = 3600.0
JUMPS = {"the clock is not changed": 0, "the clock is set back": -3600, "the clock is set forward": 3600}


pod = partial(build.pod, uid="", policy=None)
HAS_PORT_80 = build.container(ports=(ContainerPort(container_port=80, host_port=80),))


class Node(NodeHarness):
    """A node without an API. Its pods come from one file source behind a stop filter."""

    def ports(self) -> Ports:
        self.stop_filter = StopFilter(clock=self.clock, checkpoints=Checkpoints(self.journal, "stopped/"))
        return replace(super().ports(), api=None, sources=(self.stop_filter.filtered(self.files),))

    def new_agent(self) -> Agent:
        agent = super().new_agent()
        self.queries = PodQueries(agent, self.stop_filter)
        return agent

    async def run_agent(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.agent.run())
            group.create_task(self.queries.run())

    def write(self, *pods: Pod) -> PodUID:
        """Replace all manifests. Return the UID of the first pod."""
        made = self.files.write("/pods", *pods)
        return PodUID(made[0].metadata.uid or "") if made else PodUID("")

    def status(self, name: str) -> str:
        """Return the column STATUS of a pod, or "" if it is not listed."""
        cells = (row.cells for row in self.queries.table().rows)
        return next((str(each[2]) for each in cells if each[0] == f"{name}-{NODE}"), "")

    def reason(self, name: str) -> str:
        return next(row.reason for row in self.queries.rows() if row.pod.metadata.name == f"{name}-{NODE}")

    async def seconds_until_terminated(self) -> float:
        begun = self.clock.monotonic()
        await self.queries.wait_for(lambda: not self.queries.terminating())
        return self.clock.monotonic() - begun


def on_node(scenario: Callable[[Node], Awaitable[T]]) -> T:
    """Run a scenario beside a running agent."""

    async def limited(node: Node) -> T:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await scenario(node)

    return testing_node.on_node(limited, Node)


# ---- what each query returns ----


FOUND = {
    "the full name": ("web-n1", "", "default/web-n1"),
    "the name in the manifest": ("web", "", "default/web-n1"),
    "the name in the manifest, with a namespace": ("web", "default", "default/web-n1"),
    "an unambiguous name in another namespace": ("db", "", "data/db-n1"),
    "an ambiguous name with a namespace": ("job", "data", "data/job-n1"),
}
NOT_FOUND: dict[str, tuple[str, str, type[AgentError], str]] = {
    "an ambiguous name": ("job", "", AmbiguousPodName, "'job' is ambiguous; use one of: data/job-n1, default/job-n1"),
    "a misspelt name": ("wbe", "", PodNotFound, "'wbe' not found; did you mean: web?"),
    "an unknown name": ("x", "", PodNotFound, "'x' not found; available pods: db, job, web"),
    "a name of another namespace": ("db", "default", PodNotFound, "'default/db' not found; did you mean: db?"),
}


def four_pods() -> tuple[Pod, ...]:
    return pod("web"), pod("job"), pod("job", namespace="data"), pod("db", namespace="data")


@pytest.mark.parametrize("name, namespace, expected", FOUND.values(), ids=FOUND.keys())
def test_find(name: str, namespace: str, expected: str) -> None:
    async def scenario(node: Node) -> str:
        node.write(*four_pods())
        await asyncio.sleep(1)
        found = node.queries.find(name, namespace).metadata
        return f"{found.namespace}/{found.name}"

    assert on_node(scenario) == expected


@pytest.mark.parametrize("name, namespace, error, message", NOT_FOUND.values(), ids=NOT_FOUND.keys())
def test_find_raises(name: str, namespace: str, error: type[AgentError], message: str) -> None:
    async def scenario(node: Node) -> None:
        node.write(*four_pods())
        await asyncio.sleep(1)
        with pytest.raises(error) as raised:
            node.queries.find(name, namespace)
        assert message in str(raised.value)

    on_node(scenario)


def test_find_without_pods() -> None:
    async def scenario(node: Node) -> None:
        with pytest.raises(PodNotFound, match="the agent has no pods"):
            node.queries.find("web")

    on_node(scenario)


def test_find_prefers_the_successor_of_a_terminating_pod() -> None:
    async def scenario(node: Node) -> tuple[PodUID, str | None]:
        node.write(pod("web", behaviours={"app": Behaviour(term_seconds=5)}))
        await asyncio.sleep(1)
        new = node.write(pod("web", grace=7))
        await asyncio.sleep(1)
        assert len(node.queries.pods()) == 2
        return new, node.queries.find("web").metadata.uid

    new, found = on_node(scenario)
    assert found == new


def test_pods_are_sorted_by_namespace_and_name() -> None:
    async def scenario(node: Node) -> list[str]:
        node.write(*four_pods())
        await asyncio.sleep(1)
        assert node.queries.pod_list().items == node.queries.pods()
        return [f"{each.metadata.namespace}/{each.metadata.name}" for each in node.queries.pods()]

    assert on_node(scenario) == ["data/db-n1", "data/job-n1", "default/job-n1", "default/web-n1"]


def test_a_running_pod_has_a_creation_timestamp_and_a_row_of_the_table() -> None:
    async def scenario(node: Node) -> None:
        node.write(pod("web"))
        await asyncio.sleep(10)
        (found,) = node.queries.pods()
        assert found.metadata.creation_timestamp == found.status.start_time
        assert node.queries.table().rows[0].cells[:5] == ("web-n1", "1/1", "Running", "0", "10s")

    on_node(scenario)


def test_a_terminating_pod_has_a_deletion_timestamp() -> None:
    async def scenario(node: Node) -> None:
        uid = node.write(pod("web", grace=20, behaviours={"app": Behaviour(term_seconds=5)}))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        (found,) = node.queries.pods()
        assert found.metadata.deletion_timestamp == "2026-01-01T00:00:21Z"
        assert found.metadata.deletion_grace_period_seconds == 20
        assert (node.status("web"), node.reason("web")) == ("Terminating", "stopping, killed in 20s at the latest")

    on_node(scenario)


def test_a_grace_period_beyond_the_calendar_has_a_deletion_timestamp() -> None:
    async def scenario(node: Node) -> None:
        uid = node.write(pod("web", grace=2**63 - 1, behaviours={"app": Behaviour(term_seconds=5)}))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        (found,) = node.queries.pods()
        assert found.metadata.deletion_timestamp == "2057-09-09T01:46:41Z"
        assert found.metadata.deletion_grace_period_seconds == 2**63 - 1

    on_node(scenario)


def test_a_terminating_pod_that_is_wanted_again_is_started_after_its_end() -> None:
    async def scenario(node: Node) -> None:
        uid = node.write(pod("web", behaviours={"app": Behaviour(term_seconds=5)}))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        await node.stop_filter.start(uid)
        assert node.reason("web").endswith("; then it is started again")
        await asyncio.sleep(10)
        (found,) = node.queries.pods()
        (shown,) = found.status.container_statuses or ()
        assert (node.status("web"), shown.restart_count) == ("Running", 0)

    on_node(scenario)


def test_a_stopped_pod_names_the_command_that_starts_it() -> None:
    async def scenario(node: Node) -> None:
        uid = node.write(pod("web"))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        await node.seconds_until_terminated()
        assert node.status("web") == "Stopped"
        assert "stopped by 'podkeeper stop' at 2026-01-01T00:00:01Z" in node.reason("web")
        assert "run 'podkeeper start web-n1'" in node.reason("web")

    on_node(scenario)


def test_a_successor_waits_for_its_predecessor() -> None:
    async def scenario(node: Node) -> list[str]:
        node.write(pod("web", behaviours={"app": Behaviour(term_seconds=5)}))
        await asyncio.sleep(1)
        node.write(pod("web", grace=7))
        await asyncio.sleep(1)
        return sorted(row.reason for row in node.queries.rows())

    assert "waits until its predecessor has terminated" in on_node(scenario)


def test_a_port_conflict_names_the_other_pod() -> None:
    async def scenario(node: Node) -> str:
        node.write(pod("first", HAS_PORT_80), pod("second", HAS_PORT_80))
        await asyncio.sleep(1)
        return node.reason("second")

    assert on_node(scenario).endswith("; host port 80 is used by first-n1")


def test_a_slow_call_of_the_runtime_is_the_reason_of_a_pending_pod() -> None:
    async def scenario(node: Node) -> str:
        node.runtime.faults.hang(Operation.RUN_SANDBOX)
        node.write(pod("web"))
        await asyncio.sleep(40)
        return node.reason("web")

    assert "the runtime has not answered run_podsandbox for" in on_node(scenario)


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS.keys())
def test_events_of_a_pod_are_in_order(seconds: int) -> None:
    async def scenario(node: Node) -> list[str | None]:
        uid = node.write(pod("web", behaviours={"app": Behaviour(term_seconds=60)}))
        await asyncio.sleep(1)
        node.clock.jump(seconds)
        await node.stop_filter.stop(uid)
        await asyncio.sleep(1)
        (found,) = node.queries.pods()
        return [event.reason for event in node.queries.events(found).items]

    assert on_node(scenario)[-2:] == ["Started", "Killing"]


def test_events_of_all_pods_are_in_one_list() -> None:
    async def scenario(node: Node) -> None:
        node.write(pod("a"), pod("b"))
        await asyncio.sleep(1)
        events = node.queries.events().items
        assert {event.involved_object.name for event in events} == {"a-n1", "b-n1"}
        assert sorted(event.last_timestamp or "" for event in events) == [event.last_timestamp for event in events]

    on_node(scenario)


def test_explain_returns_the_state_of_the_worker() -> None:
    async def scenario(node: Node) -> str:
        node.write(pod("web"))
        await asyncio.sleep(1)
        return str(node.queries.explain(node.queries.find("web")).state)

    assert on_node(scenario) == "syncing"


# ---- waiting for changes ----


def test_wait_for_returns_at_once_if_the_condition_is_true() -> None:
    async def scenario(node: Node) -> float:
        await node.queries.wait_for(lambda: True)
        return node.clock.monotonic()

    assert on_node(scenario) == 0.0


CHANGES: dict[str, tuple[Callable[[Node], object], Callable[[Node], bool]]] = {
    "a source adds a pod": (lambda node: node.write(pod("web")), lambda node: bool(node.queries.pods())),
    "a status changes": (lambda node: node.write(pod("web")), lambda node: node.status("web") == "Running"),
    "the caller notifies": (lambda node: node.queries.notify(), lambda node: node.clock.monotonic() >= 5),
}


@pytest.mark.parametrize("change, condition", CHANGES.values(), ids=CHANGES.keys())
def test_wait_for_ends_with_the_change(change: Callable[[Node], object], condition: Callable[[Node], bool]) -> None:
    async def scenario(node: Node) -> float:
        asyncio.get_running_loop().call_at(5, change, node)
        await node.queries.wait_for(lambda: condition(node))
        return node.clock.monotonic()

    assert on_node(scenario) == pytest.approx(5, abs=0.01)


def test_a_subscriber_is_called_when_a_pod_has_terminated() -> None:
    async def scenario(node: Node) -> list[str]:
        uid, seen = node.write(pod("web", behaviours={"app": Behaviour(term_seconds=2)})), list[str]()
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        node.queries.subscribe(lambda: seen.append(node.status("web")))
        await asyncio.sleep(10)
        return list(dict.fromkeys(seen))

    assert on_node(scenario) == ["Terminating", "Stopped"]


# ---- when a pod has terminated ----


def test_no_timer_runs_while_nothing_changes() -> None:
    async def scenario() -> None:
        node = Node()
        agent = node.new_agent()
        feed = asyncio.ensure_future(agent.engine.ports.sources[0].run(agent.engine.storage.merge))
        uid = node.write(pod("web"))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        assert node.queries.terminating()
        await asyncio.gather(feed, node.queries.run())

    # The agent does not run, so a timer could only be one of `PodQueries`. The virtual loop reports that there is none.
    with pytest.raises(Stuck, match="no timer is set after 1 s"):
        simulate(scenario())


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS.keys())
def test_a_pod_has_terminated_as_soon_as_it_is_cleaned_up(seconds: int) -> None:
    async def scenario(node: Node) -> float:
        uid = node.write(pod("web", behaviours={"app": Behaviour(term_seconds=5)}))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        node.clock.jump(seconds)
        await asyncio.sleep(3)
        assert node.reason("web") == "stopping, killed in 27s at the latest"
        return await node.seconds_until_terminated()

    assert on_node(scenario) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS.keys())
def test_a_shorter_grace_period_counts_from_now(seconds: int) -> None:
    async def scenario(node: Node) -> int:
        uid = node.write(pod("web", grace=60, behaviours={"app": Behaviour(term_seconds=100)}))
        await asyncio.sleep(1)
        await node.stop_filter.stop(uid)
        node.clock.jump(seconds)
        await asyncio.sleep(10)
        await node.stop_filter.stop(uid, grace_seconds=5)
        return node.queries.terminating()[uid].grace_seconds

    assert on_node(scenario) == 15


@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS.keys())
def test_a_cleanup_that_hangs_is_not_awaited_for_long(seconds: int) -> None:
    async def scenario(node: Node) -> float:
        uid = node.write(pod("web"))
        await asyncio.sleep(1)
        node.runtime.faults.hang(Operation.REMOVE_CONTAINER)
        await node.stop_filter.stop(uid)
        node.clock.jump(seconds)
        return await node.seconds_until_terminated()

    assert on_node(scenario) == pytest.approx(CLEANUP_SECONDS, abs=0.1)


def test_a_pod_has_terminated_when_the_cache_shows_that_its_containers_are_removed() -> None:
    async def scenario(node: Node) -> float:
        uid = node.write(pod("web"))
        await asyncio.sleep(1)
        node.runtime.delays[Operation.POD_RECORD] = 0.5
        await node.stop_filter.stop(uid)
        return await node.seconds_until_terminated()

    assert 0.5 < on_node(scenario) < CLEANUP_SECONDS - 1


def test_a_pod_has_terminated_when_its_directory_is_removed() -> None:
    async def scenario(node: Node) -> float:
        uid = node.write(pod("web"))
        await asyncio.sleep(1)
        node.volumes.delays["remove_directory"] = 1.5
        await node.stop_filter.stop(uid)
        return await node.seconds_until_terminated()

    assert 1.5 <= on_node(scenario) < CLEANUP_SECONDS - 1


async def make_runtime_unhealthy(node: Node) -> None:
    """Make the loop handle no updates until the faults are cleared."""
    node.runtime.faults.hang(Operation.HEALTH, times=None)
    await asyncio.sleep(20)


def test_a_removal_that_the_loop_has_not_handled_is_awaited() -> None:
    async def scenario(node: Node) -> tuple[str, list[str]]:
        await asyncio.sleep(1)
        await make_runtime_unhealthy(node)
        node.write(pod("web"))
        await asyncio.sleep(1)
        node.write()
        await asyncio.sleep(60)
        before = node.status("web")
        node.runtime.faults.clear()
        await node.seconds_until_terminated()
        return before, [str(each.metadata.name) for each in node.queries.pods()]

    assert on_node(scenario) == ("Terminating", [])


def test_a_rejected_pod_whose_manifest_is_removed_is_not_listed_any_more() -> None:
    async def scenario(node: Node) -> list[str | None]:
        node.write(pod("first", HAS_PORT_80), pod("second", HAS_PORT_80))
        await asyncio.sleep(1)
        await make_runtime_unhealthy(node)
        node.write(pod("first", HAS_PORT_80))
        await asyncio.sleep(1)
        node.runtime.faults.clear()
        assert await node.seconds_until_terminated() < CLEANUP_SECONDS
        return [each.metadata.name for each in node.queries.pods()]

    assert on_node(scenario) == ["first-n1"]
