"""What a keeper does with requests: events, answers, refusals, and the end of everything it keeps."""

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
from podkeeper.runtimes.process.keeper.protocol import encode, send_with
from tests.runtimes.process.fake_jail import SLEEP, FakeJail, wait_for_end
from tests.runtimes.process.jailing import in_keeper
from tests.runtimes.process.manual_loop import ManualLoop

T = TypeVar("T")
ENV = {"PATH": "/usr/bin:/bin"}


class Agent:
    """One agent that is connected with the keeper."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.file = theirs.fileno()
        stage.keeper.welcome(theirs)
        self._numbers = 0

    def ask(self, do: str, files: tuple[int, ...] = (), **what: Any) -> list[Json]:
        """Ask something. Returns all that the keeper says to it at once."""
        self._numbers += 1
        send_with(self.socket, encode({"id": self._numbers, "do": do, **what, "fds": len(files)}), files)
        self._stage.loop.readable[self.file]()
        return self.heard()

    def heard(self) -> list[Json]:
        """What has come since the last look, in short."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return []
        return [_short(json.loads(line)) for line in data.splitlines()]

    def leave(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)  # a process that is just starting may hold a copy until its exec is done
        self.socket.close()
        self._stage.loop.readable[self.file]()


def _short(message: Json) -> Json:
    """A message without times and pids."""
    if "container" in message:
        about = message["container"]
        kept = {key: about[key] for key in ("id", "state", "code") if key in about}
        return {**message, "container": kept}
    return message


class Stage:
    """A keeper in a process of its own, in an empty directory, with an agent."""

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
        return self.agent.ask("create", container=container_id, launch=launch, facts={"name": "web"}, **config)

    def run(self, container_id: str = "x", argv: tuple[str, ...] = SLEEP, **config: Any) -> int:
        """Create and start a container. Returns its first process."""
        self.create(container_id, argv, **config)
        self.agent.ask("start", container=container_id)
        return self.jail.started[-1]

    def reap(self, *pids: int) -> None:
        """Wait for the end of processes, then let the keeper see it."""
        for pid in pids:
            wait_for_end(pid)
        self.loop.signals[signal.SIGCHLD]()

    def hear_next(self) -> list[Json]:
        """Let the keeper reap until the agent hears something."""
        while not (heard := self.agent.heard()):
            self.reap_next()
        return heard

    def reap_next(self) -> None:
        """Wait for the end of any child, then let the keeper see it."""
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        self.loop.signals[signal.SIGCHLD]()


def kept(act: Callable[[Stage], T]) -> T:
    """Do something with a keeper, in a forked process: it takes all children there are for its own."""

    def whole() -> T:
        with tempfile.TemporaryDirectory(prefix="podkeeper-keeper-") as home:
            os.chdir(home)
            stage = Stage()
            try:
                return act(stage)
            finally:
                stage.jail.end_all()
                os.chdir("/")

    return in_keeper(whole)


def ok(number: int, **value: Any) -> Json:
    return {"id": number, "ok": value}


def event(name: str, state: str, container_id: str = "x", **more: Any) -> Json:
    return {"event": name, "container": {"id": container_id, "state": state, **more}}


def refused(number: int, error: str, kind: str = "refused") -> Json:
    return {"id": number, "error": error, "kind": kind}


def test_events_come_before_the_answer_they_belong_to() -> None:
    def act(stage: Stage) -> list[Any]:
        other = Agent(stage)
        mine = [
            stage.agent.ask("state"),
            stage.create(),
            stage.create(),
            stage.agent.ask("start", container="x"),
            stage.agent.ask("start", container="x"),
        ]
        return [*mine, other.heard(), len(stage.jail.started)]

    assert kept(act) == [
        [{"event": "state", "containers": [], "leaving": False}, ok(1)],
        [event("created", "created"), ok(2)],
        [ok(3)],
        [event("started", "running"), ok(4)],
        [ok(5)],
        [event("created", "created"), event("started", "running")],
        1,
    ]


def test_the_state_is_all_containers_with_what_the_agent_gave_along() -> None:
    def act(stage: Stage) -> Json:
        stage.create()
        stage.create("y")
        return stage.agent.ask("state")[0]

    about = {"facts": {"name": "web"}, "state": "created"}
    assert kept(act)["containers"] == [{"id": "x", **about}, {"id": "y", **about}]


