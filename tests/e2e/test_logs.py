"""Logs of real containers under `podkeeper run`.

They are rotated while a client follows them, removed with their pods, and complete after the agent is killed.
"""

import gzip
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from podkeeper.rules.logs.rotation import parts_of
from tests.e2e.agent_process import TIMEOUT_SECONDS, AgentProcess
from tests.e2e.cli_runtimes import cli_runtime
from tests.e2e.runtime_kinds import AND_CRIO, CONTAINERD, PROCESS
from tests.manifests import manifest
from tests.runtimes.process.harness import keepers_of
from tools.torture_observe import cgroups_of

pytestmark = pytest.mark.slow

LIVE = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def count(lines: int, pause_every: int = 50) -> str:
    """Return a script that writes numbered lines with short pauses."""
    pause = f"[ $((i % {pause_every})) = 0 ] && sleep 0.02"
    return f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); {pause}; done"


class Machine(AgentProcess):
    """An agent, and the logs of its pods."""

    def interrupt(self) -> None:
        """Send SIGINT (Ctrl-C): the pods are stopped, and the agent exits."""
        assert self.end(signal.SIGINT) == 0

    def write_pod(self, name: str, script: str) -> None:
        annotations = {"podkeeper.io/restart-backoff-initial": "1s", "podkeeper.io/restart-backoff-maximum": "1s"}
        app = {"image": self.runtime.image, "command": ["sh", "-c", script]}
        metadata = {"annotations": annotations}
        self.write(name, manifest(name, app, metadata=metadata, terminationGracePeriodSeconds=2))

    def logs(self, name: str) -> Path | None:
        """Return the log directory of a pod."""
        return next((self.root / "logs").glob(f"default_{name}-n1_*"), None)

    def files(self, name: str) -> list[str]:
        directory = self.logs(name)
        with suppress(OSError):
            return [] if directory is None else sorted(os.listdir(directory / "app"))
        return []

    def disk(self, name: str, attempt: int = 0) -> list[str]:
        """Return the lines of a log on disk, oldest first, without times and tags."""
        directory = self.logs(name)
        assert directory is not None
        log, end = f"{attempt}.log", time.monotonic() + TIMEOUT_SECONDS
        while True:
            files = self.files(name)
            parts = [directory / "app" / each for each in (*parts_of(log, files).values(), log)]
            try:
                text = b"".join(map(_content, parts))
                is_whole = files == self.files(name)
            except FileNotFoundError:
                is_whole = False
            if not is_whole:  # a rotation ran meanwhile
                assert time.monotonic() < end
                continue
            whole = text[: text.rfind(b"\n") + 1]  # the last line may be incomplete
            return [line.split(" ", 3)[3] for line in whole.decode().splitlines()]

    def show(self, *arguments: str) -> list[str]:
        """Return the output of `podkeeper logs`."""
        return self.call("logs", *arguments).stdout.decode().splitlines()

    def restarts(self, pod: str) -> int:
        """Return the restart count of a pod's container. Wait until the agent reports it."""
        self.until(lambda: self.container(pod), f"{pod} has a status")
        return int(self.container(pod)["restartCount"])

    def close(self) -> None:
        """Stop everything and check that nothing is left."""
        for path in self.manifests.iterdir():
            path.unlink()
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.until(lambda: self.pods() is not None, "the agent answers")  # it installs its signal handlers before
            self.until(lambda: not any(map(_is_of_pod, cgroups_of(self.root))), "the pods are gone")
            self.interrupt()
        self.kill()
        left = self.runtime.left(self.root)
        self.runtime.remove(self.root)
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.runtime.left(self.root) and time.monotonic() < end:
            time.sleep(0.02)
        groups = cgroups_of(self.root)
        for group in sorted(groups, key=len, reverse=True):
            with suppress(OSError):
                os.rmdir(group)
        assert (left, groups) == ([], [])


