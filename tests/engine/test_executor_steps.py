"""The plan executor alone: every call to another module, with its arguments, in order."""

from collections.abc import Callable, Coroutine, Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from podkeeper.engine.executor import PlanExecutor
from podkeeper.engine.observer import Observer
from podkeeper.engine.starter import ContainerStarter
from podkeeper.engine.stopper import PodStopper
from podkeeper.model.errors import RuntimeRefused, RuntimeUnavailable, TryLater
from podkeeper.model.k8s.core import EphemeralContainer, Pod
from podkeeper.model.messages import EventType, PodEvent, PodUID
from podkeeper.model.pods import AnyContainer
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState, SandboxRecord
from podkeeper.model.runtime_calls import Dns, SandboxConfig
from podkeeper.ports.runtime import Runtime
from podkeeper.rules.container.grace import KillReason
from podkeeper.rules.dns import PodDns
from podkeeper.rules.images.keyring import PullSecret
from podkeeper.rules.plan.actions import ContainerToKill, ContainerToReset, PodActions
from podkeeper.rules.plan.result import NotStarted
from podkeeper.rules.plan.sandbox_config import SandboxContext
from podkeeper.rules.status.containers import StartFailure
from podkeeper.testing.build import pod
from podkeeper.testing.virtual_time import simulate
from tests.doubles import stand_in
from tests.engine.execution_harness import UID, container

Call = tuple[object, ...]
WEB = pod("web", container("app"), container("proxy"))
INIT = pod("web", container("app"), init=(container("setup"), container("mesh", sidecar=True), container("late")))
SECRETS = (PullSecret("{}"),)
MOUNTS = {"data": "/volumes/data"}
NOTHING = PodRecord(uid=UID)
IN_SANDBOX = PodRecord(uid=UID, ips=("10.0.0.1",), sandboxes=(SandboxRecord(id="s1", ready=True),))
START = PodActions(sandbox_id="s1", containers_to_start=(0, 1))
CREATE = PodActions(kill_pod=True, create_sandbox=True, containers_to_start=(0,))
REFUSED = NotStarted(StartFailure("RunContainerError", "no"))
NO_ANSWER = RuntimeUnavailable("no answer")


def found(name: str, state: RecordState = RecordState.EXITED, number: int = 1) -> ContainerRecord:
    return ContainerRecord(id=f"{name}-{number}", name=name, state=state)


