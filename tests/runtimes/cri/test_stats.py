"""Pod stats: from real runtimes, and from a runtime with container stats only."""

import asyncio
from typing import Any

from podkeeper.model.stats import ContainerStats, CpuStats, FileSystemStats, MemoryStats, PodStats
from podkeeper.ports.runtime import Stats
from podkeeper.runtimes.cri.records import instant
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, CriNode, CriNodeRuntime
from tests.runtimes.cri.cri_pod import CriPod, runtime_on_fake
from tests.runtimes.cri.fake_server import FakeCri

LONG = ("sh", "-c", "trap 'exit 0' TERM; dd if=/dev/zero of=/tmp/x bs=1k count=300; sleep 3600 & wait")
LABELS = {"io.kubernetes.pod.uid": "u", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "ns"}


def number(value: int) -> cri.UInt64Value:
    return cri.UInt64Value(value=value)


def container_stats(container_id: str, **labels: str) -> cri.ContainerStats:
    return cri.ContainerStats(
        attributes=cri.ContainerAttributes(
            id=container_id, metadata=cri.ContainerMetadata(name=container_id), labels=labels
        ),
        cpu=cri.CpuUsage(timestamp=1_000_000_000, usage_core_nano_seconds=number(7)),
        memory=cri.MemoryUsage(timestamp=2_000_000_000, working_set_bytes=number(0), available_bytes=number(0)),
        writable_layer=cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint="/m"), used_bytes=number(9)),
    )


def test_stats_of_containers_are_grouped_by_pod() -> None:
    fake = FakeCri()
    fake.stats = [container_stats("a", **LABELS), container_stats("x"), container_stats("b", **LABELS)]

    async def scenario() -> None:
        async with runtime_on_fake(fake) as runtime:
            stats: Stats = runtime
            (pod,) = await stats.pod_stats()
            assert (pod.uid, pod.name, pod.namespace, pod.cpu) == ("u", "web", "ns", None)
            assert [each.id for each in pod.containers] == ["a", "b"]
            assert pod.containers[0] == ContainerStats(
                id="a",
                name="a",
                cpu=CpuStats(at=instant(1_000_000_000), total_nanoseconds=7),
                memory=MemoryStats(at=instant(2_000_000_000), working_set_bytes=0),
                writable_layer=FileSystemStats(mountpoint="/m", used_bytes=9),
            )

    asyncio.run(scenario())


def test_usage_of_a_pod_on_a_real_runtime(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        container_id = await cri_pod.start(*LONG, name="app")
        neighbour = CriPod(runtime, image, host_network=True)
        await neighbour.start(*LONG)
        gone = CriPod(runtime, image)
        await runtime.stop_sandbox(await gone.sandbox())

        all_of_them = {pod.uid: pod for pod in await runtime.pod_stats()}
        assert all_of_them.keys() == {cri_pod.uid, neighbour.uid}
        (pod,) = await runtime.pod_stats(cri_pod.uid)
        assert (pod.name, pod.namespace) == (cri_pod.pod.metadata.name, "default")
        (container,) = pod.containers
        assert (container.id, container.name) == (container_id, "app")
        _counts(container)
        assert container.writable_layer is not None
        assert container.writable_layer.mountpoint.startswith(str(cri_node.root))
        if cri_node.name == "cri-o":  # which was not seen to count a pod as a whole with cgroups v1
            assert "eth0" in [each.name for each in pod.interfaces]
        else:
            _of_the_whole_pod(pod)
        assert await runtime.pod_stats(gone.uid) == ()

    _run(cri_node, scenario)


def _counts(container: ContainerStats) -> None:
    assert container.cpu is not None
    assert container.cpu.at.year >= 2024
    assert (container.cpu.total_nanoseconds or 0) > 0
    assert container.memory is not None
    assert 0 < (container.memory.working_set_bytes or 0) <= (container.memory.usage_bytes or 0)
    assert container.memory.available_bytes is None


def _of_the_whole_pod(pod: PodStats) -> None:
    """Only runtimes with sandbox stats report it; containerd has them since 1.6."""
    assert pod.cpu is not None
    assert (pod.cpu.total_nanoseconds or 0) > 0
    assert pod.memory is not None
    assert [each.name for each in pod.interfaces] == ["eth0"]
    assert (pod.interfaces[0].sent_bytes or 0) > 0


def _run(node: CriNode, scenario: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), node.opened() as runtime:
            image = await runtime.image(BUSYBOX_IMAGE)
            assert image is not None
            await scenario(runtime, image.id)

    node.run(whole())
