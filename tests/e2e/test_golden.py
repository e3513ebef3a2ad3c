"""Statuses and events of real pods, compared with recordings of the kubelet (`golden/`).

The pods are created with the recorded manifests: on processes with the files of the host as their image, on containers
with a busybox image of the same name. Only the retry intervals are shorter. `golden_compare` lists what may differ and
why. docs/kubelet-map.md lists what does differ and why.
"""

import asyncio
import difflib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeeper.model.k8s.core import Event, Pod, PodStatus
from podkeeper.model.messages import PodUID
from podkeeper.testing.memory_watch import Change
from tests.e2e.backends import CriBackend
from tests.e2e.golden_compare import (
    GOLDEN,
    HOST_IMAGE,
    RECORDED_IMAGE,
    RECORDED_NODE,
    SETTLED,
    EventKey,
    Json,
    event_counts,
    held_back,
    manifest,
    plain_metadata,
    plain_of,
    recorded,
    recorded_events,
    runtime_messages,
    same_events,
)
from tests.e2e.node import NODE, Node, ScenarioRunner
from tests.e2e.oom import require_oom_report, retry_until_oom_reported
from tests.host.own_cgroups import needs

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 20.0
SOON = {"podkeeper.io/restart-backoff-initial": "1s"}
SOON_ALWAYS = SOON | {"podkeeper.io/restart-backoff-maximum": "1s"}
OFTEN = {"liveness.probe-period-milliseconds.podkeeper.io/c": "100"}


class Shown:
    """The statuses and events of one pod, and the recorded ones."""

    def __init__(self, node: Node, name: str, recording: str = "") -> None:
        self.node = node
        self.name = name
        pod = recorded(recording or name)
        self.real, self.alike = is_real(node), node.runtime.name == "containerd"
        plain = plain_of(pod, RECORDED_NODE, runtime_messages(pod["status"]), real=self.real, alike=self.alike)
        self.expected = plain.status(pod["status"])
        self.expected_events = event_counts(recorded_events(pod["metadata"]["name"]), plain)
        self.versions: list[Json] = []  # seen in the API
        self.computed: list[Json] = []  # computed by the agent, including those that it did not send
        self._messages: frozenset[str] = frozenset()
        self._newest: Json = None
        node.api.on_change(Pod, self._note)
        node.agent.engine.statuses.subscribe(self._overhear)

    def _note(self, change: Change) -> None:
        if isinstance(change.new, Pod) and change.new.metadata.name == self.name:
            self._newest = _wire(change.new)
            self.versions.append(self._plain(self._newest["status"]))

    def _overhear(self, uid: PodUID, status: PodStatus) -> None:
        if self._newest is not None and uid == self._newest["metadata"]["uid"]:
            self.computed.append(self._plain(_wire(status)))

    def _plain(self, status: Json) -> Json:
        self._messages |= runtime_messages(status)
        return plain_of(self._newest, NODE, self._messages, real=self.real, alike=self.alike).status(status)

    def events(self) -> dict[EventKey, int]:
        events = (_wire(event) for event in self.node.api.objects(Event) if event.involved_object.name == self.name)
        return event_counts(events, plain_of(self._newest, NODE, self._messages, real=self.real, alike=self.alike))

    async def settles(self) -> None:
        """Wait until the last status and the events equal the recorded ones."""
        await self._until(lambda: self.versions[-1:] == [self.expected], self.versions)
        await self.has_events()
        await asyncio.sleep(0.1)  # it must stay like this
        assert self.versions[-1] == self.expected
        assert same_events(self.events(), self.expected_events)

    async def passes(self) -> None:
        """Wait until the recorded status was there at least once, then backed off, with the recorded events.

        The kubelet reports a backoff with its next sync, which may be after its end. Podkeeper reports it at once: the
        status before it lasts for milliseconds, and the API may not see it.
        """
        await self._until(lambda: self.expected in self.computed, self.computed)
        held = held_back(self.expected, self.name)
        await self.node.until(lambda: held in self.versions, f"shown as\n{yaml.safe_dump(held)}")
        await self.has_events()

    async def has_events(self) -> None:
        """Wait for the recorded events."""
        try:
            await self.node.until(lambda: same_events(self.events(), self.expected_events), within=TIMEOUT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"the events differ\n{_differences(self.expected_events, self.events())}") from error

    async def _until(self, holds: Callable[[], bool], seen: list[Json]) -> None:
        try:
            await self.node.until(holds, within=TIMEOUT_SECONDS)
        except AssertionError as error:
            nearest = min((_differences(self.expected, each) for each in seen), key=len, default="nothing at all")
            raise AssertionError(f"never shown so\n{nearest}\n{error}") from error


def _wire(what: Any) -> Json:
    """Return an object as a watch would deliver it."""
    return msgspec.json.decode(msgspec.json.encode(what))


