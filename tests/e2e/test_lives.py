"""The lives of containers: run again or not, in turn, beside each other, and how they end."""

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerStateTerminated, EphemeralContainer, Pod
from podkeeper.testing.memory_watch import Change
from tests.e2e.node import NAMESPACE, Node, on_a_node, pod
from tests.e2e.scripts import LINGER, POLITE, Diary, Wire, named, sh
from tests.host.own_cgroups import needs

pytestmark = pytest.mark.slow

HASTY = {"podkeeper.io/restart-backoff-initial": "1s", "podkeeper.io/restart-backoff-maximum": "1s"}
"""Annotations of a pod whose containers run again soon."""


@pytest.fixture
def diary(tmp_path_factory: pytest.TempPathFactory) -> Diary:
    """Where the containers of one scenario note what happens."""
    return Diary(tmp_path_factory.mktemp("diary"))


def waits_for(node: Node, name: str, container: str = "app") -> str:
    """Why a container does not run; empty: it does, or nothing is known."""
    shown = node.see(name).status
    if not (shown.container_statuses or shown.init_container_statuses):
        return ""
    waiting = node.status(name, container).state.waiting
    return "" if waiting is None else waiting.reason or ""


def restarts(node: Node, name: str = "app", container: str = "app") -> int:
    """How often a container was run again."""
    return node.status(name, container).restart_count if node.see(name).status.container_statuses else 0


def ends_of(node: Node) -> dict[str, ContainerStateTerminated]:
    """How containers ended, filled in as the API learns it: also those of pods that are gone by then."""
    ends: dict[str, ContainerStateTerminated] = {}

    def see(change: Change) -> None:
        if isinstance(change.new, Pod):
            for each in change.new.status.container_statuses or ():
                if each.state.terminated is not None:
                    ends[each.name] = each.state.terminated

    node.api.witness(Pod, see)
    return ends


# Run again, or not.

POLICIES: dict[str, tuple[str, str, str, int]] = {
    "after a failure, where always": ("Always", "exit 1", "Running", 1),
    "after a success too, where always": ("Always", "exit 0", "Running", 1),
    "after a failure, where on failure": ("OnFailure", "exit 1", "Running", 1),
    "not after a success, where on failure": ("OnFailure", "exit 0", "Succeeded", 0),
    "not after a failure, where never": ("Never", "exit 1", "Failed", 0),
}


@pytest.mark.parametrize("policy, script, phase, times", POLICIES.values(), ids=POLICIES.keys())
def test_a_container_runs_again(policy: str, script: str, phase: str, times: int, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(script), restartPolicy=policy))
        await node.until(lambda: node.phase("app") == phase and restarts(node) == times)
        assert node.exit_code("app") == int(script.split()[1])

    on_a_node(scenario, tmp_path)


