"""How containers end: when asked, when their time is up, by themselves; and their last words."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e.asking import ends_of, waits_for
from tests.e2e.kinds import not_on_containerd
from tests.e2e.node import Node, OnANode, pod
from tests.e2e.scripts import LINGER, POLITE, Wire, sh
from tests.e2e.want_of_memory import must_be_noticed, until_noticed
from tests.host.own_cgroups import needs

pytestmark = pytest.mark.slow

LISTEN = f"echo listening; {LINGER}"


async def until_it_listens(node: Node) -> None:
    """Wait until the shell has set its traps. Before that, the kernel drops the signal, because the shell is PID 1."""
    await node.until_ready("app")
    await node.until(lambda: node.log("app") == "listening\n")


# Ends.


def test_a_container_that_listens_ends_long_before_its_time_is_up(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends = ends_of(node)
        script = f"trap 'exit 4' TERM; {LISTEN}"
        node.create(pod("app", container=sh(script), terminationGracePeriodSeconds=60))
        await until_it_listens(node)
        node.delete("app")
        await node.until(lambda: node.is_gone("app"), within=10)
        assert ends["app"].exit_code == 4
        assert ("Normal", "Killing", "Stopping container app") in node.events("app")

    on_a_node(scenario, tmp_path)


def test_a_container_that_does_not_listen_is_killed_when_its_time_is_up(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends, loop = ends_of(node), asyncio.get_running_loop()
        node.create(pod("app", container=sh(f"trap '' TERM; {LINGER}"), terminationGracePeriodSeconds=1))
        await node.until_ready("app")
        node.delete("app")
        began = loop.time()
        await node.until(lambda: node.is_gone("app"))
        assert 0.9 < loop.time() - began < 20
        assert ends["app"].exit_code == 137

    on_a_node(scenario, tmp_path)


def test_a_second_delete_may_shorten_the_grace(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(f"trap '' TERM; {LINGER}"), terminationGracePeriodSeconds=600))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: any(told[1] == "Killing" for told in node.events("app")))
        node.delete("app", grace_seconds=1)
        await node.until(lambda: node.is_gone("app"), within=10)

    on_a_node(scenario, tmp_path)


@not_on_containerd  # 1.6 does not know of the wish, and ends containers with TERM
def test_a_container_is_asked_to_end_with_the_signal_it_wants(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends = ends_of(node)
        fields = {**sh(f"trap 'exit 5' USR1; trap 'exit 6' TERM; {LISTEN}"), "lifecycle": {"stopSignal": "SIGUSR1"}}
        node.create(pod("app", container=fields, os={"name": "linux"}, terminationGracePeriodSeconds=20))
        await until_it_listens(node)
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert ends["app"].exit_code == 5

    on_a_node(scenario, tmp_path)


def test_a_pod_fails_when_its_deadline_has_passed(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(POLITE), activeDeadlineSeconds=3))
        await node.until_ready("app")
        await node.until_phase("app", "Failed")
        assert node.see("app").status.reason == "DeadlineExceeded"
        await node.until(lambda: node.status("app").state.terminated is not None)
        assert ("Normal", "DeadlineExceeded") in [told[:2] for told in node.events("app")]

    on_a_node(scenario, tmp_path)


def test_a_pod_deleted_before_it_could_start_is_gone(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image="podkeeper.invalid/missing:1"))
        await node.until(lambda: waits_for(node, "app") in ("ErrImagePull", "ImagePullBackOff"))
        node.delete("app", grace_seconds=30)
        await node.until(lambda: node.is_gone("app"), within=20)

    on_a_node(scenario, tmp_path)


def test_what_a_container_leaves_running_ends_with_it(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("setsid sleep 4321 & sleep 0.1; exit 0"), restartPolicy="Never"))
        await node.until_phase("app", "Succeeded")
        await node.until(lambda: not _is_running("sleep\0004321\0"))

    on_a_node(scenario, tmp_path)


def _is_running(command: str) -> bool:
    """Whether any process of the machine has this command line."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{number}/cmdline").read_text() == command:
                return True
        except OSError:
            continue
    return False


@needs("memory")
def test_a_container_that_takes_too_much_memory_is_told_as_such(on_a_node: OnANode, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            "command": ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"],
            "resources": {"limits": {"memory": "24Mi"}},
        }
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        await must_be_noticed(node, "app")
        end = node.status("app").state.terminated
        assert end is not None
        assert (end.reason, end.exit_code) == ("OOMKilled", 137)

    until_noticed(on_a_node, scenario, tmp_path)


# Last words.

LAST_WORDS: dict[str, tuple[Wire, int, str | None]] = {
    "what it wrote into its file": (sh("echo -n bye >/dev/termination-log"), 0, "bye"),
    "what it wrote into the file of its choice": (
        {**sh("echo -n bye >/tmp/words"), "terminationMessagePath": "/tmp/words"}, 0, "bye"
    ),
    "the file, also when it fails": (sh("echo -n sorry >/dev/termination-log; exit 3"), 3, "sorry"),
    "nothing, when it wrote nothing": (sh("echo in the log; exit 3"), 3, None),
    "the end of its log, if it fails and asked for that": (
        {
            **sh("echo one; sleep 0.1; echo two >&2; exit 3"),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }, 3, "one\ntwo\n",
    ),
    "not its log, if it succeeds": (
        {**sh("echo one"), "terminationMessagePolicy": "FallbackToLogsOnError"}, 0, None
    ),
    "the file before the log": (
        {
            **sh("echo one; echo -n two >/dev/termination-log; exit 3"),
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }, 3, "two",
    ),
    "the last 4 KiB of a long file": (
        sh("(printf %01000d 0; printf %04096d 1) >/dev/termination-log"), 0, f"{1:04096}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields, code, expected", LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_the_last_words_of_a_container_are(
    on_a_node: OnANode, fields: Wire, code: int, expected: str | None, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until(lambda: node.phase("app") in ("Succeeded", "Failed"))
        end = node.status("app").state.terminated
        assert end is not None
        assert end.exit_code == code
        assert end.message == expected

    on_a_node(scenario, tmp_path)
