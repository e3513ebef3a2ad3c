"""Requests to a keeper: events, answers, errors, and the shutdown."""

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.keeper import Keeper
from podkeeper.runtimes.process.keeper.launch import Launch
from podkeeper.runtimes.process.keeper.protocol import encode, send_with_files
from tests.runtimes.process.fake_jail import SLEEP, FakeJail, wait_for_end
from tests.runtimes.process.harness import RuntimeHarness, opened, remove_all, temporary_root
from tests.runtimes.process.jail_harness import in_keeper
from tests.runtimes.process.manual_loop import ManualLoop

T = TypeVar("T")
ENV = {"PATH": "/usr/bin:/bin"}


class Agent:
    """An agent that is connected to the keeper."""

    def __init__(self, harness: "Harness") -> None:
        self._harness = harness
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.file = theirs.fileno()
        harness.keeper.add_connection(theirs)
        self._last_id = 0

    def send_request(self, do: str, files: tuple[int, ...] = (), **fields: Any) -> list[Json]:
        """Send a request. Return all messages that the keeper sends at once."""
        self._last_id += 1
        send_with_files(self.socket, encode({"id": self._last_id, "do": do, **fields, "fds": len(files)}), files)
        self._harness.loop.readable[self.file]()
        return self.received()

    def received(self) -> list[Json]:
        """Return the new messages, shortened."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return []
        return [_short(json.loads(line)) for line in data.splitlines()]

    def disconnect(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)  # a starting process may hold a copy until its exec
        self.socket.close()
        self._harness.loop.readable[self.file]()


def _short(message: Json) -> Json:
    """Remove times and PIDs from a message."""
    if "container" in message:
        about = message["container"]
        with_keeper = {key: about[key] for key in ("id", "state", "code") if key in about}
        return {**message, "container": with_keeper}
    return message


class Harness:
    """A keeper in an empty directory, with one agent."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.jail = FakeJail()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind("keeper.sock")
        self.listener.listen(16)
        self.keeper = Keeper(self.loop, self.jail, self.listener, os.path.join(os.getcwd(), "logs"))
        self.agent = Agent(self)

    def create(self, container_id: str = "x", argv: tuple[str, ...] = SLEEP, **config: Any) -> list[Json]:
        launch = Launch(argv=argv, env=ENV, directory=f"containers/{container_id}").to_json()
        return self.agent.send_request("create", container=container_id, launch=launch, facts={"name": "web"}, **config)

    def run(self, container_id: str = "x", argv: tuple[str, ...] = SLEEP, **config: Any) -> int:
        """Create and start a container. Return its PID."""
        self.create(container_id, argv, **config)
        self.agent.send_request("start", container=container_id)
        return self.jail.started[-1]

    def reap(self, *pids: int) -> None:
        """Wait for the end of processes, then let the keeper reap them."""
        for pid in pids:
            wait_for_end(pid)
        self.loop.signals[signal.SIGCHLD]()

    def next_messages(self) -> list[Json]:
        """Let the keeper reap until the agent receives messages."""
        while not (received := self.agent.received()):
            self.reap_next()
        return received

    def reap_next(self) -> None:
        """Wait for the end of any child, then let the keeper reap it."""
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        self.loop.signals[signal.SIGCHLD]()


def with_keeper(act: Callable[[Harness], T]) -> T:
    """Run a scenario with a keeper in a forked process, because the keeper reaps all children of its process."""

    def run_act() -> T:
        with tempfile.TemporaryDirectory(prefix="podkeeper-keeper-") as directory:
            os.chdir(directory)
            harness = Harness()
            try:
                return act(harness)
            finally:
                harness.jail.end_all()
                os.chdir("/")

    return in_keeper(run_act)


def ok(number: int, **value: Any) -> Json:
    return {"id": number, "ok": value}


def event(name: str, state: str, container_id: str = "x", **more: Any) -> Json:
    return {"event": name, "container": {"id": container_id, "state": state, **more}}


