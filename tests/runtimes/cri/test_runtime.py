"""The CRI runtime on a real container runtime."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from podkeeper.model.errors import ImagePullFailed, RuntimeRefused, RuntimeUnavailable
from podkeeper.model.k8s.core import ResourceRequirements
from podkeeper.model.probing import CommandExited
from podkeeper.model.runtime import NetworkMode, RecordState
from podkeeper.model.runtime_calls import RuntimeEventType
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.containerd import Containerd
from tests.runtimes.cri.cri_node import BUSYBOX_IMAGE, PRIVATE_IMAGE, CriNode, CriNodeRuntime
from tests.runtimes.cri.cri_pod import CriPod, wait_until, wait_until_available
from tests.runtimes.cri.crio import Crio
from tests.runtimes.cri.oci import PASSWORD, USER

LONG = ("sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait")
MESSAGE_PATH = "/dev/termination-log"


async def busybox(runtime: CriNodeRuntime) -> str:
    image = await runtime.image(BUSYBOX_IMAGE)
    assert image is not None
    return image.id


def run(node: CriNode, scenario: Any) -> None:
    """Run a scenario with a runtime and a pod of its image."""

    async def whole() -> None:
        async with asyncio.timeout(60), node.opened() as runtime:
            await scenario(runtime, await busybox(runtime))

    node.run(whole())


def test_the_name_of_a_real_runtime(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        assert runtime.name == cri_node.name

    run(cri_node, scenario)


def test_the_termination_message_is_read_from_its_file(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        command = ("sh", "-c", f"echo log; echo last words > {MESSAGE_PATH}; exit 3")
        record = await cri_pod.exited(await cri_pod.start(*command, termination_message_path=MESSAGE_PATH))
        assert (record.exit_code, record.reason, record.message) == (3, "Error", "last words\n")

    run(cri_node, scenario)


def test_without_a_file_the_log_is_the_termination_message(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        wanted = {"termination_message_path": MESSAGE_PATH, "termination_message_policy": "FallbackToLogsOnError"}
        record = await cri_pod.exited(await cri_pod.start("sh", "-c", "echo one; echo two; exit 1", **wanted))
        assert record.message == "one\ntwo\n"
        record = await cri_pod.exited(await cri_pod.start("sh", "-c", "echo one", name="well", **wanted))
        assert (record.exit_code, record.reason, record.message) == (0, "Completed", "")

    run(cri_node, scenario)


def test_an_oom_kill_is_forwarded(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        limits = ResourceRequirements(limits={"memory": "20Mi"})
        eats = ("sh", "-c", "a=x; while :; do a=$a$a; done")
        for number in range(5):  # on a busy machine containerd misses it once in twenty times
            record = await cri_pod.exited(await cri_pod.start(*eats, name=f"c{number}", resources=limits))
            await asyncio.sleep(0.2)  # the reason may come after the end
            record = await cri_pod.container(record.id)
            assert record.exit_code == 137
            if record.reason == "OOMKilled":
                break
        assert record.reason == "OOMKilled"
        assert record.resources is not None
        assert record.resources.memory_limit_bytes == 20 * 2**20

    run(cri_node, scenario)


def test_a_container_that_could_not_start_is_found_with_its_reason(containerd: Containerd) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        container_id = await cri_pod.create(await cri_pod.sandbox(), "/no/such/binary")
        with pytest.raises(RuntimeRefused, match=r"^failed to create containerd task: .*/no/such/binary.*unknown$"):
            await runtime.start_container(container_id)
        record = await cri_pod.container(container_id)
        assert (record.state, record.exit_code, record.reason) == (RecordState.EXITED, 128, "StartError")
        assert record.message.startswith("failed to create containerd task")
        assert record.started_at is not None
        assert record.started_at.year == 1970

    run(containerd, scenario)


@pytest.mark.slow
def test_crio_refuses_to_create_a_container_that_cannot_start(crio: Crio) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        sandbox_id = await cri_pod.sandbox()
        with pytest.raises(RuntimeRefused, match=r"^container create failed: .*/no/such/binary"):
            await cri_pod.create(sandbox_id, "/no/such/binary")
        assert (await cri_pod.record()).containers == ()
        container_id = await cri_pod.create(sandbox_id, *LONG)  # the name is free again
        await runtime.start_container(container_id)

    run(crio, scenario)


def test_a_pod_has_an_address_that_can_be_reached_and_its_name_in_the_hosts_file(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        sandbox_id = await cri_pod.sandbox(hostname="web")
        record = await cri_pod.record()
        (ip,) = record.ips
        assert record.sandboxes[0].network is NetworkMode.POD
        served = ("sh", "-c", "while :; do echo hello | nc -l -p 8080; done")
        container_id = await cri_pod.create(sandbox_id, *served, ips=record.ips)
        await runtime.start_container(container_id)
        end = await runtime.exec_sync(container_id, ["cat", "/etc/hosts", "/etc/hostname"], 5)
        assert isinstance(end, CommandExited)
        assert f"{ip}\t{cri_pod.pod.metadata.name}\n".encode() in end.output
        assert end.output.endswith(b"web\n")
        assert await _read_from(ip, 8080) == b"hello\n"

    run(cri_node, scenario)


async def _read_from(ip: str, port: int) -> bytes:
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection(ip, port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            if line:
                return line


def test_a_pod_with_host_network_has_no_address(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image, host_network=True)
        await cri_pod.sandbox()
        record = await cri_pod.record()
        assert (record.ips, record.sandboxes[0].network) == ((), NetworkMode.NODE)

    run(cri_node, scenario)


def test_stdout_comes_before_stderr(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        container_id = await CriPod(runtime, image).start(*LONG)
        end = await runtime.exec_sync(container_id, ["sh", "-c", "echo err >&2; echo out; exit 2"], 5)
        assert end == CommandExited(2, b"out\nerr\n")

    run(cri_node, scenario)


def test_a_restarted_agent_continues_with_a_pod(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        first = await cri_pod.start(*LONG)
        async with cri_node.runtime() as second_life:
            listed = next(pod for pod in await second_life.list_pods() if pod.uid == cri_pod.uid)
            (sandbox,) = listed.sandboxes
            cri_pod.runtime = second_life
            second = await cri_pod.create(sandbox.id, "sh", "-c", "echo hi", name="later")
            await second_life.start_container(second)
            await cri_pod.exited(second)
            assert {it.id for it in (await cri_pod.record()).containers} == {first, second}
            (log,) = Path(cri_node.logs).glob(f"*_{cri_pod.uid}/later/0.log")
            assert log.read_text().endswith("stdout F hi\n")

    run(cri_node, scenario)


def test_usage_of_other_objects_is_ignored(containerd: Containerd) -> None:
    # CRI-O adds the labels of a pod to every object that it creates.
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        transport = GrpcTransport(containerd.socket)
        linux = cri.LinuxPodSandboxConfig(cgroup_parent=f"{containerd.cgroup_root}/foreign")
        meta = cri.PodSandboxMetadata(name="foreign", uid="u", namespace="n")
        foreign = await CriCalls(transport).run_sandbox(cri.PodSandboxConfig(metadata=meta, linux=linux), "")
        assert await runtime.list_pods() == ()
        assert foreign in [box.id for box in await CriCalls(transport).sandboxes()]
        await transport.close()

    run(containerd, scenario)


def test_a_renamed_log_is_reopened(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        container_id = await cri_pod.start("sh", "-c", "while :; do echo line; sleep 0.05; done")
        (log,) = Path(cri_node.logs).glob(f"*_{cri_pod.uid}/c/0.log")
        log.rename(log.with_suffix(".old"))
        await runtime.reopen_log(container_id)
        await wait_until(lambda: log.exists() and log.stat().st_size > 0, "the new log grows")
        await runtime.stop_container(container_id, 0)

    run(cri_node, scenario)


def test_a_private_image_is_pulled_with_the_right_credentials(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        with pytest.raises(ImagePullFailed, match=r"failed to pull and unpack image|reading manifest .*: unauthorized"):
            await runtime.pull_image(PRIVATE_IMAGE)
        host = PRIVATE_IMAGE.partition("/")[0]
        config = '{"auths": {"%s": {"username": "%s", "password": "%s"}}}'
        pulled = await runtime.pull_image(
            PRIVATE_IMAGE, (config % (host, "nobody", "wrong"), config % (host, USER, PASSWORD))
        )
        assert PRIVATE_IMAGE in pulled.tags
        await runtime.remove_image(PRIVATE_IMAGE)
        assert await runtime.image(PRIVATE_IMAGE) is None
        # The same image under its other names went with it.
        cri_node.reload()

    run(cri_node, scenario)


@pytest.mark.slow
def test_a_killed_runtime_is_detected_at_once_and_pods_keep_running(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        cri_pod = CriPod(runtime, image)
        container_id = await cri_pod.start(*LONG)
        ends = await cri_pod.create(
            (await cri_pod.record()).sandboxes[0].id, "sh", "-c", "sleep 1; exit 7", name="ends"
        )
        await runtime.start_container(ends)
        stream = runtime.events()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(cri_node.kill)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(RuntimeUnavailable):
            async for _ in stream:
                pass
        with pytest.raises(RuntimeUnavailable):
            await cri_pod.record()
        assert loop.time() - begun < 30
        await asyncio.sleep(1.2)  # one of them exits without an inspection
        await cri_node.start_again()
        await wait_until_available(runtime)
        record = await cri_pod.exited(ends)
        assert record.exit_code == 7
        assert (await cri_pod.container(container_id)).state is RecordState.RUNNING
        stream = runtime.events()
        await asyncio.sleep(0.2)
        await runtime.stop_container(container_id, 5)
        async with asyncio.timeout(20):
            async for event in stream:
                if (event.container_id, event.type) == (container_id, RuntimeEventType.STOPPED):
                    break

    run(cri_node, scenario)


@pytest.mark.slow
def test_pods_leave_nothing_behind(cri_node: CriNode) -> None:
    async def scenario(runtime: CriNodeRuntime, image: str) -> None:
        before = set(cri_node.helpers())  # a runtime that was killed may have forgotten some
        scenes = [CriPod(runtime, image) for _ in range(4)]
        await asyncio.gather(*(cri_pod.start(*LONG) for cri_pod in scenes))
        assert len(await runtime.list_pods()) == 4
        boxes = [box.id for pod in await runtime.list_pods() for box in pod.sandboxes]
        await asyncio.gather(*map(runtime.remove_sandbox, boxes))
        assert await runtime.list_pods() == ()
        await wait_until(lambda: set(cri_node.helpers()) <= before, "every shim is gone")

    run(cri_node, scenario)
