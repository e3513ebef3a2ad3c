"""The container starter alone: the exact calls to its collaborators, in order."""

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from podkeeper.engine.backoff import DurableBackoff
from podkeeper.engine.bounded_runtime import BoundedRuntime
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
from podkeeper.model.pods import AnyContainer
from podkeeper.model.quantity import parse_quantity
from podkeeper.model.runtime import ContainerRecord, ImageRecord, PodRecord, RecordState
from podkeeper.model.runtime_calls import ContainerConfig, Mount
from podkeeper.rules.backoff.table import BackoffWait, Curve
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.container.hash import container_hash
from podkeeper.rules.images.keyring import PullSecret
from podkeeper.rules.plan.actions import ContainerToKill
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.plan.sandbox_config import SandboxContext
from podkeeper.rules.status.containers import StartFailure
from podkeeper.testing.build import exec_hook, pod
from podkeeper.testing.virtual_time import BEGINNING, VirtualClock, simulate
from tests.doubles import stand_in
from tests.engine.execution_harness import UID, container

Call = tuple[object, ...]
CURVE = Curve(initial=timedelta(seconds=7))
SECRETS = (PullSecret("{}"),)
PLACE = SandboxContext(
    sandbox_id="s1", pod_ips=("10.0.0.1", "fd00::1"), volumes={"data": "/volumes/data"}, pull_secrets=SECRETS
)
APP = container("app")
WEB = pod("web", APP)
NOTHING = PodRecord(uid=UID)
NO_ANSWER = RuntimeUnavailable("no answer from c1")


def event(type_: EventType, reason: str, message: str, name: str = "app") -> Call:
    return "event", PodEvent(type_, reason, message, UID, f"spec.containers{{{name}}}"), UID


CREATED = event(EventType.NORMAL, "Created", "Container created")
STARTED = event(EventType.NORMAL, "Started", "Container started")


