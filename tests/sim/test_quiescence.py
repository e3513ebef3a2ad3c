"""I6, I9, I10, I11: problems of a settled node are reported, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodCondition
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION
from podkeeper.runtimes.fake import Behaviour
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.build import container, probe
from podkeeper.testing.sim.invariants.pods import TrackedPods
from podkeeper.testing.sim.invariants.probe_states import ProbeTracker
from podkeeper.testing.sim.invariants.promptness import Promptness
from podkeeper.testing.sim.invariants.quiescence import REMOVAL_SECONDS, Quiescence
from podkeeper.testing.sim.invariants.readiness import Readiness
from podkeeper.testing.sim.world import World
from tests.sim.checked_runs import run_with_checks, violated_by
from tests.sim.sim_node import SimNode, pod

CALM_SECONDS = 60.0


def all_kinds() -> tuple[Pod, ...]:
    sidecar = container("helper", sidecar=True)
    return (
        pod("web", container(readiness=probe())),
        pod("job", policy="Never", behaviours={"app": Behaviour(after_seconds=5, exit_code=3)}),
        pod("loop", behaviours={"app": Behaviour(after_seconds=5, exit_code=1)}),
        pod("side", init=(container("first"), sidecar), behaviours={"first": Behaviour(after_seconds=1)}),
        pod("imageless", container(image="missing:v1")),
        pod("brief", deadline=100_000),
        pod(
            "failed",
            init=(container("first"),),
            policy="Never",
            behaviours={"first": Behaviour(after_seconds=1, exit_code=1)},
        ),
    )


async def a_busy_node(node: SimNode) -> None:
    node.runtime.missing_images.add("missing:v1")
    node.put(*all_kinds())
    node.write("/static.yaml", pod("static", container(readiness=probe())))
    node.write("/other.yaml", pod("other", grace=2))
    await asyncio.sleep(30)


def test_a_node_settles_after_faults() -> None:
    async def scenario(node: SimNode) -> None:
        await a_busy_node(node)
        hung = node.uid("web")
        node.runtime.faults.hang("stop_container", hung)
        node.world.begin_fault("hung-calls", 50, node.runtime.faults.clear, hung)
        node.delete("web")
        node.api.go_down()
        node.world.begin_fault("api-down", 100, node.api.come_up)
        node.world.crash(downtime_seconds=5)
        await asyncio.sleep(40)
        node.write("/static.yaml", pod("static", container(image="app:v2")))
        node.delete("side")
        node.world.crash()
        await asyncio.sleep(1)

    def readiness(world: World) -> Readiness:
        return Readiness(world, ProbeTracker(world, TrackedPods(world)))

    result = run_with_checks(scenario, readiness, Promptness, rest=True, calm=900)
    assert result.violation is None
    assert result.checks["I6"] > 10
    assert result.checks["I10"] >= 4


def ends_behind_the_api(node: SimNode) -> None:
    node.runtime.end_container(node.uid("web"), "app", 1)


def loses_its_sandbox(node: SimNode) -> None:
    node.runtime.kill_sandbox(node.uid("web"))


def is_deleted_and_stays(node: SimNode) -> None:
    node.delete("web")


def is_published_as(name: str, **changes: object) -> Callable[[SimNode], None]:
    def mistake(node: SimNode) -> None:
        found = node.seen(name)
        node.api.put(replace(found, status=replace(found.status, **changes)))

    return mistake


def is_published_as_unready(node: SimNode) -> None:
    found = node.seen("web")
    conditions = (PodCondition(type="Ready", status="False"),)
    node.api.put(replace(found, status=replace(found.status, conditions=conditions)))


def has_a_wrong_exit_code(node: SimNode) -> None:
    found = node.seen("job")
    (status,) = found.status.container_statuses or ()
    assert status.state.terminated is not None
    lie = replace(status, state=replace(status.state, terminated=replace(status.state.terminated, exit_code=0)))
    node.api.put(replace(found, status=replace(found.status, container_statuses=(lie,))))


def gets_another_image(node: SimNode) -> None:
    spec = node.seen("web").spec
    node.api.replace_spec("web", replace(spec, containers=(replace(spec.containers[0], image="app:v9"),)))


def vanishes_from_the_api(node: SimNode) -> None:
    node.api.remove(Pod, "web", "default")


def is_created_and_does_not_start(node: SimNode) -> None:
    node.put(pod("new"))


def leaves_a_journal_entry(node: SimNode) -> None:
    node.world.journal.put("status/orphan", b"{}")


def another_manifest_is_written(node: SimNode) -> None:
    node.write("/other.yaml", pod("other", container(image="app:v7")))


def a_manifest_is_removed(node: SimNode) -> None:
    node.world.files.erase("/other.yaml")


def a_mirror_vanishes(node: SimNode) -> None:
    node.api.remove(Pod, "other-n1", "default")


def a_mirror_has_no_pod(node: SimNode) -> None:
    found = node.seen("other-n1")
    node.api.put(replace(found, metadata=replace(found.metadata, name="stray-n1", uid="stray")))


def a_mirror_is_that_of_another_version(node: SimNode) -> None:
    found = node.seen("other-n1")
    annotations = {**(found.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: "older"}
    node.api.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))


def all_images_are_missing_but_nothing_is_published(node: SimNode) -> None:
    found = node.seen("imageless")
    node.api.put(replace(found, status=replace(found.status, container_statuses=None)))


MISTAKES = {
    "a container has ended":                   (ends_behind_the_api, "I6"),
    "a sandbox has died":                      (loses_its_sandbox, "I6"),
    "a deleted pod still exists":              (is_deleted_and_stays, "I6"),
    "a running pod is published as Pending":   (is_published_as("web", phase="Pending"), "I6"),
    "a running pod is published as Failed":    (is_published_as("web", phase="Failed"), "I11"),
    "a completed pod is published as Running": (is_published_as("job", phase="Running"), "I11"),
    "a failed pod is published as Pending":    (is_published_as("failed", phase="Pending"), "I6"),
    "a ready pod is published as unready":     (is_published_as_unready, "I6"),
    "a pod exceeds its deadline":              (is_published_as("brief", start_time="2000-01-01T00:00:00Z"), "I6"),
    "a wrong exit code is published":          (has_a_wrong_exit_code, "I11"),
    "an older spec runs":                      (gets_another_image, "I6"),
    "an orphaned pod runs":                    (vanishes_from_the_api, "I6"),
    "a desired pod does not run":              (is_created_and_does_not_start, "I6"),
    "a waiting container has no status":       (all_images_are_missing_but_nothing_is_published, "I6"),
    "the journal has a removed pod":           (leaves_a_journal_entry, "I6"),
    "an older manifest runs":                  (another_manifest_is_written, "I10"),
    "a static pod runs without manifest":      (a_manifest_is_removed, "I10"),
    "a static pod has no mirror":              (a_mirror_vanishes, "I10"),
    "a mirror has no pod":                     (a_mirror_has_no_pod, "I10"),
    "a mirror is that of another version":     (a_mirror_is_that_of_another_version, "I10"),
}  # fmt: skip


@pytest.mark.parametrize("mistake, invariant", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_node_that_has_not_settled_is_reported(mistake: Callable[[SimNode], None], invariant: str) -> None:
    async def scenario(node: SimNode) -> None:
        rest = Quiescence(node.world, calm_seconds=CALM_SECONDS, settled_seconds=0)
        await a_busy_node(node)
        rest.start_calm()
        await asyncio.sleep(CALM_SECONDS)
        mistake(node)  # and before the agent detects it
        rest.check()

    assert violated_by(run_with_checks(scenario)) == invariant


LEFTOVERS = {
    "a cgroup":    lambda node, orphan: node.world.cgroups.ensure(orphan),
    "a directory": lambda node, orphan: node.world.volumes.mount(orphan),
}  # fmt: skip


@pytest.mark.parametrize("leave", LEFTOVERS.values(), ids=LEFTOVERS.keys())
def test_leftovers_of_a_removed_pod_are_reported(leave: Callable[[SimNode, Pod], Awaitable[object]]) -> None:
    async def scenario(node: SimNode) -> None:
        rest = Quiescence(node.world, calm_seconds=CALM_SECONDS, settled_seconds=0)
        rest.start_calm()
        await asyncio.sleep(CALM_SECONDS)
        orphan = pod("orphan")
        await leave(node, replace(orphan, metadata=replace(orphan.metadata, uid="orphan")))
        rest.check()

    assert violated_by(run_with_checks(scenario)) == "I6"


def test_a_deleted_pod_that_stays_is_reported_before_calm_ends() -> None:
    async def scenario(node: SimNode) -> None:
        node.put(pod("web"))
        await asyncio.sleep(5)
        node.world.crash(downtime_seconds=10_000)
        node.delete("web")

    result = run_with_checks(scenario, rest=True)
    assert result.violation is not None
    assert (result.violation.invariant, round(result.violation.at)) == ("I6", 5 + 30 + REMOVAL_SECONDS)


def test_a_dead_agent_is_reported() -> None:
    async def scenario(node: SimNode) -> None:
        await asyncio.sleep(5)
        node.world.crash(downtime_seconds=10_000)

    assert violated_by(run_with_checks(scenario, rest=True)) == "I6"


@pytest.mark.parametrize("mistake, found", [(None, ""), (is_published_as("brief", phase="Pending"), "I6")])
def test_a_pod_that_stops_after_its_deadline_may_be_unready(
    mistake: Callable[[SimNode], None] | None, found: str
) -> None:
    async def scenario(node: SimNode) -> None:
        rest = Quiescence(node.world, calm_seconds=CALM_SECONDS)
        node.put(pod("brief", deadline=200, grace=20, behaviours={"app": Behaviour(term_seconds=None)}))
        await asyncio.sleep(100)
        rest.start_calm()
        await asyncio.sleep(105)
        assert (node.phase("brief"), node.is_ready("brief"), node.runs(node.uid("brief"))) == ("Running", False, True)
        if mistake is not None:
            mistake(node)
        rest.check()

    assert violated_by(run_with_checks(scenario)) == found


FAILS = Behaviour(exec=(ExecStep(exit_code=1),))
STRANDED = {
    "while its sidecar starts":      (pod("web", init=(container("helper", sidecar=True, startup=probe()),),
                                          policy="Never", behaviours={"helper": FAILS}), 5.0),
    "after its initialisation":      (pod("web", container(image="missing:v1"), init=(container("first"),),
                                          policy="Never", behaviours={"first": Behaviour(after_seconds=1)}), 5.0),
    "with one container yet to come": (pod("web", container(), container("second", image="missing:v1"),
                                           policy="Never"), 5.0),
}  # fmt: skip


@pytest.mark.parametrize("stranded, after", STRANDED.values(), ids=STRANDED.keys())
def test_a_run_once_pod_that_loses_its_sandbox_early_does_not_wait_forever(stranded: Pod, after: float) -> None:
    async def scenario(node: SimNode) -> None:
        node.runtime.missing_images.add("missing:v1")
        node.put(stranded)
        await asyncio.sleep(after)
        node.world.reboot()
        await asyncio.sleep(60)
        assert node.phase("web") == "Failed"
        node.delete("web")
        await node.until(lambda: node.is_gone("web"), within=10)

    assert run_with_checks(scenario, rest=True).violation is None