def test_a_container_that_succeeds_at_last_has_succeeded(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        app = diary.writes("app", "echo run >>/diary/all; test $(wc -l </diary/all) -eq 2")
        node.create(pod("app", containers=[app], volumes=diary.volumes, restartPolicy="OnFailure"))
        await node.until_phase("app", "Succeeded")
        assert (restarts(node), diary.words) == (1, ["run", "run"])
        assert node.log("app", attempt=1) == ""

    on_a_node(scenario, tmp_path)


def test_one_failure_of_two_is_a_failure_once_both_have_ended(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        waiting = diary.writes("waiting", "until grep -q go /diary/all; do sleep 0.02; done 2>/dev/null")
        node.create(
            pod("app", containers=[named("app", "exit 3"), waiting], volumes=diary.volumes, restartPolicy="Never")
        )
        await node.until(lambda: node.phase("app") == "Running" and node.exit_code("app") == 3)
        await node.until(lambda: node.status("app", "waiting").state.running is not None)
        await node.exec("app", "sh", "-c", "echo go >>/diary/all", container="waiting")
        await node.until_phase("app", "Failed")
        assert node.exit_code("app", "waiting") == 0

    on_a_node(scenario, tmp_path)


RULES: dict[str, tuple[Wire, int, str]] = {
    "again after a code its rule names": ({"operator": "In", "values": [42]}, 42, "again"),
    "not after a code its rule does not name": ({"operator": "In", "values": [42]}, 43, "ended"),
    "again after a code its rule does not exclude": ({"operator": "NotIn", "values": [0, 42]}, 43, "again"),
}


@pytest.mark.parametrize("codes, code, fate", RULES.values(), ids=RULES.keys())
def test_a_container_with_a_rule_of_its_own_runs(
    codes: Wire, code: int, fate: str, tmp_path: Path, diary: Diary
) -> None:
    async def scenario(node: Node) -> None:
        rules = [{"action": "Restart", "exitCodes": codes}]
        script = f"echo run >>/diary/all; test $(wc -l </diary/all) -eq 2 || exit {code}"
        app = diary.writes("app", script, restartPolicy="Never", restartPolicyRules=rules)
        node.create(pod("app", containers=[app], volumes=diary.volumes, restartPolicy="Never"))
        await node.until_phase("app", "Succeeded" if fate == "again" else "Failed")
        assert len(diary.words) == (2 if fate == "again" else 1)

    on_a_node(scenario, tmp_path)


def test_a_container_may_ask_that_all_start_over(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]
        script = "echo app >>/diary/all; test $(grep -c app /diary/all) -eq 2 || exit 88; " + POLITE
        node.create(
            pod(
                "app",
                initContainers=[diary.writes("first", "echo first >>/diary/all")],
                containers=[
                    diary.writes("app", script, restartPolicy="Never", restartPolicyRules=rules),
                    diary.writes("other", "echo other >>/diary/all; " + POLITE),
                ],
                volumes=diary.volumes,
                restartPolicy="Never",
            )
        )
        await node.until(lambda: all(diary.words.count(word) == 2 for word in ("first", "app", "other")))
        assert diary.words.index("first") < diary.words.index("app")
        await node.until_ready("app")

    on_a_node(scenario, tmp_path)


# Crash loops.


def test_a_crash_loop_is_told_and_slowed_down(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("exit 1")))
        await node.until(lambda: waits_for(node, "app") == "CrashLoopBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith("back-off 10s restarting failed container=app pod=app_default(")
        await node.until(lambda: ("Warning", "BackOff") in [told[:2] for told in node.events("app")])
        assert (restarts(node), node.exit_code("app"), node.is_ready("app")) == (1, 1, False)

    on_a_node(scenario, tmp_path)


def test_a_pod_may_ask_for_a_quicker_crash_loop(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh("exit 1"), annotations=HASTY))
        await node.until(lambda: waits_for(node, "app") == "CrashLoopBackOff")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert (waiting.message or "").startswith("back-off 1s restarting")
        await node.until(lambda: restarts(node) >= 2, within=5)

    on_a_node(scenario, tmp_path)


# In turn.


def test_init_containers_run_one_after_the_other_and_before_the_others(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        turns = [
            diary.writes(name, f"echo {name} >>/diary/all; sleep 0.1; echo {name}-end >>/diary/all")
            for name in ("a", "b")
        ]
        app = diary.writes("app", "echo app >>/diary/all; " + POLITE)
        node.create(pod("app", initContainers=turns, containers=[app], volumes=diary.volumes))
        await node.until_ready("app")
        await node.until(lambda: diary.words == ["a", "a-end", "b", "b-end", "app"])
        assert [node.exit_code("app", name) for name in ("a", "b")] == [0, 0]

    on_a_node(scenario, tmp_path)


def test_a_pod_fails_with_its_init_container_where_nothing_runs_again(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", initContainers=[named("first", "exit 9")], restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert node.exit_code("app", "first") == 9
        assert node.status("app").state.running is None
        assert node.log("app") == ""

    on_a_node(scenario, tmp_path)


def test_a_failed_init_container_runs_again_until_it_succeeds(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        first = diary.writes("first", "echo run >>/diary/all; test $(wc -l </diary/all) -eq 2")
        node.create(pod("app", container=sh(POLITE), initContainers=[first], volumes=diary.volumes))
        await node.until_ready("app")
        assert diary.words == ["run", "run"]
        assert node.status("app", "first").restart_count == 1

    on_a_node(scenario, tmp_path)


# Beside each other.

STARTED = {"exec": {"command": ["grep", "-q", "^ready-a", "/diary/all"]}, "periodSeconds": 1, "failureThreshold": 20}


def test_a_sidecar_has_started_before_what_comes_after_it_begins(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        script = "echo a >>/diary/all; sleep 0.3; echo ready-a >>/diary/all; " + POLITE
        sidecar = diary.writes("a", script, restartPolicy="Always", startupProbe=STARTED)
        app = diary.writes("app", "echo app >>/diary/all; " + POLITE)
        first = diary.writes("first", "echo first >>/diary/all")
        quick = {"startup.probe-period-milliseconds.podkeeper.io/a": "100"}
        node.create(
            pod("app", initContainers=[sidecar, first], containers=[app], volumes=diary.volumes, annotations=quick)
        )
        await node.until_ready("app")
        await node.until(lambda: diary.words == ["a", "ready-a", "first", "app"])
        assert node.status("app", "a").started

    on_a_node(scenario, tmp_path)


def test_sidecars_are_stopped_last_and_in_reverse(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        def ending(name: str) -> str:
            return f"trap 'sleep 0.1; echo {name} >>/diary/all; exit 0' TERM; {LINGER}"

        node.create(
            pod(
                "app",
                initContainers=[diary.writes(name, ending(name), restartPolicy="Always") for name in ("a", "b")],
                containers=[diary.writes("app", ending("app"))],
                volumes=diary.volumes,
                terminationGracePeriodSeconds=20,
            )
        )
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert diary.words == ["app", "b", "a"]

    on_a_node(scenario, tmp_path)


def test_a_sidecar_that_ends_runs_again_and_the_others_do_not_notice(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        script = f"echo side >>/diary/all; test $(wc -l </diary/all) -ge 2 || exit 0; {POLITE}"
        sidecar = diary.writes("side", script, restartPolicy="Always")
        node.create(pod("app", container=sh(POLITE), initContainers=[sidecar], volumes=diary.volumes))
        await node.until(lambda: diary.words == ["side", "side"])
        await node.until_ready("app")
        assert (node.status("app", "side").restart_count, restarts(node)) == (1, 0)

    on_a_node(scenario, tmp_path)


def test_a_job_does_not_wait_for_its_sidecar(tmp_path: Path, diary: Diary) -> None:
    async def scenario(node: Node) -> None:
        sidecar = diary.writes("side", f"trap 'echo side >>/diary/all; exit 0' TERM; {LINGER}", restartPolicy="Always")
        app = diary.writes("app", "echo app >>/diary/all")
        node.create(
            pod("app", initContainers=[sidecar], containers=[app], volumes=diary.volumes, restartPolicy="Never")
        )
        await node.until_phase("app", "Succeeded")
        assert diary.words == ["app", "side"]

    on_a_node(scenario, tmp_path)


def test_an_ephemeral_container_joins_a_running_pod(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(f"echo target; {POLITE}")))
        await node.until_ready("app")
        before = node.status("app").container_id
        wire = {**named("debug", "cat /proc/1/cmdline | tr '\\0' ' '; exit 5"), "targetContainerName": "app"}
        spec = replace(node.see("app").spec, ephemeral_containers=[convert(wire, EphemeralContainer)])
        node.api.replace_spec("app", spec)
        await node.until(lambda: bool(node.see("app").status.ephemeral_container_statuses))
        await node.until(lambda: node.exit_code("app", "debug") == 5)
        assert "echo target" in node.log("app", "debug")
        assert node.status("app", "debug").restart_count == 0
        assert (node.status("app").container_id, node.is_ready("app")) == (before, True)

    on_a_node(scenario, tmp_path)


# Ready for others.


def test_a_pod_with_a_gate_is_ready_once_others_say_so(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        def is_shown(ready: bool) -> bool:
            return node.is_ready("app") is ready

        node.create(pod("app", container=sh(POLITE), readinessGates=[{"conditionType": "example.com/open"}]))
        await node.until(lambda: node.phase("app") == "Running" and bool(node.status("app").ready))
        assert not node.is_ready("app")
        for status in ("True", "False"):
            gate = {"type": "example.com/open", "status": status}
            await node.api.patch_status(Pod, "app", {"status": {"conditions": [gate]}}, NAMESPACE)
            await node.until(partial(is_shown, ready=status == "True"))

    on_a_node(scenario, tmp_path)


# Ends.


def test_a_container_that_listens_ends_long_before_its_time_is_up(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends = ends_of(node)
        node.create(pod("app", container=sh(f"trap 'exit 4' TERM; {LINGER}"), terminationGracePeriodSeconds=60))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"), within=10)
        assert ends["app"].exit_code == 4
        assert ("Normal", "Killing", "Stopping container app") in node.events("app")

    on_a_node(scenario, tmp_path)


def test_a_container_that_does_not_listen_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends, loop = ends_of(node), asyncio.get_running_loop()
        node.create(pod("app", container=sh(f"trap '' TERM; {LINGER}"), terminationGracePeriodSeconds=1))
        await node.until_ready("app")
        node.delete("app")
        began = loop.time()
        await node.until(lambda: node.is_gone("app"))
        assert 0.9 < loop.time() - began < 5
        assert ends["app"].exit_code == 137

    on_a_node(scenario, tmp_path)


def test_a_second_delete_may_shorten_the_grace(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(f"trap '' TERM; {LINGER}"), terminationGracePeriodSeconds=600))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: any(told[1] == "Killing" for told in node.events("app")))
        node.delete("app", grace_seconds=1)
        await node.until(lambda: node.is_gone("app"), within=10)

    on_a_node(scenario, tmp_path)


def test_a_container_is_asked_to_end_with_the_signal_it_wants(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        ends = ends_of(node)
        fields = {**sh(f"trap 'exit 5' USR1; trap 'exit 6' TERM; {LINGER}"), "lifecycle": {"stopSignal": "SIGUSR1"}}
        node.create(pod("app", container=fields, os={"name": "linux"}, terminationGracePeriodSeconds=20))
        await node.until_ready("app")
        node.delete("app")
        await node.until(lambda: node.is_gone("app"))
        assert ends["app"].exit_code == 5

    on_a_node(scenario, tmp_path)


def test_a_pod_fails_when_its_deadline_has_passed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=sh(POLITE), activeDeadlineSeconds=1))
        await node.until_ready("app")
        await node.until_phase("app", "Failed")
        assert node.see("app").status.reason == "DeadlineExceeded"
        await node.until(lambda: node.status("app").state.terminated is not None)
        assert ("Normal", "DeadlineExceeded") in [told[:2] for told in node.events("app")]

    on_a_node(scenario, tmp_path)


def test_a_pod_deleted_before_it_could_start_is_gone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image="podkeeper.invalid/missing:1"))
        await node.until(lambda: waits_for(node, "app") in ("ErrImagePull", "ImagePullBackOff"))
        node.delete("app", grace_seconds=30)
        await node.until(lambda: node.is_gone("app"), within=5)

    on_a_node(scenario, tmp_path)


def test_what_a_container_leaves_running_ends_with_it(tmp_path: Path) -> None:
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
def test_a_container_that_takes_too_much_memory_is_told_as_such(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            "command": ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"],
            "resources": {"limits": {"memory": "24Mi"}},
        }
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        end = node.status("app").state.terminated
        assert end is not None
        assert (end.reason, end.exit_code) == ("OOMKilled", 137)

    on_a_node(scenario, tmp_path)


# Images.

IMAGES: dict[str, tuple[str, Wire, tuple[str, ...]]] = {
    "one that cannot be fetched": ("podkeeper.invalid/missing:1", {}, ("ErrImagePull", "ImagePullBackOff")),
    "one that may not be fetched": (
        "podkeeper.invalid/missing:1", {"imagePullPolicy": "Never"}, ("ErrImageNeverPull",)
    ),
    "one whose name is none": ("Not A Name", {}, ("InvalidImageName",)),
}  # fmt: skip


@pytest.mark.parametrize("image, fields, reasons", IMAGES.values(), ids=IMAGES.keys())
def test_a_container_waits_for_its_image(image: str, fields: Wire, reasons: tuple[str, ...], tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", image=image, container=fields))
        await node.until(lambda: waits_for(node, "app") == reasons[-1])
        assert node.phase("app") == "Pending"
        assert ("Warning", "Failed") in [told[:2] for told in node.events("app")] or "Name" in reasons[0]

    on_a_node(scenario, tmp_path)


def test_an_image_that_the_host_does_not_give_names_the_runtime_that_would(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        if node.runtime.name != "process":
            return  # that one can pull it
        node.create(pod("app", image="nginx"))
        await node.until(lambda: waits_for(node, "app") in ("ErrImagePull", "ImagePullBackOff"))
        told = [message for kind, _, message in node.events("app") if kind == "Warning"]
        assert any("--runtime cri" in message for message in told)
        shown = node.status("app").state.waiting
        assert shown is not None
        assert "nginx" in (shown.message or "")

    on_a_node(scenario, tmp_path)


def test_one_bad_image_does_not_keep_the_other_containers_from_running(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        bad = {**named("bad", "true"), "image": "podkeeper.invalid/missing:1"}
        node.create(pod("app", containers=[bad, named("app", POLITE)]))
        await node.until(lambda: waits_for(node, "app", "bad") == "ImagePullBackOff")
        await node.until(lambda: node.status("app").state.running is not None)
        assert not node.is_ready("app")

    on_a_node(scenario, tmp_path)