class Harness:
    """A starter, and fakes of all its collaborators that record their calls."""

    def __init__(self, *, with_objects: bool = True) -> None:
        self.calls: list[Call] = []
        self.failing: dict[str, Exception] = {}  # by the name of a call
        self.held: BackoffWait | None = None
        self.image: ImageRecord | NotStarted = ImageRecord(id="sha256:1", user="1000")
        self.hook_failure: str | None = None
        self.kill_errors: tuple[TryLater, ...] = ()
        self.seen = NOTHING
        self.objects: dict[str, ConfigMap | Secret] = {}
        self.ends_with = ""  # the pod is deleted during the call of this name
        self.starter = ContainerStarter(
            runtime=stand_in(BoundedRuntime, self),
            images=stand_in(ImageManager, self),
            hooks=stand_in(HookRunner, self),
            stopper=stand_in(PodStopper, self),
            objects=self if with_objects else None,
            restarts=stand_in(DurableBackoff, self),
            claim=lambda uid, name, container_id: self.call("claim", uid, name, container_id),
            clock=VirtualClock(),
            record_event=lambda event, about: self.call(
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
        """Return the configuration of the created container."""
        (made,) = (call[2] for call in self.calls if call[0] == "create")
        assert isinstance(made, ContainerConfig)
        return made

    async def start(
        self, of: Pod = WEB, what: AnyContainer | None = None, record: PodRecord = NOTHING
    ) -> NotStarted | None:
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
        self.call("inspect", uid)
        return self.seen

    # Images, restarts, objects, hooks, killer.

    async def ensure(
        self, pod: Pod, container: AnyContainer, secrets: Sequence[PullSecret]
    ) -> ImageRecord | NotStarted:
        self.call("image", container.name, secrets)
        return self.image

    def begin_restart(self, pod: Pod, container: AnyContainer, record: PodRecord, curve: Curve) -> BackoffWait | None:
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
        container: AnyContainer,
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


def run_scenario(scenario: Callable[[Harness], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Harness())

    simulate(main())


def test_a_start_makes_all_calls_in_order() -> None:
    async def scenario(harness: Harness) -> None:
        assert await harness.start() is None
        config = ContainerConfig(
            pod=WEB,
            container=APP,
            attempt=0,
            image="sha256:1",
            image_user="1000",
            spec_hash=container_hash(APP),
            env=harness.config().env,
            log_path="app/0.log",
            pod_ips=PLACE.pod_ips,
        )
        assert harness.calls == [
            ("may restart", "app", NOTHING, CURVE),
            ("settle", UID),
            ("image", "app", SECRETS),
            ("create", "s1", config),
            ("claim", UID, "app", "c1"),
            CREATED,
            ("start", "c1"),
            STARTED,
        ]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("ends_with", "last_calls"),
    [
        ("image", ["image"]),
        ("inspect", ["image", "inspect", "remove"]),
        ("create", ["image", "inspect", "remove", "create", "claim", "event"]),
    ],
)
def test_nothing_starts_in_a_pod_deleted_meanwhile(ends_with: str, last_calls: list[str]) -> None:
    stale = ContainerRecord(id="c0", name="app", state=RecordState.CREATED)
    record = NOTHING if ends_with == "image" else replace(NOTHING, containers=(stale,))

    async def scenario(harness: Harness) -> None:
        harness.ends_with = ends_with
        assert await harness.start(record=record) is None
        assert harness.names() == ["may restart", "settle", *last_calls]

    run_scenario(scenario)


def test_the_configuration_uses_the_spec_the_objects_and_the_record() -> None:
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
    of = replace(pod("web", made), spec=replace(pod("web", made).spec, volumes=(Volume(name="data"),)))
    exited = ContainerRecord(id="c0", name="app", state=RecordState.EXITED, restart_count=4)

    async def scenario(harness: Harness) -> None:
        harness.objects = {
            "paint": ConfigMap(metadata=ObjectMeta(name="paint"), data={"COLOR": "red"}),
            "spice": Secret(metadata=ObjectMeta(name="spice"), data={"TASTE": "aG90"}),
        }
        await harness.start(of, record=replace(NOTHING, containers=(exited,)))
        config = harness.config()
        assert (config.attempt, config.log_path) == (5, "app/5.log")
        assert (config.command, config.args) == (("run", "red"), ("hot",))
        assert {"COLOR": "red", "TASTE": "hot"}.items() <= config.env.items()
        assert config.mounts == (Mount(container_path="/data", host_path="/volumes/data", volume="data"),)
        assert [call for call in harness.calls if call[0] == "get"] == [
            ("get", ConfigMap, "paint", "default"),
            ("get", Secret, "spice", "default"),
        ]

    run_scenario(scenario)


def test_the_environment_shows_fields_of_the_pod_and_resources_of_the_node() -> None:
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

    async def scenario(harness: Harness) -> None:
        assert await harness.start(pod("web", replace(APP, env=env))) is None
        shown = {"NAME": "web", "POD": "10.0.0.1", "ALL": "10.0.0.1,fd00::1", "HOST": "192.0.2.1", "CPU": "3"}
        assert {name: value for name, value in harness.config().env.items() if name in shown} == shown

    run_scenario(scenario)


REFERRING = replace(APP, env_from=(EnvFromSource(secret_ref=SecretEnvSource(name="spice")),))


@pytest.mark.parametrize("optional", [False, True])
def test_a_missing_object_fails_the_start_unless_it_is_optional(optional: bool) -> None:
    source = EnvFromSource(secret_ref=SecretEnvSource(name="spice", optional=optional))

    async def scenario(harness: Harness) -> None:
        harness.failing["get"] = NotFound("no spice")
        answer = await harness.start(pod("web", replace(APP, env_from=(source,))))
        expected = NotStarted(StartFailure("CreateContainerConfigError", 'secret "spice" not found'))
        assert answer == (None if optional else expected)

    run_scenario(scenario)


def test_a_missing_optional_object_does_not_affect_other_objects() -> None:
    sources = (
        EnvFromSource(secret_ref=SecretEnvSource(name="gone", optional=True)),
        EnvFromSource(config_map_ref=ConfigMapEnvSource(name="paint")),
    )

    async def scenario(harness: Harness) -> None:
        harness.objects = {"paint": ConfigMap(metadata=ObjectMeta(name="paint"), data={"COLOR": "red"})}
        assert await harness.start(pod("web", replace(APP, env_from=sources))) is None
        assert harness.config().env["COLOR"] == "red"

    run_scenario(scenario)


@pytest.mark.parametrize(
    "source, text",
    [
        (EnvFromSource(secret_ref=SecretEnvSource(name="spice")), "secret default/spice"),
        (EnvFromSource(config_map_ref=ConfigMapEnvSource(name="paint")), "configMap default/paint"),
    ],
)
def test_without_an_api_references_to_objects_fail(source: EnvFromSource, text: str) -> None:
    async def scenario(_: Harness) -> None:
        harness = Harness(with_objects=False)
        answer = await harness.start(pod("web", replace(APP, env_from=(source,))))
        text_ = f"couldn't get {text}, no kubeClient defined"
        assert answer == NotStarted(StartFailure("CreateContainerConfigError", text_))

    run_scenario(scenario)


# Containers that do not start.


def test_a_container_in_backoff_waits() -> None:
    until = BEGINNING + timedelta(seconds=40)
    recorded = PodEvent(EventType.WARNING, "BackOff", "Back-off restarting failed container", UID)

    async def scenario(harness: Harness) -> None:
        harness.held = BackoffWait("CrashLoopBackOff", "back-off 40s", until, recorded)
        assert await harness.start() == NotStarted(StartFailure("CrashLoopBackOff", "back-off 40s"), until)
        assert harness.calls == [
            ("may restart", "app", NOTHING, CURVE),
            event(EventType.WARNING, "BackOff", "Back-off restarting failed container"),
        ]

    run_scenario(scenario)


def test_a_container_without_its_image_waits() -> None:
    async def scenario(harness: Harness) -> None:
        harness.image = NotStarted(StartFailure("ErrImagePull", "no such image"), BEGINNING)
        assert await harness.start() is harness.image
        assert harness.calls[2:] == [
            ("image", "app", SECRETS),
            event(EventType.WARNING, "Failed", "Error: ErrImagePull"),
        ]

    run_scenario(scenario)


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
def test_a_failed_step_is_the_last_and_is_recorded(
    failing: str, error: Exception, reason: str, text: str, names: list[object]
) -> None:
    async def scenario(harness: Harness) -> None:
        harness.objects = {"spice": Secret(metadata=ObjectMeta(name="spice"), data={})}
        harness.failing[failing] = error
        assert await harness.start(pod("web", REFERRING)) == NotStarted(StartFailure(reason, text))
        assert harness.names()[3:] == names
        assert harness.calls[-1] == event(EventType.WARNING, "Failed", f"Error: {text}")

    run_scenario(scenario)


def test_events_show_the_name_of_a_container_and_not_its_id() -> None:
    async def scenario(harness: Harness) -> None:
        harness.failing["start"] = NO_ANSWER
        assert await harness.start() == NotStarted(StartFailure("RunContainerError", "no answer from c1"))
        assert harness.calls[-1] == event(EventType.WARNING, "Failed", "Error: no answer from app")

    run_scenario(scenario)


@pytest.mark.parametrize("user, starts", [("1000", True), ("0", False)])
def test_run_as_non_root_is_enforced(user: str, starts: bool) -> None:
    guarded = replace(APP, security_context=SecurityContext(run_as_non_root=True))

    async def scenario(harness: Harness) -> None:
        harness.image = ImageRecord(id="sha256:1", user=user)
        answer = await harness.start(pod("web", guarded))
        assert (answer is None) == starts
        assert answer is None or answer.failure.reason == "CreateContainerConfigError"

    run_scenario(scenario)


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
    running = ContainerRecord(id="c0", name="app", state=RecordState.RUNNING)

    async def scenario(harness: Harness) -> None:
        answer = await harness.start(pod("web", APP, debug=(debug,)), debug, replace(NOTHING, containers=(running,)))
        if expected is None:
            failure = StartFailure("CreateContainerConfigError", "unable to find target container gone")
            assert answer == NotStarted(failure)
        else:
            assert harness.config().target_id == expected

    run_scenario(scenario)


# Earlier attempts.


def attempt(number: int, state: RecordState = RecordState.CREATED, name: str = "app") -> ContainerRecord:
    return ContainerRecord(id=f"{name}-{number}", name=name, state=state)


TRIED = replace(NOTHING, containers=(attempt(2), attempt(1), attempt(0, RecordState.EXITED), attempt(3, name="other")))


def test_unstarted_earlier_attempts_are_removed_before_the_next() -> None:
    async def scenario(harness: Harness) -> None:
        harness.seen = replace(NOTHING, containers=(attempt(2),))  # the other one has been removed meanwhile
        assert await harness.start(record=TRIED) is None
        assert harness.names()[3:] == ["inspect", "remove", "remove", "create", "claim", "event", "start", "event"]
        assert [call[1] for call in harness.calls if call[0] == "remove"] == ["app-2", "app-1"]

    run_scenario(scenario)


@pytest.mark.parametrize("state", [RecordState.RUNNING, RecordState.EXITED, RecordState.UNKNOWN])
def test_a_container_is_not_created_if_an_earlier_attempt_has_started(state: RecordState) -> None:
    async def scenario(harness: Harness) -> None:
        harness.seen = replace(NOTHING, containers=(attempt(2), attempt(1, state)))
        answer = await harness.start(record=TRIED)
        text = "cannot create container app: an earlier attempt has already started"
        assert answer == NotStarted(StartFailure("CreateContainerError", text))
        assert harness.names()[3:] == ["inspect", "event"]

    run_scenario(scenario)


# Hooks.

HOOKED = pod("web", container("app", post_start=exec_hook("warm", "up")))
HOOK = HOOKED.spec.containers[0].lifecycle
assert HOOK is not None
HOOK_CALL: Call = ("hook", HOOK.post_start, "app", "c1", "10.0.0.1", 3600.0)


def test_a_post_start_hook_is_executed_last() -> None:
    async def scenario(harness: Harness) -> None:
        assert await harness.start(HOOKED) is None
        assert harness.calls[-2:] == [STARTED, HOOK_CALL]

    run_scenario(scenario)


def test_a_post_start_hook_of_a_pod_without_an_ip_gets_an_empty_ip() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.starter.start(HOOKED, HOOKED.spec.containers[0], NOTHING, SandboxContext(sandbox_id="s1"))
        assert harness.calls[-1][4] == ""

    run_scenario(scenario)


def test_other_hooks_are_not_executed_at_the_start() -> None:
    async def scenario(harness: Harness) -> None:
        assert await harness.start(pod("web", container("app", pre_stop=exec_hook("bye")))) is None
        assert harness.calls[-1] == STARTED

    run_scenario(scenario)


@pytest.mark.parametrize("errors", [(), (TryLater("cannot stop"),)], ids=["stopped", "not stopped"])
def test_a_container_whose_hook_fails_is_stopped(errors: tuple[TryLater, ...]) -> None:
    before = replace(NOTHING, containers=(attempt(0, RecordState.EXITED),))

    async def scenario(harness: Harness) -> None:
        harness.hook_failure, harness.kill_errors = "exit status 1", errors
        answer = await harness.start(HOOKED, record=before)
        assert answer == NotStarted(StartFailure("PostStartHookError", "exit status 1"))
        running = ContainerRecord(id="c1", name="app", state=RecordState.RUNNING)
        assert harness.calls[-3:] == [
            HOOK_CALL,
            event(EventType.WARNING, "FailedPostStartHook", "PostStartHook failed"),
            (
                "kill",
                replace(before, ips=PLACE.pod_ips, containers=(running, *before.containers)),
                ContainerToKill("c1", "app", "FailedPostStartHook", KillReason.FAILED_POST_START_HOOK),
            ),
        ]

    run_scenario(scenario)