def _differences(expected: Mapping[Any, Json], seen: Mapping[Any, Json]) -> str:
    return "\n".join(difflib.unified_diff(_lines(expected), _lines(seen), "recorded", "here", n=2, lineterm=""))


def _lines(what: Mapping[Any, Json]) -> list[str]:
    return yaml.safe_dump({str(key): value for key, value in what.items()}, width=200).splitlines()


def is_real(node: Node) -> bool:
    """Return whether the node runs CRI containers, not processes."""
    return node.runtime.name != "process"


def image_of(node: Node) -> str:
    """Return the node's image that replaces the recorded one."""
    return RECORDED_IMAGE if is_real(node) else HOST_IMAGE


def _create(node: Node, name: str, annotations: Mapping[str, str] | None = None) -> None:
    found = manifest(name, image_of(node))
    found["metadata"]["annotations"] = annotations
    node.create(found)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("name", [name for name in SETTLED if name != "oomkilled"])
def test_a_settled_pod_equals_the_recorded_one(run_on_node: ScenarioRunner, name: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, name)
        _create(node, name)
        await shown.settles()

    run_on_node(scenario, tmp_path)


@needs("memory")
def test_an_oom_killed_pod_equals_the_recorded_one(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, "oomkilled")
        _create(node, "oomkilled")
        await node.until_phase("oomkilled", "Failed")
        await require_oom_report(node, "oomkilled")
        await shown.settles()

    retry_until_oom_reported(run_on_node, scenario, tmp_path)


@pytest.mark.parametrize(
    ("name", "recording"),
    [
        ("crashloop", "crashloop-terminated"),  # exited for the fifth time, before the backoff
        ("runcontainererror", "runcontainererror"),
        ("poststart-fail", "poststart-fail"),
    ],
)
def test_a_restarted_pod_passes_through_the_recorded_status(
    run_on_node: ScenarioRunner, name: str, recording: str, tmp_path: Path
) -> None:
    if (
        name == "runcontainererror"
        and isinstance(run_on_node.backend, CriBackend)
        and run_on_node.backend.cri_node.name == "cri-o"
    ):
        pytest.skip("CRI-O resolves the command in CreateContainer: every kubelet reports CreateContainerError")

    async def scenario(node: Node) -> None:
        shown = Shown(node, name, recording)
        _create(node, name, SOON_ALWAYS)
        await shown.passes()

    run_on_node(scenario, tmp_path)


def test_a_pod_with_a_failed_liveness_probe_equals_the_recorded_one(
    run_on_node: ScenarioRunner, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, "livenessfail")
        found = manifest("livenessfail", image_of(node))
        found["metadata"]["annotations"] = SOON | OFTEN
        if not is_real(node):  # pods have the host network, where port 8080 may be in use
            found["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"] = _free_port()
        node.create(found)
        await shown.settles()

    run_on_node(scenario, tmp_path)


def test_a_rejected_pod_equals_the_recorded_one(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        _create(node, "guaranteed")  # in the recording it was admitted first, with 100m
        await node.until_ready("guaranteed")
        shown = Shown(node, "rejected-cpu")
        _create(node, "rejected-cpu")
        await shown.settles()

    run_on_node(scenario, tmp_path, cpu="2")


def test_a_mirror_pod_equals_the_recorded_one(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, f"static-{NODE}", "static-mirror")
        node.write("static", manifest("static", image_of(node)))
        await shown.settles()
        mirror, recording = _wire(node.see(f"static-{NODE}")), recorded("static-mirror")
        assert plain_metadata(mirror, NODE) == plain_metadata(recording, RECORDED_NODE)
        assert mirror["spec"]["tolerations"] == recording["spec"]["tolerations"]

    run_on_node(scenario, tmp_path)


def test_a_deleted_pod_equals_the_recorded_one(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, "terminating")
        spec = recorded("terminating")["spec"]
        command, hook = spec["containers"][0]["command"], spec["containers"][0]["lifecycle"]
        image = {"image": image_of(node), "imagePullPolicy": "IfNotPresent"}
        container = {"name": "c", "command": command, "lifecycle": hook, **image}
        node.create({"metadata": {"name": "terminating"}, "spec": {"containers": [container]}})
        await node.until_ready("terminating")
        node.delete("terminating", grace_seconds=2)
        await node.until(lambda: shown.versions[-1] == shown.expected, "the last status equals the recorded one")
        await node.until(lambda: node.is_gone("terminating"))
        end = shown.versions[-1]
        assert end["phase"] == "Failed"
        assert end["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137

    run_on_node(scenario, tmp_path)


def test_every_recording_is_compared() -> None:
    created = {each["metadata"]["name"] for each in yaml.safe_load_all((GOLDEN / "in" / "pods.yaml").read_text())}
    elsewhere = {"runcontainererror", "poststart-fail", "livenessfail", "rejected-cpu"}
    assert created == {*SETTLED, *elsewhere}
