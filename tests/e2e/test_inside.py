"""What a container finds when it wakes up: its command, variables, place, user, neighbours, and its last words."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from podkeeper.model.k8s.core import ConfigMap, Secret
from podkeeper.model.k8s.meta import ObjectMeta
from tests.e2e.node import HOST_IP, NAMESPACE, NODE, Node, on_a_node, pod
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be anybody else")


def config_map(name: str, data: Mapping[str, str]) -> ConfigMap:
    """A config map beside the pods."""
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=dict(data))


def secret(name: str, data: Mapping[str, str]) -> Secret:
    """A secret beside the pods."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return Secret(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=encoded)


async def said(node: Node, name: str = "app", container: str = "app") -> str:
    """What a container wrote, once its pod has succeeded."""
    await node.until_phase(name, "Succeeded")
    return node.log(name, container)


def waiting_reason(node: Node, name: str, container: str = "app") -> str:
    """Why a container does not run yet; empty: it does, or nothing is known."""
    found = node.find(name)
    if found is None or not found.status.container_statuses:
        return ""
    waiting = node.status(name, container).state.waiting
    return "" if waiting is None else waiting.reason or ""


# Command and variables.

TOLD: dict[str, tuple[Wire, str]] = {
    "args follow the command": (
        {"command": ["printf", "%s,"], "args": ["a", "b c", ""]},
        "a,b c,,",
    ),
    "without a command, args are the command": (
        {"command": None, "args": ["echo", "hello"]},
        "hello\n",
    ),
    "variables are put into command and args": (
        {"command": ["echo", "$(A)"], "args": ["$(B)-$(A)"], "env": [{"name": "A", "value": "1"}, {"name": "B"}]},
        "1 -1\n",
    ),
    "an escaped or unknown variable is left as it stands": (
        {"command": ["echo", "$$(A)", "$(NOBODY)", "$A"], "env": [{"name": "A", "value": "1"}]},
        "$(A) $(NOBODY) $A\n",
    ),
    "a variable may use those before it": (
        {
            **sh('echo "$B|$C"'),
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)2"},
                {"name": "C", "value": "$(D)"},
                {"name": "D", "value": "4"},
            ],
        },
        "12|$(D)\n",
    ),
    "a variable of two lines stays whole": (
        {**sh('echo "$A"'), "env": [{"name": "A", "value": "one\ntwo"}]},
        "one\ntwo\n",
    ),
    "a whole config map, with a prefix": (
        {**sh("env | grep ^X_ | sort"), "envFrom": [{"prefix": "X_", "configMapRef": {"name": "settings"}}]},
        "X_colour=green\nX_size=large\n",
    ),
    "a whole secret": (
        {**sh('echo "$password"'), "envFrom": [{"secretRef": {"name": "keys"}}]},
        "open sesame\n",
    ),
    "the last of two sources wins, and env wins over both": (
        {
            **sh('echo "$colour $size"'),
            "envFrom": [{"configMapRef": {"name": "settings"}}, {"configMapRef": {"name": "others"}}],
            "env": [{"name": "size", "value": "medium"}],
        },
        "red medium\n",
    ),
    "single keys of a config map and a secret": (
        {
            **sh('echo "$A, $B"'),
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
            ],
        },
        "green, open sesame\n",
    ),
    "what is optional may be missing": (
        {
            **sh('echo "${A-unset} ${B-unset}"'),
            "envFrom": [
                {"configMapRef": {"name": "nowhere", "optional": True}},
                {"secretRef": {"name": "nowhere", "optional": True}},
            ],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "nowhere", "key": "k", "optional": True}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "nothing", "optional": True}}},
            ],
        },
        "unset unset\n",
    ),
    "resources of the container itself": (
        {
            **sh('echo "$CPU $MEMORY $REQUEST"'),
            "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}},
            "env": [
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                {"name": "REQUEST", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
            ],
        },
        "2 64 250\n",
    ),
    "the working directory": (
        {"command": ["pwd"], "workingDir": "/usr/bin"},
        "/usr/bin\n",
    ),
    "a command is found in the PATH the container was given": (
        {
            "command": ["marker"],
            "env": [{"name": "PATH", "value": "/opt/tools"}],
            "volumeMounts": [{"name": "tools", "mountPath": "/opt/tools"}],
        },
        "from the volume\n",
    ),
    "without stdin there is nothing to read": (
        sh('read line; echo "end $? [$line]"'),
        "end 1 []\n",
    ),
    "no terminal unless asked for": (
        sh("test -t 0 || test -t 1 || echo none"),
        "none\n",
    ),
    "a terminal where asked for": (
        {**sh('test -t 1 && echo "$TERM"'), "tty": True},
        "xterm\n",
    ),
    "writing to the standard error is heard as well": (
        sh("echo bad >&2"),
        "bad\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields, expected", TOLD.values(), ids=TOLD.keys())
def test_a_container_is_told(fields: Wire, expected: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.api.put(config_map("settings", {"colour": "green", "size": "large"}))
        node.api.put(config_map("others", {"colour": "red"}))
        node.api.put(config_map("tools", {"marker": "#!/bin/sh\necho from the volume\n"}))
        node.api.put(secret("keys", {"password": "open sesame"}))
        tools = {"name": "tools", "configMap": {"name": "tools", "defaultMode": 0o755}}
        node.create(pod("app", container=fields, restartPolicy="Never", volumes=[tools]))
        assert await said(node) == expected

    on_a_node(scenario, tmp_path)


def test_a_container_is_told_about_its_pod_and_node(tmp_path: Path) -> None:
    paths = {
        "NAME": "metadata.name",
        "NAMESPACE": "metadata.namespace",
        "UID_": "metadata.uid",
        "LABEL": "metadata.labels['tier']",
        "NOTE": "metadata.annotations['example.com/note']",
        "NODE": "spec.nodeName",
        "ACCOUNT": "spec.serviceAccountName",
        "POD_IP": "status.podIP",
        "HOST_IP": "status.hostIP",
    }

    async def scenario(node: Node) -> None:
        env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]
        script = "".join(f'echo "${name}";' for name in paths)
        made = pod(
            "web-1",
            container={**sh(script), "env": env},
            restartPolicy="Never",
            labels={"tier": "front"},
            annotations={"example.com/note": "two words"},
            serviceAccountName="robot",
            automountServiceAccountToken=False,
        )
        node.create(made)
        told = (await said(node, "web-1")).splitlines()
        shown = node.see("web-1").status
        assert told == [
            "web-1", NAMESPACE, node.uid("web-1"), "front", "two words", NODE, "robot", shown.pod_ip, shown.host_ip
        ]  # fmt: skip
        assert shown.host_ip == HOST_IP

    on_a_node(scenario, tmp_path)


def test_without_limits_a_container_is_told_what_the_node_has(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        env = [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}]
        node.create(pod("app", container={**sh('echo "$CPU"'), "env": env}, restartPolicy="Never"))
        assert int(await said(node)) >= 1000

    on_a_node(scenario, tmp_path)


def test_the_environment_of_the_agent_stays_with_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_AGENT", "private")

    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("env",), restartPolicy="Never"))
        told = dict(line.split("=", 1) for line in (await said(node)).splitlines())
        assert "OF_THE_AGENT" not in told
        assert told["HOSTNAME"] == "app"
        assert "/usr/bin" in told["PATH"].split(":")

    on_a_node(scenario, tmp_path)


