"""The commands that send requests to an agent, with a running agent on a real socket."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from podkeeper.app.cli import COMMANDS, main
from tests.app.local.harness import Harness, append, is_open, manifest
from tests.app.local.test_logs import line

CRASH = {"app": {"after_seconds": 0.1, "exit_code": 2}}


def test_ps_shows_status_and_reason(it: Harness) -> None:
    it.write("pods.yaml", manifest("web"), manifest("crash", lives=CRASH))
    it.until(lambda: it.status("web") == "Running" and it.status("crash") == "CrashLoopBackOff")
    result = it.call("ps")
    heading, crash, web = result.output.splitlines()
    assert heading.split() == ["POD", "READY", "STATUS", "RESTARTS", "AGE", "WHY"]
    assert crash.split()[:3] == ["crash-n1", "0/1", "CrashLoopBackOff"]
    assert "last exit code 2" in crash
    assert web.split()[:4] == ["web-n1", "1/1", "Running", "0"]
    wide = it.call("ps", "-o", "wide").output
    assert "READINESS GATES" in wide
    assert json.loads(it.call("ps", "-o", "json").output)["items"][1]["metadata"]["name"] == "web-n1"
    assert yaml.safe_load(it.call("ps", "-o", "yaml").output)["kind"] == "PodList"


def test_ps_selects_pods_by_full_name_and_manifest_name(it: Harness) -> None:
    it.write("pods.yaml", manifest("web"), manifest("job"), manifest("other"), manifest("far", namespace="away"))
    it.until(lambda: it.status("web") == it.status("other") == "Running")
    lines = it.call("ps", "web", "job-n1").output.splitlines()
    assert [line.split()[0] for line in lines] == ["POD", "job-n1", "web-n1"]
    assert it.call("ps", "-o", "name", "web", "far").output == "web-n1\nfar-n1\n"
    assert [each["metadata"]["name"] for each in json.loads(it.call("ps", "-o", "json", "web").output)["items"]] == [
        "web-n1"
    ]
    assert it.call("ps", "away/far").output.splitlines()[1].startswith("away/far-n1")
    wrong = it.call("ps", "wep")
    assert (wrong.exit_code, "did you mean: web?" in wrong.output) == (1, True)


def test_ps_without_pods(it: Harness) -> None:
    assert "No pods" in it.call("ps").output


def test_logs_of_one_container_are_unchanged(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    it.log("web").write_bytes(line("one") + line("two", 1))
    assert it.call("logs", "web").output == "one\ntwo\n"
    assert it.call("logs", "web", "app", "--tail", "1", "--timestamps").output == "2026-11-15T10:00:01.000000000Z two\n"
    assert it.call("logs", "web", "--since", "1m").output == ""
    assert it.call("logs", "web", "--prefix").output == "[app] one\n[app] two\n"
    assert "e.g. 5s, 2m" in it.call("logs", "web", "--since", "soon").output
    reason = 'sinceTime: Invalid value: "soon": must be a time in RFC 3339 format'
    assert reason in it.call("logs", "web", "--since-time", "soon").output


def test_logs_of_several_containers_have_prefixes(it: Harness) -> None:
    it.write(
        "pair.yaml",
        manifest("pair", "one", "two", policy="Never"),
    )
    it.until(lambda: it.status("pair") == "Running")
    it.log("pair", "one").write_bytes(line("a"))
    it.log("pair", "two").write_bytes(line("b"))
    assert it.call("logs", "pair").output == "[one] a\n[two] b\n"
    assert it.call("logs", "pair", "-c", "two").output == "b\n"
    assert it.call("logs", "pair", "--no-prefix").output == "a\nb\n"
    it.end("pair", "one")
    it.end("pair", "two")
    followed = it.call("logs", "pair", "-f").output  # until both have exited
    assert sorted(followed.splitlines()) == ["[one] a", "[two] b"]


def test_missing_logs_are_reported(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    result = it.call("logs", "web", "-p")
    assert result.exit_code == 1
    assert 'previous terminated container "app"' in result.output
    assert "container ap not found in pod web-n1; it has: app" in it.call("logs", "web", "-c", "ap").output


def test_exec_returns_output_and_exit_status(it: Harness) -> None:
    it.write(
        "web.yaml", manifest("web", lives={"app": {"exec": [{"output": "hi\n", "exit_code": 5, "command": "greet"}]}})
    )
    it.until(lambda: it.status("web") == "Running")
    result = it.call("exec", "web", "-c", "app", "--", "greet", "-x", "--", "you")
    assert (result.exit_code, result.output) == (5, "hi\n")
    assert it.call("exec", "web", "--", "true").exit_code == 0
    refused = it.call("exec", "-it", "web", "--", "sh")
    assert refused.exit_code == 1
    assert "Unable to use a TTY" in refused.output
    assert "cannot use stdin or a TTY" in refused.output


def test_attach_prints_new_output(it: Harness) -> None:
    it.write("web.yaml", manifest("web", policy="Never"))
    it.until(lambda: it.status("web") == "Running")
    log = it.log("web")
    log.write_bytes(line("before"))

    def write_and_exit() -> None:
        it.until(lambda: is_open(log))
        append(log, line("now"))
        it.end("web")

    living = threading.Thread(target=write_and_exit)
    living.start()
    result = it.call("attach", "web")
    living.join()
    assert (result.exit_code, result.output) == (0, "now\n")


def test_stop_waits_and_start_starts_the_pod_again(it: Harness) -> None:
    it.write("pods.yaml", manifest("web", lives={"app": {"term_seconds": 0.5}}), manifest("other"))
    it.until(lambda: it.status("web") == it.status("other") == "Running")
    result = it.call("stop", "web")
    assert result.exit_code == 0
    assert "web-n1 stopped. To start it again, run 'podkeeper start web-n1' or change its manifest." in result.output
    assert (it.status("web"), it.status("other")) == ("Stopped", "Running")
    assert "'podkeeper start web-n1'" in it.call("ps").output
    assert it.call("start", "web", "other").output == "web-n1 started.\nother-n1 was not stopped.\n"
    assert it.stop_filter.stopped() == {}


def test_start_of_a_stopping_pod(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": 1.0}}))
    it.until(lambda: it.status("slow") == "Running")
    it.call("stop", "slow", "--no-wait")
    assert "; then it is started again" not in it.call("ps").output
    assert it.call("start", "slow").output == "slow-n1 is still stopping. It starts again after that.\n"
    assert "; then it is started again" in it.call("ps").output
    it.until(lambda: it.status("slow") == "Running")


def test_stop_force_does_not_wait_for_the_grace_period(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": None}}, grace=600))
    it.until(lambda: it.status("slow") == "Running")
    assert "slow-n1 stopped." in it.call("stop", "--force", "slow").output
    assert it.status("slow") == "Stopped"


def test_stop_stops_no_pod_if_one_name_is_wrong(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    result = it.call("stop", "web", "wep")
    assert result.exit_code == 1
    assert "pod 'wep' not found; did you mean: web?" in result.output
    assert it.status("web") == "Running"


def test_stop_without_waiting(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": None}}, grace=60))
    it.until(lambda: it.status("slow") == "Running")
    assert "slow-n1 is stopping." in it.call("stop", "slow", "--no-wait", "--grace-period", "1").output
    assert it.status("slow") == "Terminating"


def test_describe_prints_details_and_events(it: Harness) -> None:
    it.write("crash.yaml", manifest("crash", lives=CRASH), manifest("web"))
    it.until(lambda: it.status("crash") == "CrashLoopBackOff")
    result = it.call("describe", "crash", "web")
    lines = result.output.splitlines()
    assert lines[0].split() == ["Name:", "crash-n1"]
    assert "      Reason:       CrashLoopBackOff" in lines
    assert any("Back-off restarting failed container app" in each for each in lines)
    assert any(each.split() == ["Name:", "web-n1"] for each in lines)


def test_explain_shows_state_reason_next_sync_and_timeline(it: Harness) -> None:
    it.write("crash.yaml", manifest("crash", lives=CRASH))
    it.until(lambda: it.status("crash") == "CrashLoopBackOff")
    result = it.call("explain", "crash")
    assert "pod default/crash-n1" in result.output
    assert "status       CrashLoopBackOff, ready 0/1, restarts 1" in result.output
    assert "why          app: CrashLoopBackOff, last exit code 2, next sync in" in result.output
    assert "state        syncing for 0s: starts and restarts containers according to the spec" in result.output
    assert "waiting for  cannot start container app" in result.output
    assert (
        "container    app: waiting (CrashLoopBackOff); last state: terminated (Error), exit code 2, at 20"
        in result.output
    )
    assert "next sync    in" in result.output
    assert "timeline of crash-n1" in result.output
    assert "unknown -> syncing" in result.output
    assert json.loads(it.call("explain", "crash", "--json").output)["state"] == "syncing"


def test_without_an_agent_the_error_names_the_command_that_starts_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["ps", "--socket", str(tmp_path / "none.sock")])
    assert result.exit_code == 1
    assert f"no agent is running at {tmp_path / 'none.sock'}" in result.output
    assert "podkeeper run PATH..." in result.output
    elsewhere = CliRunner().invoke(main, ["ps", "--root", str(tmp_path / "root")])
    assert str(tmp_path / "root" / "podkeeper.sock") in elsewhere.output


def test_the_environment_selects_the_socket(it: Harness) -> None:
    result = CliRunner().invoke(main, ["ps"], env={"PODKEEPER_SOCKET": str(it.socket)})
    assert (result.exit_code, "No pods" in result.output) == (0, True)


def test_doctor_reports_all_checks() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    for part in ("python", "namespaces", "overlay", "users", "cgroups", "containerd", "kubectl", "agent"):
        assert part in result.output
    assert "This machine can run pods" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_PODKEEPER_COMPLETE" in result.output


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("podkeeper lo", "plain,logs"),
        ("podkeeper logs w", "plain,web-n1"),
        ("podkeeper ps web-n1 o", "plain,other-n1"),
        ("podkeeper logs web -c t", "plain,two"),
        ("podkeeper logs absent -c t", ""),
    ],
)
def test_completion_of_commands_and_of_pods_and_containers_of_the_selected_agent(
    it: Harness, typed: str, expected: str
) -> None:
    it.write("web.yaml", manifest("web", "one", "two"), manifest("other"))
    it.until(lambda: it.status("web") == "Running")
    words = typed.split(" ")
    if len(words) > 2:
        words[2:2] = ["--socket", str(it.socket)]
    variables = {
        "_PODKEEPER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    answer = subprocess.run(
        [sys.executable, "-c", "from podkeeper.app.cli import main; main(prog_name='podkeeper')"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert answer.stdout.strip() == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert (result.exit_code, result.output.startswith("Usage:")) == (0, True)


def test_ps_imports_no_slow_module(it: Harness) -> None:
    script = (
        "import sys; sys.argv = ['podkeeper', 'ps']\n"
        "from podkeeper.app.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'aiohttp', 'asyncio', 'msgspec', 'rich', 'yaml', 'podkeeper.engine'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PODKEEPER_SOCKET": str(it.socket)},
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert result.stdout.splitlines()[-1] == "[]"
