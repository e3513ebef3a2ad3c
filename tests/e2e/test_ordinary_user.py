"""An ordinary user runs pods: what it gets without root, through the command line and with a real agent."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machine import HAS_OTHER_USERS
from tests.e2e.scripts import LINGER, sh
from tests.e2e.somebody import Somebody, somebody

pytestmark = pytest.mark.slow

MARK = f"of-an-ordinary-user-{os.getpid()}"
NAP = f"4242.{os.getpid():07}"  # as long as nobody else's


@pytest.fixture
def ann() -> Iterator[Somebody]:
    """An ordinary user."""
    with somebody() as user:
        yield user


@pytest.fixture
def eve() -> Iterator[Somebody]:
    """An ordinary user with subordinate ids."""
    with somebody(has_subordinates=True) as user:
        yield user


def pod(name: str, container: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod of one container `app`."""
    spec.setdefault("terminationGracePeriodSeconds", 5)
    app = {"name": "app", "image": "host", **container}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [app], **spec}}


def told(kind: str, name: str, **data: str) -> dict[str, Any]:
    """A config map, or a secret."""
    field = "data" if kind == "ConfigMap" else "stringData"
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data}


def at(**paths: str) -> dict[str, Any]:
    """Where a container has its volumes, by their names."""
    return {"volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()]}


VOLUMES = [
    {"name": "settings", "configMap": {"name": "settings"}},
    {"name": "door", "secret": {"secretName": "door", "defaultMode": 0o400}},
    {"name": "disk", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
]


def test_a_pod_has_files_of_its_own_volumes_logs_and_commands_and_leaves_nothing(ann: Somebody) -> None:
    script = (
        f"echo private >/etc/{MARK}; cat /etc/{MARK} /settings/colour /door/key; echo; "
        "stat -f -c %T /door /memory; stat -L -c %a /door/key; touch /disk/x /memory/x; "
        f"trap 'echo asked >/home-of-ann/end; exit 0' TERM; {LINGER}"
    )
    host = {"name": "host", "hostPath": {"path": str(ann.home)}}
    mounts = at(settings="/settings", door="/door", disk="/disk", memory="/memory", host="/home-of-ann")
    probe = {"exec": {"command": ["test", "-f", f"/etc/{MARK}"]}, "periodSeconds": 1}
    ann.write(
        "web",
        told("ConfigMap", "settings", colour="green "),
        told("Secret", "door", key="sesame"),
        pod("web", {**sh(script), **mounts, "readinessProbe": probe}, volumes=[*VOLUMES, host]),
    )
    ann.start()
    ann.until(lambda: ann.is_ready("web"), "web is ready")

    assert ann.call("logs", "web").stdout.splitlines() == ["private", "green sesame", "tmpfs", "tmpfs", "400"]
    assert ann.call("exec", "web", "--", "id", "-u").stdout == "0\n"
    assert ann.call("exec", "web", "--", "sh", "-c", "exit 7").returncode == 7
    assert "web-n1" in ann.call("ps").stdout
    assert not Path(f"/etc/{MARK}").exists()
    assert len(ann.in_memory()) == 1

    assert ann.end(signal.SIGINT) == 0
    assert ann.said.splitlines()[-1] == "All pods have stopped."
    assert (ann.home / "end").read_text() == "asked\n"
    assert ann.in_memory() == []
    assert [*ann.root.glob("pods/*/volumes"), *ann.root.glob("runtime/sandboxes/*/containers/*/upper-*")] == []
    if os.geteuid() == 0:  # else there are others of ours
        ann.until(lambda: not ann.processes(), f"no processes are left of {ann.processes()}")


def test_an_agent_that_was_killed_finds_the_same_processes(ann: Somebody) -> None:
    def sleeper() -> list[int]:
        return [pid for pid, command in ann.processes().items() if command == f"sleep {NAP}"]

    ann.write("web", pod("web", {"command": ["sleep", NAP]}, terminationGracePeriodSeconds=1))
    ann.start()
    ann.until(lambda: ann.is_ready("web"), "web is ready")
    before = sleeper()
    assert len(before) == 1
    assert ann.end(signal.SIGKILL) == -signal.SIGKILL
    ann.start()
    ann.until(lambda: ann.is_ready("web"), "web is ready again")
    assert sleeper() == before
    assert ann.status("web")["containerStatuses"][0]["restartCount"] == 0
    assert ann.end(signal.SIGINT) == 0
    assert sleeper() == []


def test_a_job_that_failed_while_nobody_looked_is_told_with_its_exit_code(ann: Somebody) -> None:
    script = "until test -e /home-of-ann/go; do sleep 0.02; done; exit 9"
    host = {"name": "host", "hostPath": {"path": str(ann.home)}}
    ann.write("job", pod("job", {**sh(script), **at(host="/home-of-ann")}, volumes=[host], restartPolicy="Never"))
    ann.start("--once")
    ann.until(lambda: ann.status("job").get("phase") == "Running", "the job runs")
    ann.end(signal.SIGKILL)
    (ann.home / "go").touch()
    ann.start("--once")
    assert ann.agent is not None
    assert ann.agent.wait(30) == 1
    assert "exit code 9" in ann.said


def test_who_cannot_be_another_user_is_told_how_to_get_there(ann: Somebody) -> None:
    if os.geteuid() != 0 and HAS_OTHER_USERS:
        pytest.skip("who runs the tests has subordinate ids")
    ann.write("web", pod("web", {"command": ["id"]}, securityContext={"runAsUser": 1234}, restartPolicy="Never"))
    ann.start()
    ann.until(lambda: ann.status("web").get("phase") == "Failed", "web fails")
    end = ann.status("web")["containerStatuses"][0]["state"]["terminated"]
    assert end["reason"] == "StartError"
    assert "cannot run as user 1234" in end["message"]
    assert "/etc/subuid" in end["message"]
    ann.end(signal.SIGINT)


def test_with_subordinate_ids_containers_are_other_users_and_nothing_of_theirs_is_left(eve: Somebody) -> None:
    closed = "umask 077; mkdir -p /disk/a/b /memory/a; touch /disk/a/b/c /memory/a/b"
    script = f"id -u; id -G; cat /door/key; {closed}; echo; {LINGER}"
    context = {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456}
    mounts = at(door="/door", disk="/disk", memory="/memory")
    eve.write(
        "web",
        told("Secret", "door", key="sesame"),
        pod(
            "web",
            {**sh(script), **mounts},
            securityContext=context,
            volumes=VOLUMES[1:],
            terminationGracePeriodSeconds=1,
        ),
    )
    eve.start()
    eve.until(lambda: eve.is_ready("web"), "web is ready")
    eve.until(lambda: "sesame\n" in eve.call("logs", "web").stdout, "it has written all")
    assert eve.call("logs", "web").stdout.splitlines() == ["1234", "2345 3456", "sesame"]
    assert "users 0 to 65536" in eve.call("doctor").stdout
    assert eve.end(signal.SIGINT) == 0
    assert list(eve.root.glob("pods/*/volumes")) == []
    assert eve.in_memory() == []
    eve.until(lambda: not eve.processes(), f"no processes are left of {eve.processes()}")


def test_the_doctor_tells_an_ordinary_user_what_it_has(ann: Somebody) -> None:
    if os.geteuid() != 0:
        pytest.skip("who runs the tests may have more: subordinate ids, a part of the cgroup tree")
    found = ann.call("doctor")
    assert found.returncode == 0
    lines = [line.split(maxsplit=2) for line in found.stdout.splitlines() if not line.startswith(" ")]
    findings = {words[1]: (words[0], words[2]) for words in lines if len(words) == 3}
    assert findings["namespaces"] == ("ok", "each container has its own, inside a user namespace")
    assert findings["users"] == ("weak", "containers can only run as this user, which they see as root")
    assert findings["root"][1].startswith(str(ann.home / ".local" / "state" / "podkeeper"))