def refused(number: int, error: str, kind: str = "refused") -> Json:
    return {"id": number, "error": error, "kind": kind}


def test_events_precede_the_answer_that_caused_them() -> None:
    def act(harness: Harness) -> list[Any]:
        other = Agent(harness)
        mine = [
            harness.agent.send_request("state"),
            harness.create(),
            harness.create(),
            harness.agent.send_request("start", container="x"),
            harness.agent.send_request("start", container="x"),
        ]
        return [*mine, other.received(), len(harness.jail.started)]

    assert with_keeper(act) == [
        [{"event": "state", "containers": [], "leaving": False}, ok(1)],
        [event("created", "created"), ok(2)],
        [ok(3)],
        [event("started", "running"), ok(4)],
        [ok(5)],
        [event("created", "created"), event("started", "running")],
        1,
    ]


def test_the_state_lists_all_containers_with_their_facts() -> None:
    def act(harness: Harness) -> Json:
        harness.create()
        harness.create("y")
        return harness.agent.send_request("state")[0]

    about = {"facts": {"name": "web"}, "state": "created"}
    assert with_keeper(act)["containers"] == [{"id": "x", **about}, {"id": "y", **about}]


def test_errors_have_their_kind() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.create()
        harness.jail.refuse = "no such program"
        return [
            harness.agent.send_request("start", container="x"),
            harness.agent.send_request("start", container="y"),
            harness.agent.send_request("stop", container="x"),
            harness.agent.send_request("stop", container="x", grace="soon"),
            harness.agent.send_request("reopen_log", container="x"),
            harness.agent.send_request("dance"),
            harness.agent.send_request("remove", container="y"),
            harness.agent.send_request("kill_exec", request=99),
            harness.agent.send_request("hang_up", request=99),
        ]

    assert with_keeper(act) == [
        [event("exited", "exited", code=128), refused(2, "no such program", "launch")],
        [refused(3, "field or container 'y' not found", "unknown")],
        [refused(4, "field or container 'grace' not found", "unknown")],
        [refused(5, "could not convert string to float: 'soon'")],
        [refused(6, "the container is not running")],
        [refused(7, "unknown request: dance")],
        [ok(8)],
        [ok(9)],
        [ok(10)],
    ]


def test_a_stop_is_answered_when_the_container_has_exited() -> None:
    def act(harness: Harness) -> list[Any]:
        pid = harness.run()
        sent = harness.agent.send_request("stop", container="x", grace=30)
        harness.reap(pid)
        return [
            sent,
            harness.loop.timers,
            harness.agent.received(),
            harness.agent.send_request("stop", container="x", grace=30),
        ]

    assert with_keeper(act) == [[], [], [event("exited", "exited", code=143), ok(3)], [ok(4)]]


def test_spare_cancels_every_deadline() -> None:
    def act(harness: Harness) -> list[Any]:
        for name in ("x", "y"):
            harness.run(name, ("sh", "-c", "trap '' TERM; read never"), stdin=True)
            harness.agent.send_request("stop", container=name, grace=30)
        before = harness.loop.timers
        return [before, harness.agent.send_request("spare"), harness.loop.timers]

    assert with_keeper(act) == [[30, 30], [ok(7)], []]


def test_start_passes_the_pid_of_the_target() -> None:
    def act(harness: Harness) -> list[Any]:
        pid = harness.run()
        harness.run("debug", target="x")
        harness.create("lost", target="z")
        return [harness.jail.launched[1].beside == pid, harness.agent.send_request("start", container="lost")[1]]

    why = "cannot share the processes of container z: it is not running"
    assert with_keeper(act) == [True, refused(6, why, "launch")]