def test_what_cannot_be_done_is_refused_with_its_kind() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.create()
        stage.jail.refuse = "no such program"
        return [
            stage.agent.ask("start", container="x"),
            stage.agent.ask("start", container="y"),
            stage.agent.ask("stop", container="x"),
            stage.agent.ask("stop", container="x", grace="soon"),
            stage.agent.ask("reopen_log", container="x"),
            stage.agent.ask("dance"),
            stage.agent.ask("remove", container="y"),
            stage.agent.ask("kill_exec", request=99),
            stage.agent.ask("hang_up", request=99),
        ]

    assert kept(act) == [
        [event("exited", "exited", code=128), refused(2, "no such program", "launch")],
        [refused(3, "'y' is missing, or unknown", "unknown")],
        [refused(4, "'grace' is missing, or unknown", "unknown")],
        [refused(5, "could not convert string to float: 'soon'")],
        [refused(6, "it does not run")],
        [refused(7, "nobody here knows how to dance")],
        [ok(8)],
        [ok(9)],
        [ok(10)],
    ]


def test_a_stop_is_answered_when_the_container_has_exited() -> None:
    def act(stage: Stage) -> list[Any]:
        pid = stage.run()
        asked = stage.agent.ask("stop", container="x", grace=30)
        stage.reap(pid)
        return [asked, stage.loop.timers, stage.agent.heard(), stage.agent.ask("stop", container="x", grace=30)]

    assert kept(act) == [[], [], [event("exited", "exited", code=143), ok(3)], [ok(4)]]


def test_sparing_calls_off_every_deadline() -> None:
    def act(stage: Stage) -> list[Any]:
        for name in ("x", "y"):
            stage.run(name, ("sh", "-c", "trap '' TERM; read never"), stdin=True)
            stage.agent.ask("stop", container=name, grace=30)
        before = stage.loop.timers
        return [before, stage.agent.ask("spare"), stage.loop.timers]

    assert kept(act) == [[30, 30], [ok(7)], []]


def test_a_target_is_named_by_its_first_process() -> None:
    def act(stage: Stage) -> list[Any]:
        pid = stage.run()
        stage.run("debug", target="x")
        stage.create("lost", target="z")
        return [stage.jail.launched[1].beside == pid, stage.agent.ask("start", container="lost")[1]]

    why = "cannot see the processes of container z: it does not run"
    assert kept(act) == [True, refused(6, why, "launch")]


def test_a_command_is_answered_with_its_end() -> None:
    def act(stage: Stage) -> list[Any]:
        pid = stage.run()
        files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
        asked = stage.agent.ask("exec", tuple(files), container="x", argv=["sh", "-c", "exit 3"])
        for file in files:
            os.close(file)
        stage.reap(stage.jail.started[-1])
        ((entered, spec),) = stage.jail.entered
        return [asked, stage.agent.heard(), entered == pid, spec.argv, spec.tty, stage.loop.timers]

    end = ok(3, code=3, timed_out=False)
    assert kept(act) == [[], [end], True, ("sh", "-c", "exit 3"), False, []]


def test_a_command_that_takes_too_long_is_killed_and_that_is_told() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.run()
        stage.agent.ask("exec", (0, 1, 2), container="x", argv=["sleep", "600"], timeout=2.5)
        before = stage.loop.timers
        stage.loop.ring()
        stage.reap(stage.jail.started[-1])
        return [before, stage.agent.heard()]

    assert kept(act) == [[2.5], [ok(3, code=137, timed_out=True)]]


def test_a_command_can_be_killed_or_hung_up_on_by_its_number() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.run()
        found = []
        for way in ("kill_exec", "hang_up"):
            stage.agent.ask("exec", (0, 1, 2), container="x", argv=["sleep", "600"])
            number = 3 if way == "kill_exec" else 5
            answer = stage.agent.ask(way, request=number)
            timers = stage.loop.timers
            stage.reap(stage.jail.started[-1])
            found.append((answer, timers, stage.agent.heard(), stage.loop.timers))
        return found

    assert kept(act) == [
        ([ok(4)], [], [ok(3, code=137, timed_out=False)], []),
        ([ok(6)], [10.0], [ok(5, code=129, timed_out=False)], []),
    ]


def test_with_a_terminal_a_command_has_one_file_for_all_three() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.run()
        ours, theirs = socket.socketpair()
        stage.agent.ask("exec", (theirs.fileno(),), container="x", argv=["sh", "-c", "echo x; echo y >&2"], tty=True)
        theirs.close()
        stage.reap(stage.jail.started[-1])
        return [ours.recv(99), stage.jail.entered[0][1].tty, stage.agent.heard()]

    assert kept(act) == [b"x\ny\n", True, [ok(3, code=0, timed_out=False)]]


