"""Every situation that was recorded from the reference kubelet (`golden/`), played for real: we show and tell the same.

The pods are created as they were then, on processes with the host's files for their image, on containers with a
busybox of the same name; only what is tried again is tried again sooner.
What may differ, and why, is in `golden_compare`; what does differ, and why, in docs/kubelet-map.md.
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
from tests.e2e.golden_compare import (
    GOLDEN,
    HOST_IMAGE,
    RECORDED_IMAGE,
    RECORDED_NODE,
    SETTLED,
    Json,
    Told,
    held_back,
    manifest,
    plain_metadata,
    plain_of,
    recorded,
    recorded_events,
    runtime_words,
    says_the_same,
    told,
)
from tests.e2e.homes import Containers
from tests.e2e.node import NODE, Node, OnANode
from tests.e2e.want_of_memory import must_be_noticed, until_noticed
from tests.host.own_cgroups import needs

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 20.0
SOON = {"podkeeper.io/restart-backoff-initial": "1s"}
SOON_ALWAYS = SOON | {"podkeeper.io/restart-backoff-maximum": "1s"}
OFTEN = {"liveness.probe-period-milliseconds.podkeeper.io/c": "100"}


class Shown:
    """Whatever is said of one pod, beside what was recorded."""

    def __init__(self, node: Node, name: str, recording: str = "") -> None:
        self.node = node
        self.name = name
        pod = recorded(recording or name)
        self.real, self.alike = is_real(node), node.runtime.name == "containerd"
        plain = plain_of(pod, RECORDED_NODE, runtime_words(pod["status"]), real=self.real, alike=self.alike)
        self.expected = plain.status(pod["status"])
        self.expected_events = told(recorded_events(pod["metadata"]["name"]), plain)
        self.versions: list[Json] = []  # that the API showed
        self.thoughts: list[Json] = []  # of the agent, also those that it had no time to tell
        self._words: frozenset[str] = frozenset()
        self._newest: Json = None
        node.api.witness(Pod, self._note)
        node.agent.statuses.subscribe(self._overhear)

    def _note(self, change: Change) -> None:
        if isinstance(change.new, Pod) and change.new.metadata.name == self.name:
            self._newest = _wire(change.new)
            self.versions.append(self._plain(self._newest["status"]))

    def _overhear(self, uid: PodUID, status: PodStatus) -> None:
        if self._newest is not None and uid == self._newest["metadata"]["uid"]:
            self.thoughts.append(self._plain(_wire(status)))

    def _plain(self, status: Json) -> Json:
        self._words |= runtime_words(status)
        return plain_of(self._newest, NODE, self._words, real=self.real, alike=self.alike).status(status)

    def events(self) -> dict[Told, int]:
        """What we tell of it."""
        events = (_wire(event) for event in self.node.api.objects(Event) if event.involved_object.name == self.name)
        return told(events, plain_of(self._newest, NODE, self._words, real=self.real, alike=self.alike))

    async def settles(self) -> None:
        """It comes to show what was recorded, and the same has been told."""
        await self._until(lambda: self.versions[-1:] == [self.expected], self.versions)
        await self.is_told()
        await asyncio.sleep(0.1)  # it rests so
        assert self.versions[-1] == self.expected
        assert says_the_same(self.events(), self.expected_events)

    async def passes(self) -> None:
        """It is what was recorded, if only for a moment, and then held back; the same has been told.

        The reference says with its next pass that a container is held back, which may be when it no longer is. We say
        so at once: what was before it lasts for milliseconds, and the API need not see it.
        """
        await self._until(lambda: self.expected in self.thoughts, self.thoughts)
        held = held_back(self.expected, self.name)
        await self.node.until(lambda: held in self.versions, f"shown as\n{yaml.safe_dump(held)}")
        await self.is_told()

    async def is_told(self) -> None:
        """The same events come."""
        try:
            await self.node.until(lambda: says_the_same(self.events(), self.expected_events), within=PATIENCE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"told otherwise\n{_differences(self.expected_events, self.events())}") from error

    async def _until(self, holds: Callable[[], bool], seen: list[Json]) -> None:
        try:
            await self.node.until(holds, within=PATIENCE_SECONDS)
        except AssertionError as error:
            nearest = min((_differences(self.expected, each) for each in seen), key=len, default="nothing at all")
            raise AssertionError(f"never shown so\n{nearest}\n{error}") from error


def _wire(what: Any) -> Json:
    """An object as a watcher reads it."""
    return msgspec.json.decode(msgspec.json.encode(what))


def _differences(expected: Mapping[Any, Json], seen: Mapping[Any, Json]) -> str:
    return "\n".join(difflib.unified_diff(_lines(expected), _lines(seen), "recorded", "here", n=2, lineterm=""))


def _lines(what: Mapping[Any, Json]) -> list[str]:
    return yaml.safe_dump({str(key): value for key, value in what.items()}, width=200).splitlines()


def is_real(node: Node) -> bool:
    """Whether containers are containers."""
    return node.runtime.name != "process"


def image_of(node: Node) -> str:
    """What a node has for the recorded image."""
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
def test_a_pod_comes_to_show_what_the_reference_shows(on_a_node: OnANode, name: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, name)
        _create(node, name)
        await shown.settles()

    on_a_node(scenario, tmp_path)


@needs("memory")
def test_a_pod_that_takes_too_much_memory_comes_to_show_what_the_reference_shows(
    on_a_node: OnANode, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, "oomkilled")
        _create(node, "oomkilled")
        await node.until_phase("oomkilled", "Failed")
        await must_be_noticed(node, "oomkilled")
        await shown.settles()

    until_noticed(on_a_node, scenario, tmp_path)


@pytest.mark.parametrize(
    ("name", "recording"),
    [
        ("crashloop", "crashloop-terminated"),  # ended for the fifth time, and not yet held back
        ("runcontainererror", "runcontainererror"),
        ("poststart-fail", "poststart-fail"),
    ],
)
def test_a_pod_that_is_restarted_goes_through_what_the_reference_shows(
    on_a_node: OnANode, name: str, recording: str, tmp_path: Path
) -> None:
    if (
        name == "runcontainererror"
        and isinstance(on_a_node.home, Containers)
        and on_a_node.home.cri_node.name == "cri-o"
    ):
        pytest.skip("CRI-O looks for a command when the container is created: CreateContainerError, in any kubelet")

    async def scenario(node: Node) -> None:
        shown = Shown(node, name, recording)
        _create(node, name, SOON_ALWAYS)
        await shown.passes()

    on_a_node(scenario, tmp_path)


def test_a_pod_that_fails_its_liveness_probe_shows_what_the_reference_shows(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, "livenessfail")
        found = manifest("livenessfail", image_of(node))
        found["metadata"]["annotations"] = SOON | OFTEN
        if not is_real(node):  # a pod has the host's network: somebody may listen on 8080
            found["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"] = _free_port()
        node.create(found)
        await shown.settles()

    on_a_node(scenario, tmp_path)


def test_a_pod_that_finds_no_room_shows_what_the_reference_shows(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        _create(node, "guaranteed")  # had been admitted before, with 100m
        await node.until_ready("guaranteed")
        shown = Shown(node, "rejected-cpu")
        _create(node, "rejected-cpu")
        await shown.settles()

    on_a_node(scenario, tmp_path, cpu="2")


def test_a_static_pod_is_mirrored_as_the_reference_mirrors_it(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, f"static-{NODE}", "static-mirror")
        node.write("static", manifest("static", image_of(node)))
        await shown.settles()
        mirror, recording = _wire(node.see(f"static-{NODE}")), recorded("static-mirror")
        assert plain_metadata(mirror, NODE) == plain_metadata(recording, RECORDED_NODE)
        assert mirror["spec"]["tolerations"] == recording["spec"]["tolerations"]

    on_a_node(scenario, tmp_path)


def test_a_pod_that_is_deleted_shows_what_the_reference_shows(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        shown = Shown(node, "terminating")
        spec = recorded("terminating")["spec"]
        command, hook = spec["containers"][0]["command"], spec["containers"][0]["lifecycle"]
        image = {"image": image_of(node), "imagePullPolicy": "IfNotPresent"}
        container = {"name": "c", "command": command, "lifecycle": hook, **image}
        node.create({"metadata": {"name": "terminating"}, "spec": {"containers": [container]}})
        await node.until_ready("terminating")
        node.delete("terminating", grace_seconds=2)
        await node.until(lambda: shown.versions[-1] == shown.expected, "shown as it was when it ended")
        await node.until(lambda: node.is_gone("terminating"))
        end = shown.versions[-1]
        assert end["phase"] == "Failed"
        assert end["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137

    on_a_node(scenario, tmp_path)


def test_no_situation_is_left_out() -> None:
    created = {each["metadata"]["name"] for each in yaml.safe_load_all((GOLDEN / "in" / "pods.yaml").read_text())}
    elsewhere = {"runcontainererror", "poststart-fail", "livenessfail", "rejected-cpu"}
    assert created == {*SETTLED, *elsewhere}