def _is_of_pod(cgroup: str) -> bool:
    return os.path.basename(cgroup).startswith("pod") and "/podkeeper-" in os.path.dirname(cgroup)


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Run an agent with the configuration of the test."""
    with TemporaryDirectory(prefix="podkeeper-test-") as place:  # socket paths must be short
        kind, config = request.param
        made = Machine(Path(place), cli_runtime(request, kind), config=config)
        made.start()
        try:
            yield made
        finally:
            made.close()


def configured(
    size: str, files: int, interval: str = "200ms", kinds: Sequence[str] = (PROCESS, CONTAINERD, *AND_CRIO)
) -> pytest.MarkDecorator:
    config = {"containerLogMaxSize": size, "containerLogMaxFiles": files, "containerLogMonitorInterval": interval}
    return pytest.mark.parametrize("machine", [(kind, config) for kind in kinds], indirect=True, ids=kinds)


@configured("16Ki", 6)
def test_logs_are_followed_across_rotations(machine: Machine) -> None:
    lines = [f"line {number}" for number in range(12_000)]
    machine.write_pod("chatty", f"sleep 0.5; {count(len(lines))}; {LIVE}")
    machine.until(lambda: "running" in machine.container("chatty").get("state", {}), "chatty runs")
    most = 0
    with TemporaryDirectory(prefix="podkeeper-test-") as place, Path(place, "captured").open("w+") as captured:
        following = subprocess.Popen(machine.argv("logs", "-f", "chatty"), stdout=captured)
        try:
            end = time.monotonic() + TIMEOUT_SECONDS
            while not (output := Path(captured.name).read_text()).endswith(f"{lines[-1]}\n"):
                assert time.monotonic() < end, f"captured {output.count(chr(10))} lines of {len(lines)}"
                # A compressed part exists twice for a moment.
                parts = {name.removesuffix(".gz") for name in machine.files("chatty") if not name.endswith(".tmp")}
                most = max(most, len(parts))
                time.sleep(0.02)
        finally:
            following.kill()
            following.wait()
    assert output.splitlines() == lines
    assert 5 <= most <= 6
    machine.until(
        lambda: sum(name.endswith(".gz") for name in machine.files("chatty")) == 4, "old parts are compressed"
    )
    machine.until(lambda: machine.show("chatty") == machine.disk("chatty"), "podkeeper logs shows all parts")
    kept = machine.disk("chatty")
    assert len(kept) < len(lines)
    assert kept == lines[-len(kept) :]
    assert machine.show("chatty", "--tail", "3") == lines[-3:]
    assert machine.show("chatty", "--tail", str(len(kept) - 5)) == kept[5:]


@configured("16Ki", 100)
def test_the_previous_log_is_complete_and_older_ones_are_removed(machine: Machine) -> None:
    machine.write_pod("crash", f"{count(2_000)}; exit 1")
    machine.until(lambda: machine.restarts("crash") >= 3, "it has crashed three times")

    def are_two_kept() -> bool:
        attempts = {int(name.partition(".")[0]) for name in machine.files("crash")}
        return len(attempts) <= 2 and max(attempts) >= 3

    machine.until(are_two_kept, "the logs of the last two containers are kept")
    output = machine.show("--previous", "crash")
    assert output == [f"line {number}" for number in range(2_000)]


@configured("10Mi", 5)
def test_the_logs_of_a_removed_pod_are_removed(machine: Machine) -> None:
    def has_a_log(name: str) -> bool:
        return machine.files(name) == ["0.log"]

    for name in ("gone", "kept"):
        machine.write_pod(name, f"echo hello; {LIVE}")
        machine.until(partial(has_a_log, name), f"{name} has a log")
    unrelated = machine.root / "logs" / "not-a-pod"
    unrelated.mkdir()
    (machine.manifests / "gone.yaml").unlink()
    machine.until(lambda: machine.logs("gone") is None, "its logs are gone")
    machine.until(lambda: not list((machine.root / "logs").glob(".*")), "nothing is left of them")
    assert (machine.disk("kept"), unrelated.exists()) == (["hello"], True)


@configured("10Mi", 5)
def test_logs_of_pods_removed_while_no_agent_ran_are_removed(machine: Machine) -> None:
    machine.write_pod("gone", f"echo hello; {LIVE}")
    machine.until(lambda: machine.files("gone") == ["0.log"], "it has a log")
    machine.kill()
    (machine.manifests / "gone.yaml").unlink()
    machine.start()
    machine.until(lambda: machine.logs("gone") is None, "its logs are gone")


@configured("10Mi", 5, "1h")
def test_a_pod_started_again_after_a_stop_has_a_new_log(machine: Machine) -> None:
    machine.write_pod("web", f"cat /proc/sys/kernel/random/uuid; {LIVE}")
    machine.until(lambda: machine.files("web") and machine.disk("web"), "it has a log")
    first = machine.disk("web")
    machine.interrupt()
    machine.start()
    machine.until(lambda: machine.files("web") and machine.disk("web") not in ([], first), "it has a new log")
    assert (len(first), machine.show("web")) == (1, machine.disk("web"))
    assert len(machine.disk("web")) == 1


@configured("4Ki", 5, kinds=[PROCESS])  # CRI runtimes write the logs themselves and cannot be paused
def test_a_kill_between_two_steps_of_a_rotation_loses_no_lines(machine: Machine) -> None:
    machine.write_pod("web", f"echo first; {LIVE}")
    machine.until(lambda: machine.files("web") and machine.disk("web") == ["first"], "it has a log")
    directory, (keeper,) = machine.logs("web"), keepers_of(str(machine.root / "runtime")).values()
    assert directory is not None
    os.kill(keeper, signal.SIGSTOP)  # so that it cannot reopen the log
    try:
        with (directory / "app" / "0.log").open("a") as log:
            log.write("2026-11-15T10:00:00.000000000Z stdout F second\n" * 100)
        machine.until(lambda: machine.files("web") and "0.log" not in machine.files("web"), "it is being rotated")
        machine.kill()
    finally:
        os.kill(keeper, signal.SIGCONT)
    machine.start()
    machine.until(lambda: "0.log" in machine.files("web"), "it has a log again")
    assert machine.disk("web") == ["first", *["second"] * 100]
    assert machine.restarts("web") == 0


@configured("4Ki", 1000, "20ms")
@pytest.mark.parametrize("seed", range(2))
def test_kills_during_rotations_lose_no_lines(machine: Machine, seed: int) -> None:
    rng = random.Random(seed)
    lines = [f"line {number}" for number in range(12_000)]
    machine.write_pod("chatty", f"{count(len(lines), pause_every=20)}; {LIVE}")
    machine.until(lambda: "running" in machine.container("chatty").get("state", {}), "chatty runs")

    def is_written() -> bool:
        return machine.disk("chatty")[-1:] == lines[-1:]

    def has_more_than(files: int) -> bool:
        return len(machine.files("chatty")) > files or is_written()

    kills = 0
    while kills < 6 and not is_written():
        before = len(machine.files("chatty"))
        machine.until(partial(has_more_than, before), "it rotates")
        time.sleep(rng.uniform(0, 0.1))
        machine.kill()
        machine.start()
        kills += 1
    assert kills >= 2
    machine.until(is_written, "all lines are written")
    machine.until(
        lambda: not any(name.endswith(".tmp") for name in machine.files("chatty")), "no temporary file is left"
    )
    assert machine.disk("chatty") == lines
    assert machine.restarts("chatty") == 0
    machine.until(lambda: machine.show("chatty") == lines, "podkeeper logs shows all lines")
