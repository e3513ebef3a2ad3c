"""An agent on a directory of manifests, random actions, and checks of its invariants.

    Torture.round()   actions and a fault, then usually a `check`
    Torture.check()   waits for the expected state; raises `Broken` if an invariant is violated or the time is up
    Torture.end()     stops all pods and checks that nothing is left

The fault here is a kill of the agent (`tools.torture`). `tools.torture_runtime` kills the runtime instead.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from podkeeper.app.local.client import LocalClient, RequestFailed
from podkeeper.app.local.paths import SOCKET_NAME
from tools.torture_observe import (
    Processes,
    brief,
    cgroups_of,
    code_of,
    containers_of,
    first_processes,
    is_leaving,
    keepers_of,
    left_in,
    lines_of,
    names_of,
    ready_of,
    status_of,
)
from tools.torture_pods import CRASH_CODE, END, HOST, KILLED, Kind, TorturePod

NODE = "rack"
AGENT = (sys.executable, "-c", "from podkeeper.app.cli import main; main()")
TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.03
MOST_PODS = 12
FEWEST_PODS = 5


class Broken(Exception):
    """An invariant is violated."""


class Torture:
    """A series of agents on one directory."""

    image = HOST  # of the pods
    timeout_seconds = TIMEOUT_SECONDS

    def __init__(self, place: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._mark = f"torture-{uuid.uuid4().hex[:8]}"
        self._place = place
        self._root, self._folder, self._start_files = place / "root", place / "manifests", place / "starts"
        self._folder.mkdir()
        self._start_files.mkdir(mode=0o777)
        self._client = LocalClient(self._root / SOCKET_NAME)
        self._agent: subprocess.Popen[bytes] | None = None
        self._born = 0
        self.pods: dict[str, TorturePod] = {}
        self.gone: list[str] = []  # versions that were removed or replaced
        self.actions: list[str] = []
        self.strikes = self.checks = self.jobs = self.kills = 0

    # ---- Agent ----

    def start(self) -> None:
        words = [*AGENT, "run", str(self._folder), "--root", str(self._root), "--node-name", NODE, "--plain", "-v"]
        words += self._more_arguments()
        surroundings = {name: value for name, value in os.environ.items() if name != "PODKEEPER_SOCKET"}
        with open(self._place / "agent.log", "ab") as output:
            self._agent = subprocess.Popen(
                words, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=surroundings
            )

    def _more_arguments(self) -> list[str]:
        """Return additional arguments of the agent."""
        return []

    def kill(self) -> None:
        """Kill the agent with SIGKILL."""
        assert self._agent is not None
        if self._agent.poll() is not None:
            raise Broken(f"the agent exited unexpectedly with status {self._agent.returncode}")
        self._agent.kill()
        self._agent.wait()
        self._agent = None
        self.kills += 1

    def round(self) -> None:
        """Run some actions, kill the agent, run more actions, start another agent, then usually check the state."""
        for _ in range(self._chance.randrange(3)):
            self.action()
        time.sleep(self._chance.random() * 0.5)
        self._note("kill the agent")
        self.kill()
        for _ in range(self._chance.randrange(3)):
            self.action()
            time.sleep(self._chance.random() * 0.2)
        self._note("start the agent")
        self.start()
        if self._chance.random() < 0.25:
            time.sleep(self._chance.random() * 0.8)
        else:
            self.check()

    def end(self) -> None:
        """Stop the pods with Ctrl-C, run an agent without manifests, and check that nothing is left."""
        self.check()
        self._interrupt()
        if left := self._alive():
            raise Broken(f"alive after Ctrl-C: {', '.join(left)}")
        for pod in self.pods.values():
            self._path(pod).unlink()
        self.start()
        deadline = time.monotonic() + self.timeout_seconds
        while left := [*self._alive(), *self._left()] or self._unanswered():
            if time.monotonic() > deadline:
                raise Broken(f"left behind: {', '.join(left)}")
            time.sleep(POLL_SECONDS)
        self._interrupt()
        if groups := cgroups_of(self._root):
            raise Broken(f"left behind: {', '.join(groups)}")

    def _interrupt(self) -> None:
        assert self._agent is not None
        self._agent.send_signal(signal.SIGINT)
        try:
            code = self._agent.wait(self.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise Broken("the agent does not end at Ctrl-C") from None
        self._agent = None
        if code != 0:
            raise Broken(f"the agent exited with status {code} after Ctrl-C")

    def _alive(self) -> list[str]:
        """Return the containers and keepers that still run."""
        return [
            *(f"{version}.{name}" for version, name in first_processes(self._mark)),
            *(f"keeper {pid}" for pid in keepers_of(self._root)),
        ]

    def _unanswered(self) -> list[str]:
        """Return a text if the agent does not answer yet. Ctrl-C would then only cancel its start."""
        try:
            self._client.get("pods")
        except RequestFailed:
            return ["an agent that does not answer"]
        return []

    def _left(self) -> list[str]:
        """Return what is left of the pods."""
        return left_in(self._place, self._root)

    def clear_away(self) -> None:
        """After a failure, kill all processes and remove the cgroups. Keep the files for analysis."""
        if self._agent is not None:
            self._agent.send_signal(signal.SIGINT)
            try:
                self._agent.wait(10)
            except subprocess.TimeoutExpired:
                self._agent.kill()
                self._agent.wait()
        found = [pid for pids in first_processes(self._mark).values() for pid, _ in pids]
        for pid in found + keepers_of(self._root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)  # until the kernel has removed the processes from their cgroups
        for group in sorted(cgroups_of(self._root), key=len, reverse=True):
            with suppress(OSError):
                os.rmdir(group)

    # ---- Actions ----

    def action(self) -> None:
        """Run a random action of a user, or kill a container."""
        actions = (self.add, self.remove, self.change, self.strike)
        what = self._chance.choices(actions, (3, 2, 1, 3))[0]
        if len(self.pods) < FEWEST_PODS:
            what = self.add
        elif len(self.pods) >= MOST_PODS and what == self.add:
            what = self.remove
        what()

    def add(self, kind: Kind | None = None) -> None:
        """Add a pod."""
        self._born += 1
        kind = kind or self._chance.choice(list(Kind))
        pod = self.pods[f"{kind.value}-{self._born}"] = TorturePod(
            kind, f"{kind.value}-{self._born}", self._mark, self.image
        )
        pod.begin(self._chance, self._start_files)
        pod.settled_at = self.kills
        self._write(pod)
        self.jobs += kind is Kind.JOB
        self._note(f"add {pod.version}")

    def remove(self) -> None:
        """Remove a pod."""
        pod = self._chance.choice(list(self.pods.values()))
        self._path(pod).unlink()
        self.gone.append(pod.version)
        del self.pods[pod.name]
        self._note(f"remove {pod.version}")

    def change(self) -> None:
        """Replace a manifest. The old pod ends, then a new pod with the same name starts."""
        pod = self._chance.choice(list(self.pods.values()))
        self.gone.append(pod.version)
        pod.begin(self._chance, self._start_files)
        pod.settled_at = self.kills
        self._write(pod)
        self._note(f"change {pod.name}: now {pod.version}")

    def strike(self) -> None:
        """Kill a container that runs."""
        known = [(pod, container) for pod in self.pods.values() for container in pod.seen]
        if not known:
            return
        pod, container = self._chance.choice(known)
        pid, _ = pod.seen.pop(container)
        pod.strikes[container] += 1
        pod.ready_since = ""
        self.strikes += 1
        self._note(f"kill {pod.version}.{container} (process {pid})")
        os.kill(pid, signal.SIGKILL)

    def _write(self, pod: TorturePod) -> None:
        whole = self._folder / f".{pod.name}.new"
        whole.write_text(json.dumps(pod.manifest))
        whole.rename(self._path(pod))

    def _path(self, pod: TorturePod) -> Path:
        return self._folder / f"{pod.name}.json"

    def _note(self, what: str) -> None:
        self.actions.append(f"{time.strftime('%H:%M:%S')} {what}")

    # ---- Checks ----

    def check(self) -> None:
        """Wait for the expected state. Raise Broken if an invariant is violated or the time is up."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            shown = self._shown()
            processes = first_processes(self._mark)
            if wrong := [text for pod in self.pods.values() for text in self._wrong(pod, shown, processes)]:
                raise Broken("; ".join(wrong))
            missing = self._missing(shown, processes)
            if not missing:
                break
            assert self._agent is not None
            if time.monotonic() > deadline or self._agent.poll() is not None:
                raise Broken(f"timed out after {self.timeout_seconds:g} s: {'; '.join(missing)}")
            time.sleep(POLL_SECONDS)
        self._store_observed(shown, processes)
        self.checks += 1

    def _shown(self) -> dict[str, Any]:
        """Return the pods that the agent reports, by the name in the manifest. Empty while the agent starts."""
        try:
            items = self._client.get("pods")["items"]
        except RequestFailed:
            return {}
        return {pod["metadata"]["name"].removesuffix(f"-{NODE}"): pod for pod in items if not is_leaving(pod)}

    def _starts(self, pod: TorturePod, container: str) -> int:
        return len(lines_of(self._start_files / f"{pod.version}.{container}"))

    def _wrong(self, pod: TorturePod, shown: Mapping[str, Any], processes: Processes) -> list[str]:
        """Return violated invariants, which must hold at all times."""
        wrong = []
        for container in names_of(pod):
            starts, most = self._starts(pod, container), self._most_starts(pod, container)
            if starts > most:
                wrong.append(f"{pod.version}.{container} started {starts} times, expected at most {most}")
            alive = [pid for (version, name), pids in processes.items() for pid in pids
                     if name == container and version.rpartition(".")[0] == pod.name]  # fmt: skip
            if len(alive) > 1:
                wrong.append(f"{pod.name}.{container} runs {len(alive)} times: {alive}")
            if (known := pod.seen.get(container)) and known not in alive:
                wrong.append(f"{pod.version}.{container} is lost: expected {known}, found {alive}")
        status = status_of(pod, shown)
        if pod.ready_since and status is not None and ready_of(status) != ("True", pod.ready_since):
            wrong.append(f"{pod.version} was Ready since {pod.ready_since}, but is now {ready_of(status)}")
        for name, each in containers_of(status).items():
            count, most = each["restartCount"], self._most_restarts(pod, name)
            if pod.goes_on and count > most:
                wrong.append(f"{pod.version}.{name} reports {count} restarts, expected at most {most}")
            if pod.kind is Kind.LOOP and each["restartCount"] < pod.restarts:
                wrong.append(f"{pod.version} lost restarts: {pod.restarts}, then {each['restartCount']}")
            if pod.ended and not self._reports_code(each, pod.code):
                wrong.append(f"{pod.version} had exited with {pod.code}, but is now {each['state']}")
        return wrong

    def _most_starts(self, pod: TorturePod, container: str) -> int:
        """Return the maximum number of starts of a container so far."""
        return pod.most_starts(container)

    def _reports_code(self, container: Any, code: int) -> bool:
        """Return whether a status reports this exit code."""
        return code_of(container) == code

    def _most_restarts(self, pod: TorturePod, container: str) -> int:
        """Return the maximum restart count: real restarts, and one per start that a kill may have prevented."""
        settled = container in pod.seen or (container == "init" and pod.seen)
        return pod.strikes[container] + pod.unlived[container] + (0 if settled else self.kills - pod.settled_at)

    def _missing(self, shown: Mapping[str, Any], processes: Processes) -> list[str]:
        """Return what is still missing of the expected state."""
        missing = [text for pod in self.pods.values() for text in self._missing_of(pod, status_of(pod, shown))]
        missing += [f"{name} is still reported" for name in shown if name not in self.pods]
        wanted = {pod.version for pod in self.pods.values()}
        missing += [f"{version} still runs" for version, _ in processes if version not in wanted]
        return missing

    def _missing_of(self, pod: TorturePod, status: Any) -> list[str]:
        if status is None:
            return [f"{pod.version} is not reported"]
        reported = containers_of(status)
        missing = []
        if pod.goes_on and ready_of(status)[0] != "True":
            missing.append(f"{pod.version} is not Ready: {brief(status)}")
        for name in pod.lasting:
            strikes = pod.strikes[name]
            starts, most = self._starts(pod, name), self._most_starts(pod, name)
            if not strikes < starts <= most or reported.get(name, {}).get("restartCount", -1) < strikes:
                missing.append(f"{pod.version}.{name} was killed {strikes} times: {brief(status)}")
            elif strikes and not self._reports_code(reported[name], KILLED):
                missing.append(f"{pod.version}.{name} does not report its kill: {reported[name]}")
        if pod.kind is Kind.JOB and (
            status.get("phase") != ("Failed" if code_of(reported.get("app", {})) else "Succeeded")
            or not self._reports_code(reported.get("app", {}), pod.code)
            or self._starts(pod, END) != 1
        ):
            missing.append(f"{pod.version} should end with {pod.code}: {brief(status)}")
        if pod.kind is Kind.LOOP:
            starts, app = self._starts(pod, "app"), reported.get("app", {})
            count_fits = bool(app) and starts <= app["restartCount"] + 1 <= starts + self.kills
            if not count_fits or not (code_of(app) is None or self._reports_code(app, CRASH_CODE)):
                missing.append(f"{pod.version} started {starts} times: {brief(status)}")
        return missing

    def _store_observed(self, shown: Mapping[str, Any], processes: Processes) -> None:
        """Store the observed state, which must not change from now on."""
        for pod in self.pods.values():
            status = status_of(pod, shown)
            if pod.goes_on:
                pod.ready_since = ready_of(status)[1]
            for name in pod.lasting:
                (pod.seen[name],) = processes[pod.version, name]
            for name, each in containers_of(status).items():
                pod.unlived[name] = each["restartCount"] - pod.strikes[name]
                pod.undone[name] = self._starts(pod, name) - pod.strikes[name] - 1
            pod.settled_at = self.kills
            pod.ended = pod.kind is Kind.JOB
            if pod.kind is Kind.LOOP:
                pod.restarts = containers_of(status)["app"]["restartCount"]