MISSING: dict[str, tuple[Wire, str]] = {
    "a config map": ({"envFrom": [{"configMapRef": {"name": "later"}}]}, 'configmap "later" not found'),
    "a secret": ({"envFrom": [{"secretRef": {"name": "later"}}]}, 'secret "later" not found'),
    "a key of a config map": (
        {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "here", "key": "later"}}}]},
        "couldn't find key later in ConfigMap default/here",
    ),
    "a key of a secret": (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "here", "key": "later"}}}]},
        "couldn't find key later in Secret default/here",
    ),
}


@pytest.mark.parametrize("fields, message", MISSING.values(), ids=MISSING.keys())
def test_a_container_waits_for_what_it_refers_to(fields: Wire, message: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.api.put(config_map("here", {"other": "1"}))
        node.api.put(secret("here", {"other": "1"}))
        node.create(pod("app", container={"command": ["true"], **fields}, restartPolicy="Never"))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert waiting.message == message
        assert node.phase("app") == "Pending"
        assert ("Warning", "Failed", f"Error: {message}") in node.events("app")

    on_a_node(scenario, tmp_path)


def test_a_container_starts_once_its_config_map_is_there(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('echo "$colour"'), "envFrom": [{"configMapRef": {"name": "later"}}]}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        node.api.put(config_map("later", {"colour": "blue"}))
        assert await said(node) == "blue\n"

    on_a_node(scenario, tmp_path, retry_seconds=0.2)


# What cannot start.


def test_a_command_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("no-such-program",), restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        end = node.status("app").state.terminated
        assert end is not None
        assert (end.exit_code, end.reason) == (128, "StartError")
        assert 'exec: "no-such-program": executable file not found in $PATH' in (end.message or "")

    on_a_node(scenario, tmp_path)


def test_root_is_refused_where_the_pod_says_so(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", securityContext={"runAsNonRoot": True, "runAsUser": 0}))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert "breaks non-root policy" in (waiting.message or "")

    on_a_node(scenario, tmp_path)


# Standard input.


def test_what_is_typed_reaches_a_container_that_listens(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('read line; echo "got $line"'), "stdin": True, "stdinOnce": True}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_ready("app")
        await node.type("app", "hello\n")
        assert await said(node) == "got hello\n"

    on_a_node(scenario, tmp_path)


# Who it is, and what it may.

IDENTITIES: dict[str, tuple[Wire, Wire, str]] = {
    "root unless said otherwise": ({}, {}, "0 0"),
    "the pod's user and group": ({"runAsUser": 1234, "runAsGroup": 2345}, {}, "1234 2345"),
    "the container's own before the pod's": (
        {"runAsUser": 1234, "runAsGroup": 2345}, {"runAsUser": 4321}, "4321 2345"
    ),
    "a user nobody knows is of the group of root": ({"runAsUser": 1234}, {}, "1234 0"),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize("shared, own, expected", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_a_container_runs_as(shared: Wire, own: Wire, expected: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('echo "$(id -u) $(id -g)"'), "securityContext": own}
        node.create(pod("app", container=fields, securityContext=shared, restartPolicy="Never"))
        assert await said(node) == f"{expected}\n"

    on_a_node(scenario, tmp_path)


@needs_root
def test_a_container_has_the_groups_of_its_pod(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        context = {"runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [3001, 3002], "fsGroup": 4000}
        node.create(pod("app", command=("id", "-G"), securityContext=context, restartPolicy="Never"))
        assert {"2345", "3001", "3002", "4000"} == set((await said(node)).split())

    on_a_node(scenario, tmp_path)


CHOWN, NET_ADMIN, SYS_ADMIN = 1 << 0, 1 << 12, 1 << 21

CAPABILITIES: dict[str, tuple[Wire, int, int]] = {
    "the usual ones": ({}, CHOWN, NET_ADMIN | SYS_ADMIN),
    "none, all being dropped": ({"capabilities": {"drop": ["ALL"]}}, 0, (1 << 40) - 1),
    "only the one that is added": (
        {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}, NET_ADMIN, ((1 << 40) - 1) & ~NET_ADMIN,
    ),
    "one less": ({"capabilities": {"drop": ["CHOWN"]}}, 1 << 3, CHOWN),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize("context, held, lacking", CAPABILITIES.values(), ids=CAPABILITIES.keys())
def test_a_container_has_the_capabilities(context: Wire, held: int, lacking: int, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {"command": ["grep", "CapEff", "/proc/self/status"], "securityContext": context}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        effective = int((await said(node)).split()[1], 16)
        assert effective & held == held
        assert effective & lacking == 0

    on_a_node(scenario, tmp_path)


@needs_root
def test_a_dropped_capability_is_missed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh("touch /tmp/f && chown 5 /tmp/f"), "securityContext": {"capabilities": {"drop": ["CHOWN"]}}}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert "not permitted" in node.log("app")

    on_a_node(scenario, tmp_path)


@pytest.mark.parametrize(
    "allowed, flag", [(False, "1"), (True, "0")], ids=["no new ones where forbidden", "new ones otherwise"]
)
def test_privileges_can_be_gained(allowed: bool, flag: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            "command": ["grep", "NoNewPrivs", "/proc/self/status"],
            "securityContext": {"allowPrivilegeEscalation": allowed},
        }
        node.create(pod("app", container=fields, restartPolicy="Never"))
        assert (await said(node)).split() == ["NoNewPrivs:", flag]

    on_a_node(scenario, tmp_path)


# Its files.


def test_a_read_only_root_leaves_volumes_writable(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {
            **sh(
                "touch /etc/new /usr/new 2>/dev/null; ls /etc/new /usr/new 2>/dev/null; touch /scratch/new && echo ok"
            ),
            "securityContext": {"readOnlyRootFilesystem": True},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }
        node.create(pod("app", container=fields, restartPolicy="Never", volumes=[{"name": "scratch", "emptyDir": {}}]))
        assert await said(node) == "ok\n"

    on_a_node(scenario, tmp_path)


def test_what_a_container_writes_is_its_own(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(
            pod(
                "app",
                restartPolicy="Never",
                initContainers=[{"name": "first", "image": "host", **sh("echo 1 >/etc/of-a-pod; cat /etc/of-a-pod")}],
                container=sh("cat /etc/of-a-pod || echo nothing"),
            )
        )
        await node.until_phase("app", "Succeeded")
        assert node.log("app", "first") == "1\n"
        assert node.log("app").endswith("nothing\n")
        assert not Path("/etc/of-a-pod").exists()

    on_a_node(scenario, tmp_path)


def test_a_restarted_container_begins_with_clean_files(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        script = "test -e /etc/of-a-pod && echo old; touch /etc/of-a-pod; echo end; exit 1"
        node.create(pod("app", container=sh(script)))
        await node.until(lambda: "end" in node.log("app", attempt=1))
        assert node.log("app", attempt=1) == "end\n"

    on_a_node(scenario, tmp_path)


# Its neighbours.

HOSTNAMES: dict[str, tuple[str, Wire, str]] = {
    "its pod's name": ("web-1", {}, "web-1"),
    "the name its pod asks for": ("web-1", {"hostname": "front"}, "front"),
    "the first 63 letters of a long name": ("w" * 70, {}, "w" * 63),
}


@pytest.mark.parametrize("name, spec, expected", HOSTNAMES.values(), ids=HOSTNAMES.keys())
def test_the_host_of_a_container_is_called(name: str, spec: Wire, expected: str, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod(name, command=("uname", "-n"), restartPolicy="Never", **spec))
        assert await said(node, name) == f"{expected}\n"

    on_a_node(scenario, tmp_path)


def test_a_container_sees_only_its_own_processes(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        other = {"name": "other", "image": "host", "command": ["sleep", "987"]}
        looking = {"name": "app", "image": "host", **sh('echo "I am $$$$"; exec sleep 654')}
        node.create(pod("app", containers=[looking, other]))
        await node.until_ready("app")
        await node.until(lambda: node.log("app") == "I am 1\n")
        seen = await node.exec("app", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"sleep 654" in seen.output
        assert b"sleep 987" not in seen.output

    on_a_node(scenario, tmp_path)


def test_containers_that_share_processes_see_each_other(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        other = {"name": "other", "image": "host", "command": ["sleep", "987"]}
        looking = {"name": "app", "image": "host", "command": ["sleep", "654"]}
        node.create(pod("app", containers=[looking, other], shareProcessNamespace=True))
        await node.until_ready("app")
        seen = await node.exec("app", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"sleep 654" in seen.output
        assert b"sleep 987" in seen.output
        assert str(os.getpid()).encode() not in (await node.exec("app", "ls", "/proc")).output.split()

    on_a_node(scenario, tmp_path)


def test_one_container_may_signal_another_where_processes_are_shared(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        target = {"name": "app", "image": "host", **sh("trap 'exit 7' USR1; while :; do sleep 0.02; done")}
        script = "while ! grep -ls 'exit[ ]7' /proc/[0-9]*/cmdline; do sleep 0.05; done; sleep 0.1; "
        script += "kill -USR1 $(grep -ls 'exit[ ]7' /proc/[0-9]*/cmdline | cut -d/ -f3)"
        sender = {"name": "sender", "image": "host", **sh(script)}
        node.create(pod("app", containers=[target, sender], shareProcessNamespace=True, restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        assert (node.exit_code("app"), node.exit_code("app", "sender")) == (7, 0)

    on_a_node(scenario, tmp_path)


def test_a_pod_of_the_hosts_processes_sees_them_all(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("cat", f"/proc/{os.getpid()}/comm"), hostPID=True, restartPolicy="Never"))
        assert await said(node) == Path("/proc/self/comm").read_text()

    on_a_node(scenario, tmp_path)


@pytest.mark.parametrize("shared", [True, False], ids=["the host's where asked for", "their own otherwise"])
def test_messages_and_semaphores_are(shared: bool, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("readlink", "/proc/self/ns/ipc"), hostIPC=shared, restartPolicy="Never"))
        assert ((await said(node)).strip() == os.readlink("/proc/self/ns/ipc")) is shared

    on_a_node(scenario, tmp_path)


# Last words.

LAST_WORDS: dict[str, tuple[Wire, int, str | None]] = {
    "what it wrote into its file": (sh("echo -n bye >/dev/termination-log"), 0, "bye"),
    "what it wrote into the file of its choice": (
        {**sh("echo -n bye >/tmp/words"), "terminationMessagePath": "/tmp/words"}, 0, "bye"
    ),
    "the file, also when it fails": (sh("echo -n sorry >/dev/termination-log; exit 3"), 3, "sorry"),
    "nothing, when it wrote nothing": (sh("echo in the log; exit 3"), 3, None),
    "the end of its log, if it fails and asked for that": (
        {**sh("echo one; echo two >&2; exit 3"), "terminationMessagePolicy": "FallbackToLogsOnError"}, 3, "one\ntwo\n"
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
def test_the_last_words_of_a_container_are(fields: Wire, code: int, expected: str | None, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until(lambda: node.phase("app") in ("Succeeded", "Failed"))
        end = node.status("app").state.terminated
        assert end is not None
        assert end.exit_code == code
        assert end.message == expected

    on_a_node(scenario, tmp_path)
