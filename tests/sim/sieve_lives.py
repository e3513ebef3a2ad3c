"""Five short lives of pods, for Sieve's perturbations: users act on what they see, and wait for the world to rest."""

import msgspec

from podkeeper.model.k8s.core import (
    Container,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSpec,
    Probe,
    Volume,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import PodUID
from podkeeper.runtimes.fake import ANNOTATION_PREFIX, Behaviour, ExecStep
from podkeeper.testing.sim.scenes import Stage, Tale
from podkeeper.testing.sim.world import NODE

MANIFEST = "/manifests/web.yaml"
POLITE = Behaviour(term_seconds=1.0, term_exit_code=143)


def pod(
    *containers: Container,
    init: tuple[Container, ...] = (),
    policy: str = "Always",
    deadline: int | None = None,
    **scripts: Behaviour,
) -> Pod:
    notes = {ANNOTATION_PREFIX + name: msgspec.json.encode(script).decode() for name, script in scripts.items()}
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", annotations=notes),
        spec=PodSpec(
            node_name=NODE,
            init_containers=init or None,
            containers=containers,
            restart_policy=policy,
            active_deadline_seconds=deadline,
            termination_grace_period_seconds=10,
            volumes=(Volume(name="data"),),
        ),
    )


def app(version: int = 1, *, probed: bool = True) -> Container:
    probe = Probe(exec=ExecAction(command=("check",)), period_seconds=5, timeout_seconds=1, failure_threshold=3)
    farewell = Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=("farewell",))))
    return Container(name="app", image=f"app:v{version}", readiness_probe=probe if probed else None, lifecycle=farewell)


SETUP = Container(name="setup", image="setup:v1")
PROXY = Container(
    name="proxy",
    image="proxy:v1",
    restart_policy="Always",
    startup_probe=Probe(exec=ExecAction(command=("up",)), period_seconds=1, timeout_seconds=1, failure_threshold=30),
)


async def _crashes_once_and_is_deleted(stage: Stage) -> None:
    api = stage.world.api
    uid = _uid(
        api.put(
            pod(
                app(),
                init=(SETUP, PROXY),
                setup=Behaviour(after_seconds=1.0),
                proxy=POLITE,
                app=Behaviour(term_seconds=1.0, term_exit_code=143, exec=(ExecStep(takes_seconds=0.3),)),
            )
        )
    )
    await stage.until("web is ready", lambda: stage.is_ready("web"))
    await stage.come_to_rest("ready")
    stage.world.runtime.end_container(uid, "app", 3)
    await stage.until("web is ready again", lambda: stage.runs(uid, "app") and stage.is_ready("web"))
    await stage.come_to_rest("ready again")
    api.mark_deleted(Pod, "web", "default")
    await stage.until("web is gone", lambda: stage.pod("web") is None)
    await stage.come_to_rest("gone")


async def crash_of_the_app(stage: Stage) -> None:
    """Nobody but the runtime's news tells of it: there is no probe."""
    uid = _uid(stage.world.api.put(pod(app(probed=False), app=POLITE)))
    await stage.until("web is ready", lambda: stage.is_ready("web"))
    await stage.come_to_rest("ready")
    stage.world.runtime.end_container(uid, "app", 3)
    await stage.until("web is ready again", lambda: stage.runs(uid, "app") and stage.is_ready("web"))
    await stage.come_to_rest("ready again")


async def _succeeds_and_is_deleted(stage: Stage) -> None:
    api = stage.world.api
    api.put(pod(app(probed=False), policy="Never", app=Behaviour(after_seconds=5.0)))
    await stage.until("web has succeeded", lambda: stage.phase("web") == "Succeeded")
    await stage.come_to_rest("succeeded")
    api.mark_deleted(Pod, "web", "default")
    await stage.come_to_rest("gone")


async def _manifest_changes_and_is_erased(stage: Stage) -> None:
    files, mirror = stage.world.files, f"web-{NODE}"

    def shows(image: str) -> bool:
        found = stage.pod(mirror)
        return found is not None and found.spec.containers[0].image == image and stage.is_ready(mirror)

    files.write(MANIFEST, pod(app(1), app=POLITE))
    await stage.until("the mirror is ready", lambda: shows("app:v1"))
    await stage.come_to_rest("v1")
    files.write(MANIFEST, pod(app(2), app=POLITE))
    await stage.until("the mirror shows v2", lambda: shows("app:v2"))
    await stage.come_to_rest("v2")
    files.erase(MANIFEST)
    await stage.until("the mirror is gone", lambda: stage.pod(mirror) is None)
    await stage.come_to_rest("erased")


async def _is_past_its_deadline(stage: Stage) -> None:
    api = stage.world.api
    api.put(pod(app(), deadline=90, app=POLITE))
    await stage.until("web has failed", lambda: stage.phase("web") == "Failed")
    await stage.come_to_rest("failed")
    api.mark_deleted(Pod, "web", "default")
    await stage.come_to_rest("gone")


async def _is_deleted_while_starting_and_succeeded(stage: Stage) -> None:
    api = stage.world.api
    first = _uid(api.put(pod(app(), init=(SETUP,), setup=POLITE, app=POLITE)))
    await stage.until("web is being set up", lambda: stage.runs(first, "setup"))
    api.mark_deleted(Pod, "web", "default")
    await stage.until("web is gone", lambda: stage.pod("web") is None)
    api.put(pod(app(), init=(SETUP,), setup=Behaviour(after_seconds=2.0), app=POLITE))
    await stage.until("its successor is ready", lambda: stage.is_ready("web"))
    await stage.come_to_rest("ready")
    api.mark_deleted(Pod, "web", "default", grace_seconds=3)
    await stage.until("web is gone again", lambda: stage.pod("web") is None)
    await stage.come_to_rest("gone")


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid or "")


LIVES = {
    tale.name: tale
    for tale in (
        Tale("crashes once", _crashes_once_and_is_deleted),
        Tale("a job", _succeeds_and_is_deleted),
        Tale("a static pod", _manifest_changes_and_is_erased),
        Tale("past its deadline", _is_past_its_deadline),
        Tale("a successor", _is_deleted_while_starting_and_succeeded),
    )
}