def test_a_command_with_the_wrong_number_of_files_is_refused() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.run()
        before = set(os.listdir("/proc/self/fd"))
        (answer,) = stage.agent.ask("exec", (0, 1), container="x", argv=["true"])
        return [answer["kind"], set(os.listdir("/proc/self/fd")) == before, len(stage.jail.entered)]

    assert kept(act) == ["refused", True, 0]


def test_when_an_agent_leaves_its_own_commands_are_hung_up_on() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.run()
        other = Agent(stage)
        for agent in (stage.agent, other):
            agent.ask("exec", (0, 1, 2), container="x", argv=["sleep", "600"])
        mine, its = stage.jail.started[1:]
        other.leave()
        stage.reap(its)
        alive = os.waitid(os.P_PID, mine, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        stage.create("y")
        return [alive, stage.agent.heard(), other.file in stage.loop.readable]

    assert kept(act) == [True, [], False]


def test_when_an_agent_leaves_nothing_is_sent_to_commands_that_have_ended() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.run()
        stage.agent.ask("exec", (0, 1, 2), container="x", argv=["true"])
        heard = stage.hear_next()
        stage.agent.leave()
        return [heard, stage.loop.timers]

    assert kept(act) == [[ok(3, code=0, timed_out=False)], []]


def test_who_attaches_gets_a_file_and_the_output() -> None:
    def act(stage: Stage) -> list[Any]:
        pid = stage.run(argv=("cat",), stdin=True)
        before = set(os.listdir("/proc/self/fd"))
        out, out_end = os.pipe()
        send_with(stage.agent.socket, encode({"id": 9, "do": "attach", "container": "x", "stdin": True}), ())
        stage.loop.readable[stage.agent.file]()
        data, files, _, _ = socket.recv_fds(stage.agent.socket, 4096, 4)
        os.write(files[0], b"hello")
        for file in (*files, out, out_end):
            os.close(file)
        left = set(os.listdir("/proc/self/fd")) == before
        os.kill(pid, signal.SIGKILL)
        return [json.loads(data), len(files), left]

    assert kept(act) == [{"id": 9, "ok": {"tty": False, "stdin": True, "once": False}, "fds": 1}, 1, True]


def test_a_removed_container_is_killed_and_nothing_is_left_of_it() -> None:
    def act(stage: Stage) -> list[Any]:
        pid = stage.run()
        asked = stage.agent.ask("remove", container="x")
        stage.loop.ring()
        stage.reap(pid)
        exited = stage.agent.heard()
        removed = stage.hear_next()
        return [asked, exited, removed, stage.agent.ask("state")[0]["containers"], os.listdir("containers")]

    asked, exited, removed, *left = kept(act)
    assert (asked, exited, left) == ([], [event("exited", "exited", code=137)], [[], []])
    assert removed == [event("removed", "exited", code=137), ok(3)]


def test_a_container_that_is_removed_twice_at_once_is_reported_once() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.create()
        heard = [*stage.agent.ask("remove", container="x"), *stage.agent.ask("remove", container="x")]
        while len(heard) < 3:
            stage.reap_next()
            heard += stage.agent.heard()
        return heard

    removed, *answers = kept(act)
    assert removed == event("removed", "created")
    assert sorted(answer["id"] for answer in answers) == [2, 3]
    assert [answer["ok"] for answer in answers] == [{}, {}]


@pytest.mark.parametrize("why", ["something is mounted", "the directory is a link"])
def test_files_that_cannot_be_deleted_keep_the_container(why: str) -> None:
    def act(stage: Stage) -> list[Any]:
        stage.create()
        if why == "something is mounted":
            stage.jail.refuse = why
        else:
            os.rename("containers/x", "elsewhere")
            os.symlink("../elsewhere", "containers/x")
        asked = stage.agent.ask("remove", container="x")
        return [asked, stage.hear_next(), len(stage.agent.ask("state")[0]["containers"])]

    assert kept(act) == [[], [refused(2, "cannot delete the files of container x")], 1]


def shut_down(stage: Stage) -> list[Json]:
    """See a shutdown through, after it was asked for. Returns what the agent is told."""
    while not os.path.exists("stopped.json"):
        if stage.loop.timers:
            stage.loop.ring()
        stage.reap_next()
    return stage.agent.heard()


def test_a_shutdown_ends_everything_and_then_the_keeper() -> None:
    def act(stage: Stage) -> list[Any]:
        other = Agent(stage)
        stage.run()
        stage.create("y")
        stage.agent.ask("exec", (0, 1, 2), container="x", argv=["sleep", "600"])
        other.heard()
        first = [stage.agent.ask("shutdown"), other.ask("shutdown")]
        refusals = [
            stage.create("z")[0]["error"],
            stage.agent.ask("start", container="y")[0]["error"],
            stage.agent.ask("state")[0]["leaving"],
        ]
        heard = shut_down(stage)
        timers = stage.loop.timers
        stage.loop.ring()
        about = [stage.jail.closed, stage.loop.stopped, stage.listener.fileno(), Path("stopped.json").read_text()]
        return [first, refusals, heard, other.heard(), timers, about]

    first, refusals, heard, other, timers, about = kept(act)
    assert first == [[{"event": "leaving"}], [{"event": "leaving"}]]
    assert refusals == ["the sandbox is being stopped", "the sandbox is being stopped", True]
    exited = event("exited", "exited", code=137)
    assert [each for each in heard if each.get("id") != 4] == [exited, ok(5)]
    assert ok(4, code=137, timed_out=False) in heard
    assert other == [exited, ok(1)]
    assert timers == [0]
    assert about == [1, True, -1, "{}"]


def test_a_shutdown_lets_a_removal_that_has_begun_finish() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.create()
        stage.jail.gate, gate = os.pipe()
        stage.agent.ask("remove", container="x")
        stage.jail.gate = -1
        stage.agent.ask("shutdown")
        heard = shut_down(stage)
        os.write(gate, b"!")
        return [heard, stage.hear_next()]

    assert kept(act) == [[ok(3)], [event("removed", "created"), ok(2)]]


def test_an_empty_keeper_goes_at_once() -> None:
    def act(stage: Stage) -> list[Any]:
        asked = stage.agent.ask("shutdown")
        heard = shut_down(stage)
        return [asked, heard, stage.loop.timers]

    assert kept(act) == [[{"event": "leaving"}], [ok(1)], [0]]


def test_a_keeper_with_unread_answers_waits_a_moment_before_it_goes() -> None:
    def act(stage: Stage) -> list[Any]:
        slow = Agent(stage)
        launch = Launch(argv=SLEEP, env=ENV).to_json()
        slow.ask("create", container="x", launch=launch, facts={"text": "a" * 50_000})
        for number in range(12):
            slow.socket.send(encode({"id": number, "do": "state"}))
            stage.loop.readable[slow.file]()
        stage.agent.ask("shutdown")
        shut_down(stage)
        return stage.loop.timers

    assert kept(act) == [1.0]


def test_when_the_pods_first_process_dies_the_keeper_goes() -> None:
    def act(stage: Stage) -> list[Any]:
        pid = os.posix_spawnp("true", ("true",), ENV)
        stage.jail.anchor = pid
        stage.reap(pid)
        return [stage.agent.heard(), shut_down(stage), stage.jail.closed]

    assert kept(act) == [[{"event": "leaving"}], [], 1]


def test_an_agent_that_connects_is_served() -> None:
    def act(stage: Stage) -> list[Any]:
        stage.loop.readable[stage.listener.fileno()]()  # nobody is there after all
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.connect("keeper.sock")
        known = set(stage.loop.readable)
        stage.loop.readable[stage.listener.fileno()]()
        (file,) = set(stage.loop.readable) - known
        agent.send(encode({"id": 1, "do": "spare"}))
        stage.loop.readable[file]()
        return [json.loads(agent.recv(99))]

    assert kept(act) == [ok(1)]


@pytest.mark.parametrize("command", [["true"], ["sleep", "600"]])
def test_a_process_that_nobody_knows_is_reaped_and_no_more(command: list[str]) -> None:
    def act(stage: Stage) -> list[Any]:
        pid = os.posix_spawnp(command[0], command, ENV)
        if command == ["true"]:
            stage.reap(pid)
        stage.loop.signals[signal.SIGCHLD]()
        gone = not os.path.exists(f"/proc/{pid}")
        if not gone:
            os.kill(pid, signal.SIGKILL)
        return [gone, stage.agent.heard()]

    assert kept(act) == [command == ["true"], []]
