"""The local API over a real socket: queries, errors, stopping and starting pods."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from podkeeper.app.local.client import TABLE_ACCEPTED, AgentNotRunning, LocalClient, RequestFailed
from podkeeper.app.local.server import SocketInUse, listen
from podkeeper.model.errors import BadInput
from tests.app.local.harness import Harness, manifest


def test_pods_are_a_pod_list(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    found = it.client.get("pods")
    assert (found["apiVersion"], found["kind"]) == ("v1", "PodList")
    (listed,) = found["items"]
    assert listed["metadata"]["name"] == "web-n1"
    assert listed["metadata"]["creationTimestamp"]
    assert listed["status"]["phase"] == "Running"
    assert listed["status"]["containerStatuses"][0]["ready"] is True


def test_pods_are_a_table_if_the_client_accepts_one(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    found = it.client.get("pods", accept=TABLE_ACCEPTED)
    assert (found["apiVersion"], found["kind"]) == ("meta.k8s.io/v1", "Table")
    assert [column["name"] for column in found["columnDefinitions"]][:5] == [
        "Pod",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    assert found["rows"][0]["cells"][:4] == ["web-n1", "1/1", "Running", "0"]


@pytest.mark.parametrize("parts", [("web",), ("web-n1",), ("default", "web"), ("default", "web-n1")])
def test_a_pod_is_found_by_each_of_its_names(it: Harness, parts: tuple[str, ...]) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web"))
    found = it.client.get("pods", *parts)
    assert (found["kind"], found["metadata"]["name"]) == ("Pod", "web-n1")


def test_a_name_in_two_namespaces_needs_a_namespace(it: Harness) -> None:
    it.write("both.yaml", manifest("web"), manifest("web", namespace="other"))
    it.until(lambda: len(it.client.get("pods")["items"]) == 2)
    with pytest.raises(RequestFailed, match="default/web-n1, other/web-n1") as refused:
        it.client.get("pods", "web")
    assert refused.value.code == 409
    assert it.client.get("pods", "other", "web")["metadata"]["namespace"] == "other"


def test_an_unknown_pod_is_reported_with_similar_names(it: Harness) -> None:
    it.write("web.yaml", manifest("web"), manifest("worker"))
    it.until(lambda: len(it.client.get("pods")["items"]) == 2)
    with pytest.raises(RequestFailed, match="'wbe' not found; did you mean: web") as refused:
        it.client.get("pods", "wbe")
    assert refused.value.code == 404


def test_events_and_explanation(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    events = it.client.get("events", "default", "web")["items"]
    assert {"Pulled", "Created", "Started"} <= {event["reason"] for event in events}
    assert events[0]["involvedObject"]["name"] == "web-n1"
    assert events == it.client.get("events")["items"]
    explained = it.client.get("explain", "default", "web")
    assert explained["state"] == "syncing"
    assert any(entry["what"] == "moved" for entry in explained["timeline"])


def test_info_and_health(it: Harness) -> None:
    assert it.client.get("info")["node"] == "n1"
    it.until(lambda: it.client.text("healthz") == "ok")


def test_an_unknown_path_is_a_status_with_code_404(it: Harness) -> None:
    with pytest.raises(RequestFailed, match="cannot GET /nothing") as refused:
        it.client.get("nothing")
    assert refused.value.code == 404


def test_a_stopped_pod_stays_stopped_until_it_is_started(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    it.client.post("stop", "default", "web")
    it.until(lambda: it.status("web") == "Stopped")
    assert it.agent.engine.manager.pods() == ()
    it.write("other.yaml", manifest("other"))  # the source sends all pods again, including web
    it.until(lambda: it.status("other") == "Running")
    assert it.status("web") == "Stopped"
    it.client.post("start", "default", "web")
    it.until(lambda: it.status("web") == "Running")


def test_a_stopped_pod_whose_manifest_changes_runs_again(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    it.client.post("stop", "default", "web")
    it.until(lambda: it.status("web") == "Stopped")
    it.write("web.yaml", manifest("web", grace=7))
    it.until(lambda: it.status("web") == "Running")


def test_a_stop_with_a_grace_period_shortens_the_termination(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": None}}, grace=60))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow", gracePeriodSeconds=1)
    assert it.status("slow") == "Terminating"
    assert it.pod("slow")["metadata"]["deletionGracePeriodSeconds"] == 1
    it.until(lambda: it.status("slow") == "Stopped", within=10)


def test_a_stop_with_a_grace_period_of_0_kills_at_once(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": None}}, grace=600))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow", gracePeriodSeconds=0)
    it.until(lambda: it.status("slow") == "Stopped", within=10)


def test_a_second_stop_shortens_the_grace_period(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": None}}, grace=600))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow")
    it.until(lambda: it.agent.engine.manager.pods() == ())
    assert it.pod("slow")["metadata"]["deletionGracePeriodSeconds"] == 600
    it.client.post("stop", "default", "slow", gracePeriodSeconds=1)
    assert it.pod("slow")["metadata"]["deletionGracePeriodSeconds"] in (1, 2)
    it.until(lambda: it.status("slow") == "Stopped", within=10)


def test_a_stopped_pod_starts_at_once_and_from_scratch(it: Harness) -> None:
    it.write("web.yaml", manifest("web"))
    it.until(lambda: it.status("web") == "Running")
    it.client.post("stop", "default", "web")
    it.until(lambda: it.status("web") == "Stopped", within=1.5)
    it.client.post("start", "default", "web")
    it.until(lambda: it.status("web") == "Running", within=1.0)
    (status,) = it.pod("web")["status"]["containerStatuses"]
    assert (status["restartCount"], status["lastState"]) == (0, {})


def test_a_terminating_pod_that_is_started_starts_after_its_end(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": 0.4}}))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow")
    it.client.post("start", "default", "slow")
    assert it.status("slow") == "Terminating"
    it.until(lambda: it.status("slow") == "Running", within=2.0)
    assert it.pod("slow")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_job_that_is_stopped_and_started_runs_again(it: Harness) -> None:
    it.write("job.yaml", manifest("job", lives={"app": {"after_seconds": 0.1}}, policy="Never"))
    it.until(lambda: it.status("job") == "Completed")
    before = it.pod("job")["status"]["containerStatuses"][0]["containerID"]
    it.client.post("stop", "default", "job")
    it.until(lambda: it.status("job") == "Stopped")
    it.client.post("start", "default", "job")
    it.until(lambda: it.status("job") == "Completed")
    assert it.pod("job")["status"]["containerStatuses"][0]["containerID"] != before


def test_a_pod_whose_manifest_is_removed_terminates_and_is_removed(it: Harness) -> None:
    it.write("slow.yaml", manifest("slow", lives={"app": {"term_seconds": 0.5}}))
    it.until(lambda: it.status("slow") == "Running")
    (it.manifests / "slow.yaml").unlink()
    it.until(lambda: it.status("slow") == "Terminating")
    it.until(lambda: it.status("slow") == "")


# ---- the socket ----


def test_only_its_owner_may_open_the_socket(it: Harness) -> None:
    assert stat.S_IMODE(it.socket.stat().st_mode) == 0o600


def test_listening_restores_the_umask_and_closes_the_socket_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        listen(tmp_path / "s").close()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    opened = len(os.listdir("/proc/self/fd"))
    refused = OSError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(socket.socket, "listen", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(BadInput, match="Permission denied") as error:
        listen(tmp_path / "t")
    assert len(os.listdir("/proc/self/fd")) == opened
    del error  # not before, because its traceback keeps the socket from being collected and closed


def test_a_socket_without_an_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentNotRunning, match=str(tmp_path)):
        LocalClient(tmp_path / "none.sock").get("pods")


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listen(path):
        assert stat.S_ISSOCK(path.stat().st_mode)


def test_the_socket_of_a_running_agent_and_other_files_are_not_replaced(it: Harness, tmp_path: Path) -> None:
    with pytest.raises(SocketInUse, match="another agent"):
        listen(it.socket)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SocketInUse, match="is not a socket"):
        listen(tmp_path / "file")
    with pytest.raises(BadInput, match="use a shorter path"):
        listen(tmp_path / ("x" * 120))
    assert (tmp_path / "file").read_text() == "precious"


def test_a_path_that_cannot_be_a_socket_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(BadInput, match=r"cannot listen on .*: Not a directory; use another path with --socket"):
        listen(tmp_path / "file" / "x" / "s")