class Harness(Observer):
    """An executor, and all modules that it calls. Calls are recorded."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.failing: dict[str, TryLater] = {}  # by the name of a call
        self.not_started: dict[str, NotStarted] = {}
        self.sandboxes: list[SandboxContext] = []
        self.seen = IN_SANDBOX
        self.lookup = PodDns(Dns(servers=("10.0.0.53",)))
        self.starts_left = 100
        self.executor = PlanExecutor(
            runtime=cast(Runtime, self),
            starter=stand_in(ContainerStarter, self),
            stopper=stand_in(PodStopper, self),
            record_event=lambda event, about: self.calls.append(("event", event, about)),
            host_ips=lambda: ("192.0.2.1",),
            log_root="/logs",
            cluster_domain="example.org",
            lookup=self.look_up,
            observer=self,
            may_start=self.may_start,
            max_pods_with_failures=2,
        )

    def may_start(self, uid: PodUID) -> bool:
        return uid != UID or sum(call[0] == "start" for call in self.calls) < self.starts_left

    def call(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise self.failing[name]

    async def execute(self, of: Pod, record: PodRecord, actions: PodActions) -> None:
        await self.executor.execute(
            of,
            record,
            actions,
            mounts=MOUNTS,
            cgroup_parent="/pods/web",
            pull_secrets=SECRETS,
            on_sandbox=lambda record: self.calls.append(("sandbox ready", record)),
        )

    async def errors(self, of: Pod, record: PodRecord, actions: PodActions) -> list[str]:
        """Execute a plan that fails. Returns what it raises."""
        with pytest.raises(ExceptionGroup) as raised:
            await self.execute(of, record, actions)
        return [str(error) for error in raised.value.exceptions]

    def steps(self) -> list[str]:
        """The names of the calls, and the containers that are started."""
        return [f"start {call[1]}" if call[0] == "start" else str(call[0]) for call in self.calls]

    async def look_up(self, pod: Pod) -> PodDns:
        self.call("look up DNS")
        return self.lookup

    # The runtime.

    async def run_sandbox(self, config: SandboxConfig) -> str:
        self.call("run sandbox", config)
        return "s2"

    async def remove_sandbox(self, sandbox_id: str) -> None:
        self.call("remove sandbox", sandbox_id)

    async def remove_container(self, container_id: str) -> None:
        self.call(f"remove {container_id}")

    async def pod_record(self, uid: PodUID) -> PodRecord:
        self.call("inspect", uid)
        return self.seen

    # Starter and stopper.

    async def start(
        self, pod: Pod, container: AnyContainer, record: PodRecord, sandbox: SandboxContext
    ) -> NotStarted | None:
        self.call("start", container.name)
        self.sandboxes.append(sandbox)
        return self.not_started.get(container.name)

    async def kill_pod(
        self, pod: Pod | None, record: PodRecord, grace_override_seconds: int | None
    ) -> tuple[TryLater, ...]:
        self.calls.append(("kill pod", pod, record, grace_override_seconds))
        return tuple(self.failing[name] for name in ("kill pod",) if name in self.failing)

    async def kill_containers(
        self,
        pod: Pod,
        record: PodRecord,
        kills: Sequence[ContainerToKill],
        grace_override_seconds: int | None = None,
    ) -> tuple[TryLater, ...]:
        names = " ".join(kill.id for kill in kills)
        self.calls.append((f"kill {names}".strip(), *kills, grace_override_seconds))
        return tuple(self.failing[f"kill {kill.id}"] for kill in kills if f"kill {kill.id}" in self.failing)

    def forget(self, uid: PodUID) -> None:
        self.call("forget", uid)

    # The observer.

    def sandbox_starting(self) -> None:
        self.call("sandbox begun")

    def sandbox_failed(self) -> None:
        self.call("sandbox failed")

    def container_starting(self, kind: str) -> None:
        self.call(f"begun {kind}")

    def container_start_failed(self, kind: str, reason: str) -> None:
        self.call(f"failed {kind} {reason}")


def with_harness(scenario: Callable[[Harness], Coroutine[None, None, None]]) -> None:
    simulate(scenario(Harness()))


# Starting.


def test_containers_start_in_the_sandbox_with_mounts_cgroup_and_secrets() -> None:
    async def scenario(harness: Harness) -> None:
        await harness.execute(WEB, IN_SANDBOX, START)
        assert harness.steps() == ["kill", "begun container", "start app", "begun container", "start proxy"]
        sandbox = SandboxContext(sandbox_id="s1", pod_ips=("10.0.0.1",), volumes=MOUNTS, pull_secrets=SECRETS)
        assert harness.sandboxes == [sandbox, sandbox]

    with_harness(scenario)


def test_a_new_sandbox_passes_its_addresses_to_its_containers() -> None:
    event = PodEvent(EventType.WARNING, "DNSConfigForming", "too many", UID)

    async def scenario(harness: Harness) -> None:
        harness.lookup = PodDns(Dns(servers=("10.0.0.53",)), (event,))
        harness.seen = replace(
            IN_SANDBOX,
            sandboxes=(
                SandboxRecord(id="s3", ready=False, ip="10.0.0.3"),
                SandboxRecord(id="s2", ready=True, ip="10.0.0.2", additional_ips=("fd00::2",)),
                SandboxRecord(id="s1", ready=False, ip="10.0.0.1"),
            ),
        )
        await harness.execute(WEB, NOTHING, replace(CREATE, attempt=3))
        config = SandboxConfig(
            pod=WEB,
            attempt=3,
            hostname="web",
            log_directory="/logs/default_web_uid-web",
            cgroup_parent="/pods/web",
            dns=harness.lookup.dns,
        )
        assert harness.calls == [
            ("kill pod", WEB, NOTHING, None),
            ("sandbox begun",),
            ("look up DNS",),
            ("event", event, WEB),
            ("run sandbox", config),
            ("inspect", UID),
            ("sandbox ready", harness.seen),
            ("begun container",),
            ("start", "app"),
        ]
        ips = ("10.0.0.2", "fd00::2")
        assert harness.sandboxes == [SandboxContext(sandbox_id="s2", pod_ips=ips, volumes=MOUNTS, pull_secrets=SECRETS)]

    with_harness(scenario)


@pytest.mark.parametrize("sandbox", [SandboxRecord(id="s2", ready=True), SandboxRecord(id="s1", ready=True, ip="1")])
def test_a_sandbox_without_an_address_gives_none(sandbox: SandboxRecord) -> None:
    async def scenario(harness: Harness) -> None:
        harness.seen = replace(IN_SANDBOX, sandboxes=(sandbox,))
        await harness.execute(WEB, NOTHING, CREATE)
        assert [sandbox.pod_ips for sandbox in harness.sandboxes] == [()]

    with_harness(scenario)


@pytest.mark.parametrize(
    "host_network, ips, actions, expected",
    [
        pytest.param(True, (), START, ("192.0.2.1",), id="the node's"),
        pytest.param(True, ("192.0.2.9",), START, ("192.0.2.9",), id="those that are known"),
        pytest.param(True, (), CREATE, ("192.0.2.1",), id="the node's, in a new sandbox"),
        pytest.param(False, (), START, (), id="none"),
    ],
)
def test_addresses_of_a_pod(
    host_network: bool, ips: tuple[str, ...], actions: PodActions, expected: tuple[str, ...]
) -> None:
    of = replace(WEB, spec=replace(WEB.spec, host_network=host_network or None))

    async def scenario(harness: Harness) -> None:
        harness.seen = replace(IN_SANDBOX, sandboxes=(SandboxRecord(id="s2", ready=True, ip="10.0.0.2"),))
        await harness.execute(of, replace(IN_SANDBOX, ips=ips), actions)
        assert {sandbox.pod_ips for sandbox in harness.sandboxes} == {expected}

    with_harness(scenario)


def test_kinds_of_containers_start_in_order_and_are_counted_by_kind() -> None:
    everything = pod("web", container("app"), init=(container("setup"),), debug=(EphemeralContainer(name="debug"),))
    actions = PodActions(
        sandbox_id="s1",
        ephemeral_containers_to_start=(0,),
        init_containers_to_start=(0,),
        containers_to_start=(0,),
    )

    async def scenario(harness: Harness) -> None:
        harness.not_started = {"debug": REFUSED, "app": REFUSED}
        errors = await harness.errors(everything, IN_SANDBOX, actions)
        assert errors == [
            "cannot start container debug: RunContainerError: no",
            "cannot start container app: RunContainerError: no",
        ]
        assert harness.steps() == [
            "kill",
            "begun ephemeral_container",
            "start debug",
            "failed ephemeral_container RunContainerError",
            "begun init_container",
            "start setup",
            "begun container",
            "start app",
            "failed container RunContainerError",
        ]

    with_harness(scenario)


@pytest.mark.parametrize("failing, started", [("setup", ["setup"]), ("mesh", ["setup", "mesh", "late"])])
def test_only_a_regular_init_container_blocks_the_next(failing: str, started: list[str]) -> None:
    async def scenario(harness: Harness) -> None:
        harness.not_started = {failing: REFUSED}
        actions = PodActions(sandbox_id="s1", init_containers_to_start=(0, 1, 2))
        assert len(await harness.errors(INIT, IN_SANDBOX, actions)) == 1
        assert [call[1] for call in harness.calls if call[0] == "start"] == started

    with_harness(scenario)


@pytest.mark.parametrize(
    ("actions", "starts_left", "steps"),
    [
        (CREATE, 0, ["kill pod"]),
        (START, 0, ["kill"]),
        (START, 1, ["kill", "begun container", "start app"]),
    ],
)
def test_nothing_starts_in_a_terminating_pod(actions: PodActions, starts_left: int, steps: list[str]) -> None:
    async def scenario(harness: Harness) -> None:
        harness.starts_left = starts_left
        await harness.execute(WEB, IN_SANDBOX, actions)
        assert harness.steps() == steps

    with_harness(scenario)


def test_optional_modules_may_be_missing() -> None:
    async def scenario(harness: Harness) -> None:
        harness.executor = PlanExecutor(
            runtime=cast(Runtime, harness),
            starter=stand_in(ContainerStarter, harness),
            stopper=stand_in(PodStopper, harness),
            record_event=lambda event, about: None,
            host_ips=lambda: (),
        )
        harness.not_started = {"app": REFUSED}
        assert len(await harness.errors(WEB, NOTHING, CREATE)) == 1
        (config,) = (call[1] for call in harness.calls if call[0] == "run sandbox")
        assert isinstance(config, SandboxConfig)
        assert (config.dns, config.log_directory) == (None, "/var/log/pods/default_web_uid-web")
        assert harness.executor.failures_of(UID) == {"app": REFUSED.failure}
        harness.failing["run sandbox"] = NO_ANSWER
        with pytest.raises(RuntimeUnavailable):
            await harness.execute(WEB, NOTHING, CREATE)

    with_harness(scenario)


# Without a sandbox.

NO_SANDBOX: dict[str, tuple[str, PodEvent, list[str]]] = {
    "the DNS settings are not available": (
        "look up DNS",
        PodEvent(EventType.WARNING, "FailedCreatePodSandBox", "Failed to create pod sandbox: no answer", UID),
        ["kill pod", "sandbox begun", "look up DNS", "sandbox failed", "event"],
    ),
    "it cannot be created": (
        "run sandbox",
        PodEvent(EventType.WARNING, "FailedCreatePodSandBox", "Failed to create pod sandbox: no answer", UID),
        ["kill pod", "sandbox begun", "look up DNS", "run sandbox", "sandbox failed", "event"],
    ),
    "it cannot be inspected": (
        "inspect",
        PodEvent(EventType.WARNING, "FailedPodSandBoxStatus", "Unable to get pod sandbox status: no answer", UID),
        ["kill pod", "sandbox begun", "look up DNS", "run sandbox", "inspect", "event"],
    ),
}


@pytest.mark.parametrize("failing, event, steps", NO_SANDBOX.values(), ids=NO_SANDBOX.keys())
def test_nothing_starts_without_a_sandbox(failing: str, event: PodEvent, steps: list[str]) -> None:
    async def scenario(harness: Harness) -> None:
        harness.failing[failing] = NO_ANSWER
        with pytest.raises(RuntimeUnavailable):
            await harness.execute(WEB, NOTHING, CREATE)
        assert harness.steps() == steps
        assert harness.calls[-1] == ("event", event, WEB)

    with_harness(scenario)


def test_a_replaced_sandbox_is_recorded_and_its_init_containers_are_removed() -> None:
    record = replace(IN_SANDBOX, containers=(found("app"), found("setup", number=2), found("setup")))

    async def scenario(harness: Harness) -> None:
        actions = PodActions(kill_pod=True, create_sandbox=True, sandbox_id="s1", init_containers_to_start=(0,))
        await harness.execute(INIT, record, actions)
        text = "Pod sandbox changed, it will be killed and re-created."
        event = PodEvent(EventType.NORMAL, "SandboxChanged", text, UID)
        assert harness.calls[:4] == [
            ("event", event, INIT),
            ("kill pod", INIT, record, None),
            ("remove setup-2",),
            ("remove setup-1",),
        ]

    with_harness(scenario)


# Stopping.


def test_a_plan_that_only_kills_removes_and_starts_nothing() -> None:
    record = replace(IN_SANDBOX, containers=(found("setup", number=2), found("setup")))

    async def scenario(harness: Harness) -> None:
        actions = PodActions(kill_pod=True, sandbox_id="s1", ephemeral_containers_to_start=(0,))
        await harness.execute(INIT, record, actions)
        assert harness.calls == [("kill pod", INIT, record, None)]

    with_harness(scenario)


KILL = ContainerToKill("app-1", "app", "changed", KillReason.LIVENESS_PROBE)
RESETS = PodActions(
    sandbox_id="s1",
    containers_to_kill=(KILL,),
    containers_to_reset=(ContainerToReset("app-1", "app", False), ContainerToReset("proxy-1", "proxy", True)),
    containers_to_start=(0,),
)


def test_containers_are_killed_then_reset_then_older_init_containers_are_removed() -> None:
    record = replace(IN_SANDBOX, containers=(found("setup", number=2), found("setup")))

    async def scenario(harness: Harness) -> None:
        await harness.execute(INIT, record, RESETS)
        kill = ContainerToKill("proxy-1", "proxy", "killing", KillReason.RESTART_ALL_CONTAINERS)
        assert harness.calls == [
            ("kill app-1", KILL, None),
            ("remove app-1",),
            ("kill proxy-1", kill, 0),
            ("remove proxy-1",),
            ("remove setup-1",),
            ("begun container",),
            ("start", "app"),
        ]

    with_harness(scenario)


@pytest.mark.parametrize("step", ["kill app-1", "remove app-1", "kill proxy-1", "remove proxy-1"])
def test_a_failed_stop_step_ends_the_plan(step: str) -> None:
    record = replace(IN_SANDBOX, containers=(found("setup", number=2), found("setup")))

    async def scenario(harness: Harness) -> None:
        harness.failing[step] = NO_ANSWER
        assert await harness.errors(INIT, record, RESETS) == ["no answer"]
        assert harness.steps()[-1] == step

    with_harness(scenario)


def test_a_pod_that_cannot_be_killed_gets_no_new_sandbox() -> None:
    record = replace(IN_SANDBOX, containers=(found("setup"),))

    async def scenario(harness: Harness) -> None:
        harness.failing["kill pod"] = NO_ANSWER
        assert await harness.errors(INIT, record, CREATE) == ["no answer"]
        assert harness.steps() == ["kill pod"]

    with_harness(scenario)


@pytest.mark.parametrize("failing", ["remove setup-2", "remove setup-1"])
def test_a_pod_with_an_init_container_that_cannot_be_removed_gets_no_new_sandbox(failing: str) -> None:
    record = replace(IN_SANDBOX, containers=(found("setup", number=2), found("setup")))

    async def scenario(harness: Harness) -> None:
        harness.failing[failing] = NO_ANSWER
        assert await harness.errors(INIT, record, CREATE) == ["no answer"]
        assert harness.steps() == ["kill pod", "remove setup-2", "remove setup-1"]

    with_harness(scenario)


def test_a_pod_is_killed_within_the_grace_that_is_given() -> None:
    async def scenario(harness: Harness) -> None:
        kills: list[Call] = [("kill pod", WEB, IN_SANDBOX, 7), ("kill pod", None, IN_SANDBOX, 1)]
        await harness.executor.kill_pod(WEB, IN_SANDBOX, 7)
        await harness.executor.kill_running_pod(IN_SANDBOX, 1)
        assert harness.calls == kills
        harness.failing["kill pod"] = NO_ANSWER
        with pytest.raises(ExceptionGroup) as of_known:
            await harness.executor.kill_pod(WEB, IN_SANDBOX, 7)
        with pytest.raises(ExceptionGroup) as of_running:
            await harness.executor.kill_running_pod(IN_SANDBOX, 1)
        assert of_known.value.exceptions == of_running.value.exceptions == (NO_ANSWER,)

    with_harness(scenario)


# Dead containers.


@pytest.mark.parametrize(
    "container_id, everything, removed",
    [
        pytest.param("", False, ["remove app-2", "remove app-1", "remove db-1"], id="older exits"),
        pytest.param("app-3", False, ["remove app-2", "remove app-1"], id="older exits of one container"),
        pytest.param(
            "",
            True,
            ["remove db-1", "remove db-2", "remove app-1", "remove app-2", "remove app-3", "remove sandbox"],
            id="everything",
        ),
    ],
)
def test_a_container_that_cannot_be_removed_does_not_block_others(
    container_id: str, everything: bool, removed: list[str]
) -> None:
    apps = (found("app", number=number) for number in (3, 2, 1))
    record = PodRecord(
        uid=UID,
        containers=(*apps, found("db", number=2), found("db")),
        sandboxes=(SandboxRecord(id="s1", ready=False),),
    )

    async def scenario(harness: Harness) -> None:
        harness.failing["remove app-2"] = RuntimeRefused("busy")
        await harness.executor.collect_dead_containers(record, container_id=container_id, everything=everything)
        assert harness.steps() == removed

    with_harness(scenario)


# Start failures.

DB = PodUID("uid-db")
IMAGE = StartFailure("ErrImagePull", "no such image")


async def fail(harness: Harness, of: Pod = WEB, **failures: StartFailure) -> None:
    """Start both containers of a pod, of which some fail."""
    harness.not_started = {name: NotStarted(failure) for name, failure in failures.items()}
    if failures:
        await harness.errors(of, IN_SANDBOX, START)
    else:
        await harness.execute(of, IN_SANDBOX, START)


def test_start_failures_last_until_a_start_succeeds() -> None:
    async def scenario(harness: Harness) -> None:
        assert harness.executor.failures_of(UID) == {}
        await fail(harness, app=IMAGE, proxy=REFUSED.failure)
        both = harness.executor.failures_of(UID)
        assert both == {"app": IMAGE, "proxy": REFUSED.failure}
        await fail(harness, app=IMAGE, proxy=REFUSED.failure)
        assert harness.executor.failures_of(UID) is both
        await fail(harness, proxy=IMAGE)
        assert harness.executor.failures_of(UID) == {"proxy": IMAGE}
        assert len(both) == 2
        await fail(harness)
        assert harness.executor.failures_of(UID) == {}

    with_harness(scenario)


@pytest.mark.parametrize("state", RecordState)
def test_only_a_container_that_runs_clears_its_start_failure(state: RecordState) -> None:
    async def scenario(harness: Harness) -> None:
        await fail(harness, app=IMAGE, proxy=IMAGE)
        harness.executor.clear_failures(replace(IN_SANDBOX, containers=(found("app", state), found("other", state))))
        left = {"proxy"} if state is RecordState.RUNNING else {"app", "proxy"}
        assert set(harness.executor.failures_of(UID)) == left
        harness.executor.clear_failures(PodRecord(uid="unknown", containers=(found("proxy", RecordState.RUNNING),)))
        assert set(harness.executor.failures_of(UID)) == left

    with_harness(scenario)


def test_the_pod_that_failed_longest_ago_is_forgotten_first() -> None:
    def named(name: str) -> Pod:
        return pod(name, container("app"), container("proxy"))

    async def scenario(harness: Harness) -> None:
        for name in ("web", "db", "web", "mail"):  # the limit is two pods
            await fail(harness, named(name), app=IMAGE)
        kept = [name for name in ("web", "db", "mail") if harness.executor.failures_of(PodUID(f"uid-{name}"))]
        assert kept == ["web", "mail"]

    with_harness(scenario)


def test_a_forgotten_pod_has_no_failures() -> None:
    async def scenario(harness: Harness) -> None:
        await fail(harness, app=IMAGE)
        harness.calls.clear()
        harness.executor.forget(UID)
        harness.executor.forget(DB)
        assert harness.executor.failures_of(UID) == {}
        assert harness.calls == [("forget", UID), ("forget", DB)]

    with_harness(scenario)
