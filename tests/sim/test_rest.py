"""Coming to rest: what is not as it should be is found, and only that."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from podkeeper.model.k8s.core import Pod, PodCondition
from podkeeper.model.messages import CONFIG_MIRROR_ANNOTATION
from podkeeper.runtimes.fake import Behaviour
from podkeeper.runtimes.fake.behaviour import ExecStep
from podkeeper.testing.sim.invariants.pods import Pods
from podkeeper.testing.sim.invariants.probe_book import ProbeBook
from podkeeper.testing.sim.invariants.promptness import Promptness
from podkeeper.testing.sim.invariants.readiness import Readiness
from podkeeper.testing.sim.invariants.rest import LEAVING_SECONDS, Rest
from podkeeper.testing.sim.world import World
from tests.sim.stories import Story, container, exec_probe, pod
from tests.sim.watching import broken, play

CALM_SECONDS = 60.0


def all_kinds() -> tuple[Pod, ...]:
    sidecar = container("helper", restart="Always")
    return (
        pod("web", container(ready=exec_probe())),
        pod("job", policy="Never", app=Behaviour(after_seconds=5, exit_code=3)),
        pod("loop", app=Behaviour(after_seconds=5, exit_code=1)),
        pod("side", init=(container("first"), sidecar), first=Behaviour(after_seconds=1)),
        pod("imageless", container(image="missing:v1")),
        pod("brief", deadline=100_000),
        pod("failed", init=(container("first"),), policy="Never", first=Behaviour(after_seconds=1, exit_code=1)),
    )


async def a_busy_node(it: Story) -> None:
    it.runtime.missing_images.add("missing:v1")
    it.put(*all_kinds())
    it.write("/static.yaml", pod("static", container(ready=exec_probe())))
    it.write("/other.yaml", pod("other", grace=2))
    await asyncio.sleep(30)


def test_a_node_that_was_troubled_comes_to_rest() -> None:
    async def story(it: Story) -> None:
        await a_busy_node(it)
        hung = it.uid("web")
        it.runtime.faults.hang("stop_container", hung)
        it.world.trouble("hung-calls", 50, it.runtime.faults.clear, hung)
        it.delete("web")
        it.api.go_down()
        it.world.trouble("api-down", 100, it.api.come_up)
        it.world.crash(away_seconds=5)
        await asyncio.sleep(40)
        it.write("/static.yaml", pod("static", container(image="app:v2")))
        it.delete("side")
        it.world.crash()
        await asyncio.sleep(1)

    def readiness(world: World) -> Readiness:
        return Readiness(world, ProbeBook(world, Pods(world)))

    verdict = play(story, readiness, Promptness, rest=True, calm=900)
    assert verdict.violation is None
    assert verdict.checks["I6"] > 10
    assert verdict.checks["I10"] >= 4


def ends_behind_the_api(it: Story) -> None:
    it.runtime.end_container(it.uid("web"), "app", 1)


def loses_its_sandbox(it: Story) -> None:
    it.runtime.kill_sandbox(it.uid("web"))


def is_deleted_and_stays(it: Story) -> None:
    it.delete("web")


def is_said_to_be(name: str, **changes: object) -> Callable[[Story], None]:
    def misdeed(it: Story) -> None:
        found = it.seen(name)
        it.api.put(replace(found, status=replace(found.status, **changes)))

    return misdeed


def is_said_to_be_unready(it: Story) -> None:
    found = it.seen("web")
    conditions = (PodCondition(type="Ready", status="False"),)
    it.api.put(replace(found, status=replace(found.status, conditions=conditions)))


def says_another_exit_code(it: Story) -> None:
    found = it.seen("job")
    (status,) = found.status.container_statuses or ()
    assert status.state.terminated is not None
    lie = replace(status, state=replace(status.state, terminated=replace(status.state.terminated, exit_code=0)))
    it.api.put(replace(found, status=replace(found.status, container_statuses=(lie,))))


def gets_another_image(it: Story) -> None:
    spec = it.seen("web").spec
    it.api.replace_spec("web", replace(spec, containers=(replace(spec.containers[0], image="app:v9"),)))


def vanishes_from_the_api(it: Story) -> None:
    it.api.remove(Pod, "web", "default")


def comes_and_does_not_begin(it: Story) -> None:
    it.put(pod("new"))


def leaves_a_note(it: Story) -> None:
    it.world.journal.put("status/ghost", b"{}")


def another_manifest_is_written(it: Story) -> None:
    it.write("/other.yaml", pod("other", container(image="app:v7")))


def a_manifest_is_erased(it: Story) -> None:
    it.world.files.erase("/other.yaml")


def a_mirror_vanishes(it: Story) -> None:
    it.api.remove(Pod, "other-n1", "default")


def a_mirror_has_no_pod(it: Story) -> None:
    found = it.seen("other-n1")
    it.api.put(replace(found, metadata=replace(found.metadata, name="stray-n1", uid="stray")))


def a_mirror_is_that_of_another_version(it: Story) -> None:
    found = it.seen("other-n1")
    annotations = {**(found.metadata.annotations or {}), CONFIG_MIRROR_ANNOTATION: "older"}
    it.api.put(replace(found, metadata=replace(found.metadata, annotations=annotations)))


def all_images_are_lost_but_it_says_nothing(it: Story) -> None:
    found = it.seen("imageless")
    it.api.put(replace(found, status=replace(found.status, container_statuses=None)))


MISDEEDS = {
    "a container has ended":                   (ends_behind_the_api, "I6"),
    "a sandbox has died":                      (loses_its_sandbox, "I6"),
    "a deleted pod is still there":            (is_deleted_and_stays, "I6"),
    "a pod that runs is said to wait":         (is_said_to_be("web", phase="Pending"), "I6"),
    "a pod that runs is said to be over":      (is_said_to_be("web", phase="Failed"), "I11"),
    "a pod that is over is said to run":       (is_said_to_be("job", phase="Running"), "I11"),
    "a failed pod is said to wait":            (is_said_to_be("failed", phase="Pending"), "I6"),
    "a ready pod is said not to be":           (is_said_to_be_unready, "I6"),
    "a pod outlives its time":                 (is_said_to_be("brief", start_time="2000-01-01T00:00:00Z"), "I6"),
    "another exit code is told":               (says_another_exit_code, "I11"),
    "an older spec runs":                      (gets_another_image, "I6"),
    "something runs that nobody wants":        (vanishes_from_the_api, "I6"),
    "something is wanted and does not run":    (comes_and_does_not_begin, "I6"),
    "nothing is said of one that waits":       (all_images_are_lost_but_it_says_nothing, "I6"),
    "the journal knows a pod that is no more": (leaves_a_note, "I6"),
    "an older manifest runs":                  (another_manifest_is_written, "I10"),
    "a static pod outlives its manifest":      (a_manifest_is_erased, "I10"),
    "a static pod has no mirror":              (a_mirror_vanishes, "I10"),
    "a mirror has no pod":                     (a_mirror_has_no_pod, "I10"),
    "a mirror is that of another version":     (a_mirror_is_that_of_another_version, "I10"),
}  # fmt: skip


@pytest.mark.parametrize("misdeed, invariant", MISDEEDS.values(), ids=MISDEEDS.keys())
def test_a_node_that_is_not_at_rest_is_found_out(misdeed: Callable[[Story], None], invariant: str) -> None:
    async def story(it: Story) -> None:
        rest = Rest(it.world, calm_seconds=CALM_SECONDS, settled_seconds=0)
        await a_busy_node(it)
        rest.calm_began()
        await asyncio.sleep(CALM_SECONDS)
        misdeed(it)  # and before the agent could know of it:
        rest.check()

    assert broken(play(story)) == invariant


LEFTOVERS = {
    "a cgroup":    lambda it, ghost: it.world.cgroups.ensure(ghost),
    "a directory": lambda it, ghost: it.world.volumes.mount(ghost),
}  # fmt: skip


@pytest.mark.parametrize("leave", LEFTOVERS.values(), ids=LEFTOVERS.keys())
def test_what_is_left_of_a_pod_that_is_no_more_is_found(leave: Callable[[Story, Pod], Awaitable[object]]) -> None:
    async def story(it: Story) -> None:
        rest = Rest(it.world, calm_seconds=CALM_SECONDS, settled_seconds=0)
        rest.calm_began()
        await asyncio.sleep(CALM_SECONDS)
        ghost = pod("ghost")
        await leave(it, replace(ghost, metadata=replace(ghost.metadata, uid="ghost")))
        rest.check()

    assert broken(play(story)) == "I6"


def test_a_pod_that_does_not_leave_is_found_before_the_calm_ends() -> None:
    async def story(it: Story) -> None:
        it.put(pod("web"))
        await asyncio.sleep(5)
        it.world.crash(away_seconds=10_000)
        it.delete("web")

    verdict = play(story, rest=True)
    assert verdict.violation is not None
    assert (verdict.violation.invariant, round(verdict.violation.at)) == ("I6", 5 + 30 + LEAVING_SECONDS)


def test_a_dead_agent_is_found() -> None:
    async def story(it: Story) -> None:
        await asyncio.sleep(5)
        it.world.crash(away_seconds=10_000)

    assert broken(play(story, rest=True)) == "I6"


@pytest.mark.parametrize("misdeed, found", [(None, ""), (is_said_to_be("brief", phase="Pending"), "I6")])
def test_a_pod_that_is_just_being_stopped_because_its_time_is_over_may_be_unready(
    misdeed: Callable[[Story], None] | None, found: str
) -> None:
    async def story(it: Story) -> None:
        rest = Rest(it.world, calm_seconds=CALM_SECONDS)
        it.put(pod("brief", deadline=200, grace=20, app=Behaviour(term_seconds=None)))
        await asyncio.sleep(100)
        rest.calm_began()
        await asyncio.sleep(105)
        assert (it.phase("brief"), it.is_ready("brief"), it.runs(it.uid("brief"))) == ("Running", False, True)
        if misdeed is not None:
            misdeed(it)
        rest.check()

    assert broken(play(story)) == found


STRANDED = {
    "while its sidecar starts":      (pod("web", init=(container("helper", restart="Always", startup=exec_probe()),),
                                          policy="Never", helper=Behaviour(exec=(ExecStep(exit_code=1),))), 5.0),
    "after its initialisation":      (pod("web", container(image="missing:v1"), init=(container("first"),),
                                          policy="Never", first=Behaviour(after_seconds=1)), 5.0),
    "with one container yet to come": (pod("web", container(), container("second", image="missing:v1"),
                                           policy="Never"), 5.0),
}  # fmt: skip


@pytest.mark.parametrize("stranded, after", STRANDED.values(), ids=STRANDED.keys())
def test_a_pod_that_runs_once_and_loses_its_sandbox_too_early_does_not_wait_for_ever(
    stranded: Pod, after: float
) -> None:
    async def story(it: Story) -> None:
        it.runtime.missing_images.add("missing:v1")
        it.put(stranded)
        await asyncio.sleep(after)
        it.world.reboot()
        await asyncio.sleep(60)
        assert it.phase("web") == "Failed"
        it.delete("web")
        await it.until(lambda: it.is_gone("web"), within=10)

    assert play(story, rest=True).violation is None
