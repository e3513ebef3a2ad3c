"""Hooks right after the start of a container and before its end.

Servers that hooks talk to live in this process: `host` in the spec leads there.
"""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.asking import told
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import LINGER, POLITE, Diary, note, sh
from tests.host.loopback import noting, server, silence

pytestmark = pytest.mark.slow

# After the start.


def test_a_container_counts_as_running_once_its_hook_has_ended(
    on_a_node: OnANode, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["sh", "-c", "until grep -q go /diary/all; do sleep 0.02; done 2>/dev/null"]}}
        app = diary.writes("app", f"echo app >>/diary/all; {POLITE}", lifecycle={"postStart": hook})
        node.create(pod("app", containers=[app], volumes=diary.volumes))
        await node.until(lambda: diary.words == ["app"])
        await asyncio.sleep(0.1)
        assert not node.is_ready("app")
        diary.add("go")
        await node.until_ready("app")

    on_a_node(scenario, tmp_path)


def test_a_container_is_killed_when_its_first_hook_fails(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["sh", "-c", "echo no luck; exit 4"]}}
        node.create(pod("app", container={**sh(POLITE), "lifecycle": {"postStart": hook}}, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded")  # it ends politely when asked to
        assert told(node, "FailedPostStartHook") == ["PostStartHook failed"]
        assert told(node, "Killing") == ["FailedPostStartHook"]

    on_a_node(scenario, tmp_path)


def test_a_hook_of_time_holds_a_container_back(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        node.create(pod("app", container={**sh(POLITE), "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}))
        await node.until_ready("app")
        assert 1 <= loop.time() - began < 20

    on_a_node(scenario, tmp_path)


@pytest.mark.parametrize("when", ["postStart", "preStop"])
def test_a_hook_may_be_a_request(on_a_node: OnANode, when: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        requests: list[str] = []
        async with server(noting(requests)) as there:
            headers = [{"name": "X-Word", "value": "please"}]
            action = {"path": "/hook?a=1", "port": there.port, "host": there.host, "httpHeaders": headers}
            node.create(pod("app", container={**sh(POLITE), "lifecycle": {when: {"httpGet": action}}}))
            await node.until_ready("app")
            assert len(requests) == (1 if when == "postStart" else 0)
            node.delete("app")
            await node.until(lambda: node.is_gone("app"))
        assert len(requests) == 1
        assert requests[0].startswith("GET /hook?a=1 HTTP/1.1\r\n")
        assert "X-Word: please\r\n" in requests[0]

    on_a_node(scenario, tmp_path)


def test_a_hook_that_only_knocks_is_refused_as_ever(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with server(silence) as there:
            hook = {"tcpSocket": {"port": there.port, "host": there.host}}
            node.create(pod("app", container={**sh(POLITE), "lifecycle": {"postStart": hook}}, restartPolicy="Never"))
            await node.until(lambda: bool(told(node, "FailedPostStartHook")))

    on_a_node(scenario, tmp_path)


# Before the end.


def test_the_last_hook_runs_before_a_container_is_asked_to_end(
    on_a_node: OnANode, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        script = f"trap 'echo term >>/diary/all; exit 0' TERM; {LINGER}"
        app = diary.writes("app", script, lifecycle={"preStop": note("hook")})
        node.create(pod("app", containers=[app], volumes=diary.volumes))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert diary.words == ["hook", "term"]

    on_a_node(scenario, tmp_path)


def test_a_container_that_ends_by_itself_needs_no_last_hook(on_a_node: OnANode, tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        app = diary.writes("app", "sleep 0.1", lifecycle={"preStop": note("hook")})
        node.create(pod("app", containers=[app], volumes=diary.volumes, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded")
        assert diary.words == []

    on_a_node(scenario, tmp_path)


def test_a_container_ends_also_when_its_last_hook_fails(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["false"]}}
        node.create(pod("app", container={**sh(POLITE), "lifecycle": {"preStop": hook}}))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert told(node, "FailedPreStopHook") == ["PreStopHook failed"]

    on_a_node(scenario, tmp_path)


def test_time_spent_in_the_last_hook_is_time_of_the_grace(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        hook = {"exec": {"command": ["sleep", "60"]}}
        node.create(
            pod("app", container={**sh(POLITE), "lifecycle": {"preStop": hook}}, terminationGracePeriodSeconds=1)
        )
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"), within=10)

    on_a_node(scenario, tmp_path)


def test_a_last_hook_of_time_lets_a_container_go_on_for_a_while(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        fields = {**sh(POLITE), "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
        node.create(pod("app", container=fields, terminationGracePeriodSeconds=30))
        await node.until_ready("app")
        began = loop.time()
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert 1 <= loop.time() - began < 20

    on_a_node(scenario, tmp_path)