def test_exec_is_answered_at_the_end_of_the_command() -> None:
    def act(harness: Harness) -> list[Any]:
        pid = harness.run()
        files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        sent = harness.agent.send_request("exec", tuple(files), container="x", argv=["sh", "-c", "exit 3"])
        for file in files:
            os.close(file)
        harness.reap(harness.jail.started[-1])
        ((entered, spec),) = harness.jail.entered
        return [sent, harness.agent.received(), entered == pid, spec.argv, spec.tty, harness.loop.timers]

    end = ok(3, code=3, timed_out=False)
    assert with_keeper(act) == [[], [end], True, ("sh", "-c", "exit 3"), False, []]


def test_a_command_is_killed_at_its_timeout() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.run()
        harness.agent.send_request("exec", (0, 1, 2), container="x", argv=["sleep", "600"], timeout=2.5)
        before = harness.loop.timers
        harness.loop.run_timer()
        harness.reap(harness.jail.started[-1])
        return [before, harness.agent.received()]

    assert with_keeper(act) == [[2.5], [ok(3, code=137, timed_out=True)]]


def test_kill_exec_and_hang_up_use_the_request_id() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.run()
        found = []
        for way in ("kill_exec", "hang_up"):
            harness.agent.send_request("exec", (0, 1, 2), container="x", argv=["sleep", "600"])
            number = 3 if way == "kill_exec" else 5
            answer = harness.agent.send_request(way, request=number)
            timers = harness.loop.timers
            harness.reap(harness.jail.started[-1])
            found.append((answer, timers, harness.agent.received(), harness.loop.timers))
        return found

    assert with_keeper(act) == [
        ([ok(4)], [], [ok(3, code=137, timed_out=False)], []),
        ([ok(6)], [10.0], [ok(5, code=129, timed_out=False)], []),
    ]


def test_a_command_with_a_terminal_has_one_file_for_stdio() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.run()
        ours, theirs = socket.socketpair()
        harness.agent.send_request(
            "exec", (theirs.fileno(),), container="x", argv=["sh", "-c", "echo x; echo y >&2"], tty=True
        )
        theirs.close()
        harness.reap(harness.jail.started[-1])
        return [ours.recv(99), harness.jail.entered[0][1].tty, harness.agent.received()]

    assert with_keeper(act) == [b"x\ny\n", True, [ok(3, code=0, timed_out=False)]]


def test_a_command_with_the_wrong_number_of_files_is_refused() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.run()
        before = set(os.listdir("/proc/self/fd"))
        (answer,) = harness.agent.send_request("exec", (0, 1), container="x", argv=["true"])
        return [answer["kind"], set(os.listdir("/proc/self/fd")) == before, len(harness.jail.entered)]

    assert with_keeper(act) == ["refused", True, 0]


