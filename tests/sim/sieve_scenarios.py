"""Five short scenarios for Sieve's perturbations. Users act on what they see, and wait until the world has settled."""

from functools import partial

from podkeeper.model.k8s.core import Container, Pod
from podkeeper.model.pods import uid_of
from podkeeper.runtimes.fake import Behaviour, ExecStep
from podkeeper.testing import build
from podkeeper.testing.build import container, exec_hook, probe
from podkeeper.testing.sim.scenario import Scenario, ScenarioRun
from podkeeper.testing.sim.world import NODE

MANIFEST = "/manifests/web.yaml"
POLITE = Behaviour(term_seconds=1.0, term_exit_code=143)

pod = partial(build.pod, "web", node=NODE, uid="", grace=10, volumes=("data",))


def app(version: int = 1, *, probed: bool = True) -> Container:
    return container(
        image=f"app:v{version}", readiness=probe(period=5) if probed else None, pre_stop=exec_hook("farewell")
    )


SETUP = container("setup")
PROXY = container("proxy", sidecar=True, startup=probe("up", period=1, failures=30))


async def _crashes_once_and_is_deleted(run: ScenarioRun) -> None:
    api = run.world.api
    uid = uid_of(
        api.put(
            pod(
                app(),
                init=(SETUP, PROXY),
                behaviours={
                    "setup": Behaviour(after_seconds=1.0),
                    "proxy": POLITE,
                    "app": Behaviour(term_seconds=1.0, term_exit_code=143, exec=(ExecStep(takes_seconds=0.3),)),
                },
            )
        )
    )
    await run.until("web is ready", lambda: run.is_ready("web"))
    await run.settle("ready")
    run.world.runtime.end_container(uid, "app", 3)
    await run.until("web is ready again", lambda: run.runs(uid, "app") and run.is_ready("web"))
    await run.settle("ready again")
    api.mark_deleted(Pod, "web", "default")
    await run.until("web is gone", lambda: run.pod("web") is None)
    await run.settle("gone")


async def crash_of_the_app(run: ScenarioRun) -> None:
    """Only the runtime's event reports the crash, because there is no probe."""
    uid = uid_of(run.world.api.put(pod(app(probed=False), behaviours={"app": POLITE})))
    await run.until("web is ready", lambda: run.is_ready("web"))
    await run.settle("ready")
    run.world.runtime.end_container(uid, "app", 3)
    await run.until("web is ready again", lambda: run.runs(uid, "app") and run.is_ready("web"))
    await run.settle("ready again")


async def _succeeds_and_is_deleted(run: ScenarioRun) -> None:
    api = run.world.api
    api.put(pod(app(probed=False), policy="Never", behaviours={"app": Behaviour(after_seconds=5.0)}))
    await run.until("web has succeeded", lambda: run.phase("web") == "Succeeded")
    await run.settle("succeeded")
    api.mark_deleted(Pod, "web", "default")
    await run.settle("gone")


async def _manifest_changes_and_is_erased(run: ScenarioRun) -> None:
    files, mirror = run.world.files, f"web-{NODE}"

    def shows(image: str) -> bool:
        found = run.pod(mirror)
        return found is not None and found.spec.containers[0].image == image and run.is_ready(mirror)

    files.write(MANIFEST, pod(app(1), behaviours={"app": POLITE}))
    await run.until("the mirror is ready", lambda: shows("app:v1"))
    await run.settle("v1")
    files.write(MANIFEST, pod(app(2), behaviours={"app": POLITE}))
    await run.until("the mirror shows v2", lambda: shows("app:v2"))
    await run.settle("v2")
    files.erase(MANIFEST)
    await run.until("the mirror is gone", lambda: run.pod(mirror) is None)
    await run.settle("erased")


async def _is_past_its_deadline(run: ScenarioRun) -> None:
    api = run.world.api
    api.put(pod(app(), deadline=90, behaviours={"app": POLITE}))
    await run.until("web has failed", lambda: run.phase("web") == "Failed")
    await run.settle("failed")
    api.mark_deleted(Pod, "web", "default")
    await run.settle("gone")


async def _is_deleted_while_starting_and_succeeded(run: ScenarioRun) -> None:
    api = run.world.api
    first = uid_of(api.put(pod(app(), init=(SETUP,), behaviours={"setup": POLITE, "app": POLITE})))
    await run.until("web is being set up", lambda: run.runs(first, "setup"))
    api.mark_deleted(Pod, "web", "default")
    await run.until("web is gone", lambda: run.pod("web") is None)
    api.put(pod(app(), init=(SETUP,), behaviours={"setup": Behaviour(after_seconds=2.0), "app": POLITE}))
    await run.until("its successor is ready", lambda: run.is_ready("web"))
    await run.settle("ready")
    api.mark_deleted(Pod, "web", "default", grace_seconds=3)
    await run.until("web is gone again", lambda: run.pod("web") is None)
    await run.settle("gone")


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("crashes once", _crashes_once_and_is_deleted),
        Scenario("a job", _succeeds_and_is_deleted),
        Scenario("a static pod", _manifest_changes_and_is_erased),
        Scenario("past its deadline", _is_past_its_deadline),
        Scenario("a successor", _is_deleted_while_starting_and_succeeded),
    )
}
