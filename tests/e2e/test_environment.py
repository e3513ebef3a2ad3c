"""Process environment of containers: command, variables, working directory, standard input."""

from pathlib import Path

import pytest

from tests.e2e.backends import HOST_IP
from tests.e2e.node import NAMESPACE, NODE, Node, ScenarioRunner, pod
from tests.e2e.objects import config_map, secret
from tests.e2e.pod_queries import log_after_success, waiting_reason
from tests.e2e.runtime_kinds import crio_only, not_on_crio
from tests.e2e.scripts import Wire, sh

pytestmark = pytest.mark.slow

# Command and variables.

CASES: dict[str, tuple[Wire, str]] = {
    "args follow the command": (
        {"command": ["printf", "%s,"], "args": ["a", "b c", ""]},
        "a,b c,,",
    ),
    "without a command, args are the command": (
        {"command": None, "args": ["echo", "hello"]},
        "hello\n",
    ),
    "variables are expanded in command and args": (
        {"command": ["echo", "$(A)"], "args": ["$(B)-$(A)"], "env": [{"name": "A", "value": "1"}, {"name": "B"}]},
        "1 -1\n",
    ),
    "escaped and unknown variables are not expanded": (
        {"command": ["echo", "$$(A)", "$(NOBODY)", "$A"], "env": [{"name": "A", "value": "1"}]},
        "$(A) $(NOBODY) $A\n",
    ),
    "a variable can refer to earlier ones": (
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
    "a variable with two lines": (
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
    "single keys of a config map and of a secret": (
        {
            **sh('echo "$A, $B"'),
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
            ],
        },
        "green, open sesame\n",
    ),
    "optional references may be missing": (
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
    "a command is searched in the PATH of the container": (
        {
            "command": ["marker"],
            "env": [{"name": "PATH", "value": "/opt/tools"}],
            "volumeMounts": [{"name": "tools", "mountPath": "/opt/tools"}],
        },
        "from the volume\n",
    ),
    "standard input is empty without stdin": (
        sh('read line; echo "end $? [$line]"'),
        "end 1 []\n",
    ),
    "no terminal by default": (
        sh("test -t 0 || test -t 1 || echo none"),
        "none\n",
    ),
    "a terminal with tty": (
        {**sh('test -t 1 && echo "$TERM"'), "tty": True},
        "xterm\n",
    ),
    "standard error is in the log": (
        sh("echo bad >&2"),
        "bad\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields, expected", CASES.values(), ids=CASES.keys())
def test_command_environment_and_stdio(
    run_on_node: ScenarioRunner, fields: Wire, expected: str, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "settings", colour="green", size="large")
        config_map(node, "others", colour="red")
        config_map(node, "tools", marker="#!/bin/sh\necho from the volume\n")
        secret(node, "keys", password="open sesame")
        tools = {"name": "tools", "configMap": {"name": "tools", "defaultMode": 0o755}}
        node.create(pod("app", container=fields, restartPolicy="Never", volumes=[tools]))
        assert await log_after_success(node) == expected

    run_on_node(scenario, tmp_path)


def test_downward_api_variables(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
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
        lines = (await log_after_success(node, "web-1")).splitlines()
        shown = node.see("web-1").status
        assert lines == [
            "web-1", NAMESPACE, node.uid("web-1"), "front", "two words", NODE, "robot", shown.pod_ip, shown.host_ip
        ]  # fmt: skip
        assert shown.host_ip == HOST_IP

    run_on_node(scenario, tmp_path)


def test_without_limits_resource_fields_have_the_node_allocatable(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        env = [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}]
        node.create(pod("app", container={**sh('echo "$CPU"'), "env": env}, restartPolicy="Never"))
        assert int(await log_after_success(node)) >= 1000

    run_on_node(scenario, tmp_path)


def test_the_environment_of_the_agent_is_not_inherited(
    run_on_node: ScenarioRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_AGENT", "private")

    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("env",), restartPolicy="Never"))
        lines = dict(line.split("=", 1) for line in (await log_after_success(node)).splitlines())
        assert "OF_THE_AGENT" not in lines
        assert lines["HOSTNAME"] == "app"
        assert "/bin" in lines["PATH"].split(":")

    run_on_node(scenario, tmp_path)


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
def test_a_container_waits_for_missing_references(
    run_on_node: ScenarioRunner, fields: Wire, message: str, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        config_map(node, "here", other="1")
        secret(node, "here", other="1")
        node.create(pod("app", container={"command": ["true"], **fields}, restartPolicy="Never"))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert waiting.message == message
        assert node.phase("app") == "Pending"
        assert ("Warning", "Failed", f"Error: {message}") in node.events("app")

    run_on_node(scenario, tmp_path)


def test_a_container_starts_after_its_config_map_is_created(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('echo "$colour"'), "envFrom": [{"configMapRef": {"name": "later"}}]}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerConfigError")
        config_map(node, "later", colour="blue")
        assert await log_after_success(node) == "blue\n"

    run_on_node(scenario, tmp_path, retry_seconds=0.2)


# Commands that cannot start.


@not_on_crio
def test_a_missing_command_is_reported(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("no-such-program",), restartPolicy="Never"))
        await node.until_phase("app", "Failed")
        end = node.status("app").state.terminated
        assert end is not None
        assert (end.exit_code, end.reason) == (128, "StartError")
        assert 'exec: "no-such-program": executable file not found in $PATH' in (end.message or "")

    run_on_node(scenario, tmp_path)


@crio_only  # CRI-O resolves the command in CreateContainer, so there is no container
def test_crio_reports_a_missing_command_at_creation(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        node.create(pod("app", command=("no-such-program",), restartPolicy="Never"))
        await node.until(lambda: waiting_reason(node, "app") == "CreateContainerError")
        waiting = node.status("app").state.waiting
        assert waiting is not None
        assert "executable file `no-such-program` not found in $PATH" in (waiting.message or "")

    run_on_node(scenario, tmp_path)


# Standard input.


def test_attached_input_reaches_a_container_with_stdin(run_on_node: ScenarioRunner, tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        fields = {**sh('read line; echo "got $line"'), "stdin": True, "stdinOnce": True}
        node.create(pod("app", container=fields, restartPolicy="Never"))
        await node.until_ready("app")
        await node.type("app", "hello\n")
        assert await log_after_success(node) == "got hello\n"

    run_on_node(scenario, tmp_path)
