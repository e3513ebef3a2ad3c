"""Pods of an ordinary user without root, through the command line and a real agent."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machine import HAS_OTHER_USERS
from tests.e2e.scripts import LINGER, sh
from tests.e2e.unprivileged_user import UnprivilegedUser, unprivileged_user
from tests.manifests import manifest

pytestmark = pytest.mark.slow

MARK = f"of-an-ordinary-user-{os.getpid()}"
NAP = f"4242.{os.getpid():07}"  # unique, to find the processes of this test


@pytest.fixture
def user() -> Iterator[UnprivilegedUser]:
    """An ordinary user without subordinate ids."""
    with unprivileged_user() as user:
        yield user


@pytest.fixture
def eve() -> Iterator[UnprivilegedUser]:
    """An ordinary user with subordinate ids."""
    with unprivileged_user(has_subordinates=True) as user:
        yield user


def config_object(kind: str, name: str, **data: str) -> dict[str, Any]:
    """Return the manifest of a config map or a secret."""
    field = "data" if kind == "ConfigMap" else "stringData"
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data}


def at(**paths: str) -> dict[str, Any]:
    """Return volume mounts; the keywords map volume names to paths."""
    return {"volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()]}


VOLUMES = [
    {"name": "settings", "configMap": {"name": "settings"}},
    {"name": "door", "secret": {"secretName": "door", "defaultMode": 0o400}},
    {"name": "disk", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
]


def test_files_volumes_logs_and_commands_work_and_nothing_is_left(user: UnprivilegedUser) -> None:
    script = (
        f"echo private >/etc/{MARK}; cat /etc/{MARK} /settings/colour /door/key; echo; "
        "stat -f -c %T /door /memory; stat -L -c %a /door/key; touch /disk/x /memory/x; "
        f"trap 'echo term >/home-of-user/end; exit 0' TERM; {LINGER}"
    )
    host = {"name": "host", "hostPath": {"path": str(user.home)}}
    mounts = at(settings="/settings", door="/door", disk="/disk", memory="/memory", host="/home-of-user")
    probe = {"exec": {"command": ["test", "-f", f"/etc/{MARK}"]}, "periodSeconds": 1}
    user.write(
        "web",
        config_object("ConfigMap", "settings", colour="green "),
        config_object("Secret", "door", key="sesame"),
        manifest(
            "web",
            {**sh(script), **mounts, "readinessProbe": probe},
            volumes=[*VOLUMES, host],
            terminationGracePeriodSeconds=5,
        ),
    )
    user.start()
    user.until(lambda: user.is_ready("web"), "web is ready")

    assert user.call("logs", "web").stdout.splitlines() == ["private", "green sesame", "tmpfs", "tmpfs", "400"]
    assert user.call("exec", "web", "--", "id", "-u").stdout == "0\n"
    assert user.call("exec", "web", "--", "sh", "-c", "exit 7").returncode == 7
    assert "web-n1" in user.call("ps").stdout
    assert not Path(f"/etc/{MARK}").exists()
    assert len(user.memory_directories()) == 1

    assert user.end(signal.SIGINT) == 0
    assert user.output.splitlines()[-1] == "All pods have stopped."
    assert (user.home / "end").read_text() == "term\n"
    assert user.memory_directories() == []
    assert [*user.root.glob("pods/*/volumes"), *user.root.glob("runtime/sandboxes/*/containers/*/upper-*")] == []
    if os.geteuid() == 0:  # otherwise the user has other processes
        user.until(lambda: not user.processes(), f"no processes are left of {user.processes()}")


def test_a_restarted_agent_adopts_the_same_processes(user: UnprivilegedUser) -> None:
    def sleeper() -> list[int]:
        return [pid for pid, command in user.processes().items() if command == f"sleep {NAP}"]

    user.write("web", manifest("web", {"command": ["sleep", NAP]}, terminationGracePeriodSeconds=1))
    user.start()
    user.until(lambda: user.is_ready("web"), "web is ready")
    before = sleeper()
    assert len(before) == 1
    assert user.end(signal.SIGKILL) == -signal.SIGKILL
    user.start()
    user.until(lambda: user.is_ready("web"), "web is ready again")
    assert sleeper() == before
    assert user.status("web")["containerStatuses"][0]["restartCount"] == 0
    assert user.end(signal.SIGINT) == 0
    assert sleeper() == []


def test_a_job_that_failed_while_no_agent_ran_is_reported_with_its_exit_code(user: UnprivilegedUser) -> None:
    script = "until test -e /home-of-user/go; do sleep 0.02; done; exit 9"
    host = {"name": "host", "hostPath": {"path": str(user.home)}}
    user.write(
        "job", manifest("job", {**sh(script), **at(host="/home-of-user")}, volumes=[host], restartPolicy="Never")
    )
    user.start("--once")
    user.until(lambda: user.status("job").get("phase") == "Running", "the job runs")
    user.end(signal.SIGKILL)
    (user.home / "go").touch()
    user.start("--once")
    assert user.agent is not None
    assert user.agent.wait(30) == 1
    assert "exit code 9" in user.output


def test_run_as_user_without_subordinate_ids_fails_with_instructions(user: UnprivilegedUser) -> None:
    if os.geteuid() != 0 and HAS_OTHER_USERS:
        pytest.skip("the user of the tests has subordinate ids")
    user.write("web", manifest("web", {"command": ["id"]}, securityContext={"runAsUser": 1234}, restartPolicy="Never"))
    user.start()
    user.until(lambda: user.status("web").get("phase") == "Failed", "web fails")
    end = user.status("web")["containerStatuses"][0]["state"]["terminated"]
    assert end["reason"] == "StartError"
    assert "cannot run as user 1234" in end["message"]
    assert "/etc/subuid" in end["message"]
    user.end(signal.SIGINT)


def test_with_subordinate_ids_containers_run_as_other_users_and_leave_nothing(eve: UnprivilegedUser) -> None:
    closed = "umask 077; mkdir -p /disk/a/b /memory/a; touch /disk/a/b/c /memory/a/b"
    script = f"id -u; id -G; cat /door/key; {closed}; echo; {LINGER}"
    context = {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456}
    mounts = at(door="/door", disk="/disk", memory="/memory")
    eve.write(
        "web",
        config_object("Secret", "door", key="sesame"),
        manifest(
            "web",
            {**sh(script), **mounts},
            securityContext=context,
            volumes=VOLUMES[1:],
            terminationGracePeriodSeconds=1,
        ),
    )
    eve.start()
    eve.until(lambda: eve.is_ready("web"), "web is ready")
    eve.until(lambda: "sesame\n" in eve.call("logs", "web").stdout, "it has written its log")
    assert eve.call("logs", "web").stdout.splitlines() == ["1234", "2345 3456", "sesame"]
    assert "users 0 to 65536" in eve.call("doctor").stdout
    assert eve.end(signal.SIGINT) == 0
    assert list(eve.root.glob("pods/*/volumes")) == []
    assert eve.memory_directories() == []
    eve.until(lambda: not eve.processes(), f"no processes are left of {eve.processes()}")


def test_doctor_reports_the_limits_of_an_ordinary_user(user: UnprivilegedUser) -> None:
    if os.geteuid() != 0:
        pytest.skip("the user of the tests may have subordinate ids or a delegated cgroup")
    found = user.call("doctor")
    assert found.returncode == 0
    lines = [line.split(maxsplit=2) for line in found.stdout.splitlines() if not line.startswith(" ")]
    findings = {words[1]: (words[0], words[2]) for words in lines if len(words) == 3}
    assert findings["namespaces"] == ("ok", "each container has its own, inside a user namespace")
    assert findings["users"] == ("weak", "containers can only run as this user, which they see as root")
    assert findings["root"][1].startswith(str(user.home / ".local" / "state" / "podkeeper"))
