"""The container starter alone: every call to its neighbours, with all that is passed on, in order."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.hooks import HookRunner
from podkeeper.engine.images import ImageManager
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import (
    ApiUnavailable,
    BadInput,
    NotConfigurable,
    NotFound,
    Problem,
    RuntimeUnavailable,
    TryLater,
)
from podkeeper.model.k8s.core import (
    ConfigMap,
    ConfigMapEnvSource,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    LifecycleHandler,
    ObjectFieldSelector,
    Pod,
    ResourceFieldSelector,
    Secret,
    SecretEnvSource,
    SecurityContext,
    Volume,
    VolumeMount,
)
from podkeeper.model.k8s.meta import ObjectMeta
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.quantity import parse_quantity
from podkeeper.model.runtime import ContainerRecord, ContainerState, ImageRecord, PodRecord
from podkeeper.model.runtime_calls import ContainerConfig, Mount
from podkeeper.rules.backoff import Curve, Held
from podkeeper.rules.container_grace import KillReason
from podkeeper.rules.container_hash import container_hash
from podkeeper.rules.keyring import PullSecret
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.plan.place import Place
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.status.containers import StartFailure
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.execution_house import UID, command, container, pod

Call = tuple[object, ...]
Spec = Container | EphemeralContainer
CURVE = Curve(initial=timedelta(seconds=7))
SECRETS = (PullSecret("{}"),)
PLACE = Place(sandbox_id="s1", pod_ips=("10.0.0.1", "fd00::1"), volumes={"data": "/volumes/data"}, pull_secrets=SECRETS)
APP = container("app")
WEB = pod(APP)
NOTHING = PodRecord(uid=UID)
NO_ANSWER = RuntimeUnavailable("no answer from c1")


def event(type_: EventType, reason: str, message: str, name: str = "app") -> Call:
    return "event", PodEvent(type_, reason, message, UID, f"spec.containers{{{name}}}"), UID


CREATED = event(EventType.NORMAL, "Created", "Container created")
STARTED = event(EventType.NORMAL, "Started", "Container started")


class Desk:
    """All neighbours of a starter in one, which notes their calls, and the starter."""

    def __init__(self, *, with_objects: bool = True) -> None:
        self.calls: list[Call] = []
        self.failing: dict[str, Exception] = {}  # by the name of a call
        self.held: Held | None = None
        self.image: ImageRecord | NotStarted = ImageRecord(id="sha256:1", user="1000")
        self.hook_failure: str | None = None
        self.kill_errors: tuple[TryLater, ...] = ()
        self.seen = NOTHING
        self.objects: dict[str, ConfigMap | Secret] = {}
        self.ends_with = ""  # the pod is deleted during the call of this name
        self.starter = ContainerStarter(
            runtime=self,
            images=stand_in(ImageManager, self),
            hooks=stand_in(HookRunner, self),
            killer=stand_in(PodStopper, self),
            objects=self if with_objects else None,
            restarts=stand_in(DurableBackoff, self),
            claim=lambda uid, name, container_id: self.call("claim", uid, name, container_id),
            clock=VirtualClock(),
            record=lambda event, about: self.call(
                "event", event, about.metadata.uid if isinstance(about, Pod) else None
            ),
            host_ips=lambda: ("192.0.2.1",),
            allocatable=lambda: {"cpu": parse_quantity("3")},
            curve=CURVE,
            may_start=lambda uid: uid == UID and self.ends_with not in self.names(),
        )

    def call(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise self.failing[name]

    def names(self) -> list[object]:
        return [call[0] for call in self.calls]

    def config(self) -> ContainerConfig:
        """What the container is made from."""
        (made,) = (call[2] for call in self.calls if call[0] == "create")
        assert isinstance(made, ContainerConfig)
        return made

    async def start(self, of: Pod = WEB, what: Spec | None = None, record: PodRecord = NOTHING) -> NotStarted | None:
        return await self.starter.start(of, what or of.spec.containers[0], record, PLACE)

    # The runtime.

    async def create_container(self, sandbox_id: str, config: ContainerConfig) -> str:
        self.call("create", sandbox_id, config)
        return "c1"

    async def start_container(self, container_id: str) -> None:
        self.call("start", container_id)

    async def remove_container(self, container_id: str) -> None:
        self.call("remove", container_id)

    async def pod_record(self, uid: PodUID) -> PodRecord:
        self.call("look", uid)
        return self.seen

    # Images, restarts, objects, hooks, killer.

    async def ensure(self, pod: Pod, container: Spec, secrets: Sequence[PullSecret]) -> ImageRecord | NotStarted:
        self.call("image", container.name, secrets)
        return self.image

    def begin_restart(self, pod: Pod, container: Spec, record: PodRecord, curve: Curve) -> Held | None:
        self.call("may restart", container.name, record, curve)
        return self.held

    async def settle(self, uid: PodUID) -> None:
        self.call("settle", uid)

    async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        self.call("get", kind, name, namespace)
        if name not in self.objects:
            raise NotFound(name)
        return self.objects[name]

    async def execute(
        self,
        hook: LifecycleHandler,
        pod: Pod,
        container: Spec,
        container_id: str,
        pod_ip: str,
        timeout_seconds: float,
    ) -> str | None:
        self.call("hook", hook, container.name, container_id, pod_ip, timeout_seconds)
        return self.hook_failure

    async def kill_containers(
        self, pod: Pod, record: PodRecord, kills: Sequence[ContainerToKill]
    ) -> tuple[TryLater, ...]:
        self.call("kill", record, *kills)
        return self.kill_errors


def at_desk(story: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        await story(Desk())

    simulate(played())


def test_a_start_from_its_backoff_to_its_event() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.start() is None
        config = ContainerConfig(
            pod=WEB,
            container=APP,
            attempt=0,
            image="sha256:1",
            image_user="1000",
            spec_hash=container_hash(APP),
            env=desk.config().env,
            log_path="app/0.log",
            pod_ips=PLACE.pod_ips,
        )
        assert desk.calls == [
            ("may restart", "app", NOTHING, CURVE),
            ("settle", UID),
            ("image", "app", SECRETS),
            ("create", "s1", config),
            ("claim", UID, "app", "c1"),
            CREATED,
            ("start", "c1"),
            STARTED,
        ]

    at_desk(story)


@pytest.mark.parametrize(
    ("ends_with", "last_calls"),
    [
        ("image", ["image"]),
        ("look", ["image", "look", "remove"]),
        ("create", ["image", "look", "remove", "create", "claim", "event"]),
    ],
)
def test_nothing_starts_in_a_pod_that_is_deleted_meanwhile(ends_with: str, last_calls: list[str]) -> None:
    stale = ContainerRecord(id="c0", name="app", state=ContainerState.CREATED)
    record = NOTHING if ends_with == "image" else replace(NOTHING, containers=(stale,))

    async def story(desk: Desk) -> None:
        desk.ends_with = ends_with
        assert await desk.start(record=record) is None
        assert desk.names() == ["may restart", "settle", *last_calls]

    at_desk(story)


def test_a_container_is_made_from_its_spec_its_objects_and_its_record() -> None:
    made = replace(
        APP,
        command=("run", "$(COLOR)"),
        args=("$(TASTE)",),
        env_from=(
            EnvFromSource(config_map_ref=ConfigMapEnvSource(name="paint")),
            EnvFromSource(secret_ref=SecretEnvSource(name="spice")),
        ),
        volume_mounts=(VolumeMount(name="data", mount_path="/data"),),
    )
    of = replace(pod(made), spec=replace(pod(made).spec, volumes=(Volume(name="data"),)))
    exited = ContainerRecord(id="c0", name="app", state=ContainerState.EXITED, restart_count=4)

    async def story(desk: Desk) -> None:
        desk.objects = {
            "paint": ConfigMap(metadata=ObjectMeta(name="paint"), data={"COLOR": "red"}),
            "spice": Secret(metadata=ObjectMeta(name="spice"), data={"TASTE": "aG90"}),
        }
        await desk.start(of, record=replace(NOTHING, containers=(exited,)))
        config = desk.config()
        assert (config.attempt, config.log_path) == (5, "app/5.log")
        assert (config.command, config.args) == (("run", "red"), ("hot",))
        assert {"COLOR": "red", "TASTE": "hot"}.items() <= config.env.items()
        assert config.mounts == (Mount(container_path="/data", host_path="/volumes/data", volume="data"),)
        assert [call for call in desk.calls if call[0] == "get"] == [
            ("get", ConfigMap, "paint", "default"),
            ("get", Secret, "spice", "default"),
        ]

    at_desk(story)


def test_the_environment_shows_what_the_pod_and_the_node_have() -> None:
    def of_pod(path: str) -> EnvVarSource:
        return EnvVarSource(field_ref=ObjectFieldSelector(field_path=path))

    sources = {
        "NAME": of_pod("metadata.name"),
        "POD": of_pod("status.podIP"),
        "ALL": of_pod("status.podIPs"),
        "HOST": of_pod("status.hostIP"),
        "CPU": EnvVarSource(resource_field_ref=ResourceFieldSelector(resource="limits.cpu")),
    }
    env = tuple(EnvVar(name=name, value_from=source) for name, source in sources.items())

    async def story(desk: Desk) -> None:
        assert await desk.start(pod(replace(APP, env=env))) is None
        shown = {"NAME": "web", "POD": "10.0.0.1", "ALL": "10.0.0.1,fd00::1", "HOST": "192.0.2.1", "CPU": "3"}
        assert {name: value for name, value in desk.config().env.items() if name in shown} == shown

    at_desk(story)


REFERRING = replace(APP, env_from=(EnvFromSource(secret_ref=SecretEnvSource(name="spice")),))


@pytest.mark.parametrize("optional", [False, True])
def test_an_object_that_is_missing_matters_unless_it_is_optional(optional: bool) -> None:
    source = EnvFromSource(secret_ref=SecretEnvSource(name="spice", optional=optional))

    async def story(desk: Desk) -> None:
        desk.failing["get"] = NotFound("no spice")
        answer = await desk.start(pod(replace(APP, env_from=(source,))))
        expected = NotStarted(StartFailure("CreateContainerConfigError", 'secret "spice" not found'))
        assert answer == (None if optional else expected)

    at_desk(story)


def test_an_optional_object_that_is_missing_hides_no_other() -> None:
    sources = (
        EnvFromSource(secret_ref=SecretEnvSource(name="gone", optional=True)),
        EnvFromSource(config_map_ref=ConfigMapEnvSource(name="paint")),
    )

    async def story(desk: Desk) -> None:
        desk.objects = {"paint": ConfigMap(metadata=ObjectMeta(name="paint"), data={"COLOR": "red"})}
        assert await desk.start(pod(replace(APP, env_from=sources))) is None
        assert desk.config().env["COLOR"] == "red"

    at_desk(story)


@pytest.mark.parametrize(
    "source, text",
    [
        (EnvFromSource(secret_ref=SecretEnvSource(name="spice")), "secret default/spice"),
        (EnvFromSource(config_map_ref=ConfigMapEnvSource(name="paint")), "configMap default/paint"),
    ],
)
def test_without_an_api_no_object_is_found(source: EnvFromSource, text: str) -> None:
    async def story(_: Desk) -> None:
        desk = Desk(with_objects=False)
        answer = await desk.start(pod(replace(APP, env_from=(source,))))
        text_ = f"couldn't get {text}, no kubeClient defined"
        assert answer == NotStarted(StartFailure("CreateContainerConfigError", text_))

    at_desk(story)


# What keeps a container from starting.


def test_a_container_in_backoff_waits() -> None:
    until = BEGINNING + timedelta(seconds=40)
    told = PodEvent(EventType.WARNING, "BackOff", "Back-off restarting failed container", UID)

    async def story(desk: Desk) -> None:
        desk.held = Held("CrashLoopBackOff", "back-off 40s", until, told)
        assert await desk.start() == NotStarted(StartFailure("CrashLoopBackOff", "back-off 40s"), until)
        assert desk.calls == [
            ("may restart", "app", NOTHING, CURVE),
            event(EventType.WARNING, "BackOff", "Back-off restarting failed container"),
        ]

    at_desk(story)


def test_a_container_without_its_image_waits() -> None:
    async def story(desk: Desk) -> None:
        desk.image = NotStarted(StartFailure("ErrImagePull", "no such image"), BEGINNING)
        assert await desk.start() is desk.image
        assert desk.calls[2:] == [
            ("image", "app", SECRETS),
            event(EventType.WARNING, "Failed", "Error: ErrImagePull"),
        ]

    at_desk(story)


FAILURES: dict[str, tuple[str, Exception, str, str, list[object]]] = {
    "its secret cannot be read": (
        "get",
        ApiUnavailable("no API"),
        "CreateContainerConfigError",
        "no API",
        ["get", "event"],
    ),
    "its secret is malformed": ("get", BadInput(Problem("odd")), "CreateContainerConfigError", "odd", ["get", "event"]),
    "the runtime finds it cannot be configured": (
        "create",
        NotConfigurable("no such user"),
        "CreateContainerConfigError",
        "no such user",
        ["get", "create", "event"],
    ),
    "it cannot be created": (
        "create",
        RuntimeUnavailable("no answer"),
        "CreateContainerError",
        "no answer",
        ["get", "create", "event"],
    ),
    "it cannot be started": (
        "start",
        RuntimeUnavailable("no answer"),
        "RunContainerError",
        "no answer",
        ["get", "create", "claim", "event", "start", "event"],
    ),
}


@pytest.mark.parametrize("failing, error, reason, text, names", FAILURES.values(), ids=FAILURES.keys())
def test_a_failed_step_is_the_last_and_is_told(
    failing: str, error: Exception, reason: str, text: str, names: list[object]
) -> None:
    async def story(desk: Desk) -> None:
        desk.objects = {"spice": Secret(metadata=ObjectMeta(name="spice"), data={})}
        desk.failing[failing] = error
        assert await desk.start(pod(REFERRING)) == NotStarted(StartFailure(reason, text))
        assert desk.names()[3:] == names
        assert desk.calls[-1] == event(EventType.WARNING, "Failed", f"Error: {text}")

    at_desk(story)


def test_the_id_of_a_container_is_in_no_event() -> None:
    async def story(desk: Desk) -> None:
        desk.failing["start"] = NO_ANSWER
        assert await desk.start() == NotStarted(StartFailure("RunContainerError", "no answer from c1"))
        assert desk.calls[-1] == event(EventType.WARNING, "Failed", "Error: no answer from app")

    at_desk(story)


@pytest.mark.parametrize("user, starts", [("1000", True), ("0", False)])
def test_a_container_that_must_not_be_root_is_not(user: str, starts: bool) -> None:
    guarded = replace(APP, security_context=SecurityContext(run_as_non_root=True))

    async def story(desk: Desk) -> None:
        desk.image = ImageRecord(id="sha256:1", user=user)
        answer = await desk.start(pod(guarded))
        assert (answer is None) == starts
        assert answer is None or answer.failure.reason == "CreateContainerConfigError"

    at_desk(story)


# Ephemeral containers.


@pytest.mark.parametrize(
    "target, expected",
    [
        pytest.param(None, "", id="no target"),
        pytest.param("app", "c0", id="a target"),
        pytest.param("gone", None, id="an unknown target"),
    ],
)
def test_an_ephemeral_container_shares_the_processes_of_its_target(target: str | None, expected: str | None) -> None:
    debug = EphemeralContainer(name="debug", image="sh:1", target_container_name=target)
    running = ContainerRecord(id="c0", name="app", state=ContainerState.RUNNING)

    async def story(desk: Desk) -> None:
        answer = await desk.start(pod(APP, debug=(debug,)), debug, replace(NOTHING, containers=(running,)))
        if expected is None:
            failure = StartFailure("CreateContainerConfigError", "unable to find target container gone")
            assert answer == NotStarted(failure)
        else:
            assert desk.config().target_id == expected

    at_desk(story)


# Earlier attempts.


def attempt(number: int, state: ContainerState = ContainerState.CREATED, name: str = "app") -> ContainerRecord:
    return ContainerRecord(id=f"{name}-{number}", name=name, state=state)


TRIED = replace(
    NOTHING, containers=(attempt(2), attempt(1), attempt(0, ContainerState.EXITED), attempt(3, name="other"))
)


def test_earlier_attempts_that_were_not_started_are_removed_before_the_next() -> None:
    async def story(desk: Desk) -> None:
        desk.seen = replace(NOTHING, containers=(attempt(2),))  # the other one is gone by now
        assert await desk.start(record=TRIED) is None
        assert desk.names()[3:] == ["look", "remove", "remove", "create", "claim", "event", "start", "event"]
        assert [call[1] for call in desk.calls if call[0] == "remove"] == ["app-2", "app-1"]

    at_desk(story)


@pytest.mark.parametrize("state", [ContainerState.RUNNING, ContainerState.EXITED, ContainerState.UNKNOWN])
def test_a_container_is_not_created_if_an_earlier_attempt_has_started(state: ContainerState) -> None:
    async def story(desk: Desk) -> None:
        desk.seen = replace(NOTHING, containers=(attempt(2), attempt(1, state)))
        answer = await desk.start(record=TRIED)
        text = "cannot create container app: an earlier attempt has started after all"
        assert answer == NotStarted(StartFailure("CreateContainerError", text))
        assert desk.names()[3:] == ["look", "event"]

    at_desk(story)


# Hooks.

HOOKED = pod(container("app", post_start=command("warm", "up")))
HOOK = HOOKED.spec.containers[0].lifecycle
assert HOOK is not None
HOOK_CALL: Call = ("hook", HOOK.post_start, "app", "c1", "10.0.0.1", 3600.0)


def test_a_post_start_hook_is_executed_last() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.start(HOOKED) is None
        assert desk.calls[-2:] == [STARTED, HOOK_CALL]

    at_desk(story)


def test_a_post_start_hook_of_a_pod_without_an_address_has_none() -> None:
    async def story(desk: Desk) -> None:
        await desk.starter.start(HOOKED, HOOKED.spec.containers[0], NOTHING, Place(sandbox_id="s1"))
        assert desk.calls[-1][4] == ""

    at_desk(story)


def test_other_hooks_are_not_executed_at_the_start() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.start(pod(container("app", pre_stop=command("bye")))) is None
        assert desk.calls[-1] == STARTED

    at_desk(story)


@pytest.mark.parametrize("errors", [(), (TryLater("cannot stop"),)], ids=["stopped", "not stopped"])
def test_a_container_whose_hook_fails_is_stopped(errors: tuple[TryLater, ...]) -> None:
    before = replace(NOTHING, containers=(attempt(0, ContainerState.EXITED),))

    async def story(desk: Desk) -> None:
        desk.hook_failure, desk.kill_errors = "exit status 1", errors
        answer = await desk.start(HOOKED, record=before)
        assert answer == NotStarted(StartFailure("PostStartHookError", "exit status 1"))
        running = ContainerRecord(id="c1", name="app", state=ContainerState.RUNNING)
        assert desk.calls[-3:] == [
            HOOK_CALL,
            event(EventType.WARNING, "FailedPostStartHook", "PostStartHook failed"),
            (
                "kill",
                replace(before, ips=PLACE.pod_ips, containers=(running, *before.containers)),
                ContainerToKill("c1", "app", "FailedPostStartHook", KillReason.FAILED_POST_START_HOOK),
            ),
        ]

    at_desk(story)