def test_commands_get_sighup_when_their_agent_disconnects() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.run()
        other = Agent(harness)
        for agent in (harness.agent, other):
            agent.send_request("exec", (0, 1, 2), container="x", argv=["sleep", "600"])
        mine, its = harness.jail.started[1:]
        other.disconnect()
        harness.reap(its)
        alive = os.waitid(os.P_PID, mine, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        harness.create("y")
        return [alive, harness.agent.received(), other.file in harness.loop.readable]

    assert with_keeper(act) == [True, [], False]


def test_ended_commands_get_no_signal_when_their_agent_disconnects() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.run()
        harness.agent.send_request("exec", (0, 1, 2), container="x", argv=["true"])
        received = harness.next_messages()
        harness.agent.disconnect()
        return [received, harness.loop.timers]

    assert with_keeper(act) == [[ok(3, code=0, timed_out=False)], []]


def test_attach_returns_a_file_and_sends_the_output() -> None:
    def act(harness: Harness) -> list[Any]:
        pid = harness.run(argv=("cat",), stdin=True)
        before = set(os.listdir("/proc/self/fd"))
        out, out_end = os.pipe()
        send_with_files(harness.agent.socket, encode({"id": 9, "do": "attach", "container": "x", "stdin": True}), ())
        harness.loop.readable[harness.agent.file]()
        data, files, _, _ = socket.recv_fds(harness.agent.socket, 4096, 4)
        os.write(files[0], b"hello")
        for file in (*files, out, out_end):
            os.close(file)
        left = set(os.listdir("/proc/self/fd")) == before
        os.kill(pid, signal.SIGKILL)
        return [json.loads(data), len(files), left]

    assert with_keeper(act) == [{"id": 9, "ok": {"tty": False, "stdin": True, "once": False}, "fds": 1}, 1, True]


def test_a_removed_container_is_killed_and_its_files_deleted() -> None:
    def act(harness: Harness) -> list[Any]:
        pid = harness.run()
        sent = harness.agent.send_request("remove", container="x")
        harness.loop.run_timer()
        harness.reap(pid)
        exited = harness.agent.received()
        removed = harness.next_messages()
        return [sent, exited, removed, harness.agent.send_request("state")[0]["containers"], os.listdir("containers")]

    sent, exited, removed, *left = with_keeper(act)
    assert (sent, exited, left) == ([], [event("exited", "exited", code=137)], [[], []])
    assert removed == [event("removed", "exited", code=137), ok(3)]


def test_two_concurrent_removals_send_one_event() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.create()
        received = [
            *harness.agent.send_request("remove", container="x"),
            *harness.agent.send_request("remove", container="x"),
        ]
        while len(received) < 3:
            harness.reap_next()
            received += harness.agent.received()
        return received

    removed, *answers = with_keeper(act)
    assert removed == event("removed", "created")
    assert sorted(answer["id"] for answer in answers) == [2, 3]
    assert [answer["ok"] for answer in answers] == [{}, {}]


@pytest.mark.parametrize("why", ["something is mounted", "the directory is a link"])
def test_files_that_cannot_be_deleted_keep_the_container(why: str) -> None:
    def act(harness: Harness) -> list[Any]:
        harness.create()
        if why == "something is mounted":
            harness.jail.refuse = why
        else:
            os.rename("containers/x", "elsewhere")
            os.symlink("../elsewhere", "containers/x")
        sent = harness.agent.send_request("remove", container="x")
        return [sent, harness.next_messages(), len(harness.agent.send_request("state")[0]["containers"])]

    error = "cannot delete the files of container x: the child process that deletes them failed"
    assert with_keeper(act) == [[], [refused(2, error)], 1]


def shut_down(harness: Harness) -> list[Json]:
    """Complete a requested shutdown. Return the messages to the agent."""
    while not os.path.exists("stopped.json"):
        if harness.loop.timers:
            harness.loop.run_timer()
        harness.reap_next()
    return harness.agent.received()


def test_a_shutdown_ends_all_processes_and_then_the_keeper() -> None:
    def act(harness: Harness) -> list[Any]:
        other = Agent(harness)
        harness.run()
        harness.create("y")
        harness.agent.send_request("exec", (0, 1, 2), container="x", argv=["sleep", "600"])
        other.received()
        first = [harness.agent.send_request("shutdown"), other.send_request("shutdown")]
        refusals = [
            harness.create("z")[0]["error"],
            harness.agent.send_request("start", container="y")[0]["error"],
            harness.agent.send_request("state")[0]["leaving"],
        ]
        received = shut_down(harness)
        timers = harness.loop.timers
        harness.loop.run_timer()
        about = [harness.jail.closed, harness.loop.stopped, harness.listener.fileno(), Path("stopped.json").read_text()]
        return [first, refusals, received, other.received(), timers, about]

    first, refusals, received, other, timers, about = with_keeper(act)
    assert first == [[{"event": "leaving"}], [{"event": "leaving"}]]
    assert refusals == ["the sandbox is being stopped", "the sandbox is being stopped", True]
    exited = event("exited", "exited", code=137)
    assert [each for each in received if each.get("id") != 4] == [exited, ok(5)]
    assert ok(4, code=137, timed_out=False) in received
    assert other == [exited, ok(1)]
    assert timers == [0]
    assert about == [1, True, -1, "{}"]


def test_a_shutdown_waits_for_a_removal_in_progress() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.create()
        harness.jail.gate, gate = os.pipe()
        harness.agent.send_request("remove", container="x")
        harness.jail.gate = -1
        harness.agent.send_request("shutdown")
        received = shut_down(harness)
        os.write(gate, b"!")
        return [received, harness.next_messages()]

    assert with_keeper(act) == [[ok(3)], [event("removed", "created"), ok(2)]]


def test_a_keeper_without_containers_ends_at_once() -> None:
    def act(harness: Harness) -> list[Any]:
        sent = harness.agent.send_request("shutdown")
        received = shut_down(harness)
        return [sent, received, harness.loop.timers]

    assert with_keeper(act) == [[{"event": "leaving"}], [ok(1)], [0]]


def test_a_keeper_with_unread_answers_ends_a_second_later() -> None:
    def act(harness: Harness) -> list[Any]:
        slow = Agent(harness)
        launch = Launch(argv=SLEEP, env=ENV).to_json()
        slow.send_request("create", container="x", launch=launch, facts={"text": "a" * 50_000})
        for number in range(12):
            slow.socket.send(encode({"id": number, "do": "state"}))
            harness.loop.readable[slow.file]()
        harness.agent.send_request("shutdown")
        shut_down(harness)
        return harness.loop.timers

    assert with_keeper(act) == [1.0]


def test_a_keeper_ends_if_the_pause_process_dies() -> None:
    def act(harness: Harness) -> list[Any]:
        pid = os.posix_spawnp("true", ("true",), ENV)
        harness.jail.pause_pid = pid
        harness.reap(pid)
        return [harness.agent.received(), shut_down(harness), harness.jail.closed]

    assert with_keeper(act) == [[{"event": "leaving"}], [], 1]


def test_a_new_connection_is_served() -> None:
    def act(harness: Harness) -> list[Any]:
        harness.loop.readable[harness.listener.fileno()]()  # no client connects
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.connect("keeper.sock")
        known = set(harness.loop.readable)
        harness.loop.readable[harness.listener.fileno()]()
        (file,) = set(harness.loop.readable) - known
        agent.send(encode({"id": 1, "do": "spare"}))
        harness.loop.readable[file]()
        return [json.loads(agent.recv(99))]

    assert with_keeper(act) == [ok(1)]


@pytest.mark.parametrize("command", [["true"], ["sleep", "600"]])
def test_an_unknown_child_is_reaped(command: list[str]) -> None:
    def act(harness: Harness) -> list[Any]:
        pid = os.posix_spawnp(command[0], command, ENV)
        if command == ["true"]:
            harness.reap(pid)
        harness.loop.signals[signal.SIGCHLD]()
        gone = not os.path.exists(f"/proc/{pid}")
        if not gone:
            os.kill(pid, signal.SIGKILL)
        return [gone, harness.agent.received()]

    assert with_keeper(act) == [command == ["true"], []]


def test_an_old_keeper_refuses_an_unknown_request() -> None:
    """A keeper may be older than its agent. If it refuses a log rotation, the agent undoes the rotation."""

    async def scenario() -> list[dict[str, Any]]:
        with temporary_root() as root:
            async with opened(root) as runtime:
                container = await RuntimeHarness(runtime).start("sleep", "3600")
                (place,) = Path(root).glob("sandboxes/*/keeper.sock")
                reader, writer = await asyncio.open_unix_connection(str(place))
                requests = [{"id": 1, "do": "no_such_request"}, {"id": 2, "do": "reopen_log", "container": container}]
                writer.writelines(json.dumps(each).encode() + b"\n" for each in requests)
                answers = [json.loads(await asyncio.wait_for(reader.readline(), 10)) for _ in requests]
                writer.close()
                await remove_all(runtime, root)
                return answers

    refused, done = asyncio.run(scenario())
    assert (refused["id"], refused["error"]) == (1, "unknown request: no_such_request")
    assert done == {"id": 2, "ok": {}}
