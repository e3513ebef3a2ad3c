"""The local API over a real socket: what there is, what is said when it is not, and stopping pods."""

import socket
import stat
from pathlib import Path

import pytest

from podkeeper.app.local.client import TABLE_ACCEPTED, AskingFailed, LocalClient, NobodyAnswers
from podkeeper.app.local.server import SocketInUse, listen
from podkeeper.model.errors import BadInput
from tests.app.local.house import House, pod


def test_pods_are_listed_as_kubernetes_lists_them(it: House) -> None:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web") == "Running")
    found = it.client.get("pods")
    assert (found["apiVersion"], found["kind"]) == ("v1", "PodList")
    (listed,) = found["items"]
    assert listed["metadata"]["name"] == "web-n1"
    assert listed["metadata"]["creationTimestamp"]
    assert listed["status"]["phase"] == "Running"
    assert listed["status"]["containerStatuses"][0]["ready"] is True


def test_who_accepts_a_table_gets_one(it: House) -> None:
    it.write("web.yaml", pod("web"))
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
def test_a_pod_is_found_by_each_of_its_names(it: House, parts: tuple[str, ...]) -> None:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web"))
    found = it.client.get("pods", *parts)
    assert (found["kind"], found["metadata"]["name"]) == ("Pod", "web-n1")


def test_a_name_that_is_in_two_namespaces_must_be_said_with_one(it: House) -> None:
    it.write("both.yaml", pod("web"), pod("web", namespace="other"))
    it.until(lambda: len(it.client.get("pods")["items"]) == 2)
    with pytest.raises(AskingFailed, match="default/web-n1, other/web-n1") as refused:
        it.client.get("pods", "web")
    assert refused.value.code == 409
    assert it.client.get("pods", "other", "web")["metadata"]["namespace"] == "other"


def test_an_unknown_pod_is_reported_with_similar_names(it: House) -> None:
    it.write("web.yaml", pod("web"), pod("worker"))
    it.until(lambda: len(it.client.get("pods")["items"]) == 2)
    with pytest.raises(AskingFailed, match="'wbe' not found; did you mean: web") as refused:
        it.client.get("pods", "wbe")
    assert refused.value.code == 404


def test_events_and_explanation_are_told(it: House) -> None:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web") == "Running")
    events = it.client.get("events", "default", "web")["items"]
    assert {"Pulled", "Created", "Started"} <= {event["reason"] for event in events}
    assert events[0]["involvedObject"]["name"] == "web-n1"
    assert events == it.client.get("events")["items"]
    explained = it.client.get("explain", "default", "web")
    assert explained["state"] == "syncing"
    assert any(entry["what"] == "moved" for entry in explained["timeline"])


def test_the_agent_says_who_it_is_and_how_it_is(it: House) -> None:
    assert it.client.get("info")["node"] == "n1"
    it.until(lambda: it.client.text("healthz") == "ok")


def test_what_is_not_there_is_said_in_a_status(it: House) -> None:
    with pytest.raises(AskingFailed, match="cannot GET /nothing") as refused:
        it.client.get("nothing")
    assert refused.value.code == 404


def test_a_stopped_pod_stays_stopped_until_it_is_started(it: House) -> None:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web") == "Running")
    it.client.post("stop", "default", "web")
    it.until(lambda: it.status("web") == "Stopped")
    assert it.agent.manager.pods() == ()
    it.write("other.yaml", pod("other"))  # the source speaks again, and names it again
    it.until(lambda: it.status("other") == "Running")
    assert it.status("web") == "Stopped"
    it.client.post("start", "default", "web")
    it.until(lambda: it.status("web") == "Running")


def test_a_stopped_pod_whose_manifest_changes_runs_again(it: House) -> None:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web") == "Running")
    it.client.post("stop", "default", "web")
    it.until(lambda: it.status("web") == "Stopped")
    it.write("web.yaml", pod("web", grace=7))
    it.until(lambda: it.status("web") == "Running")


def test_a_pod_that_is_being_stopped_is_terminating_and_a_shorter_grace_ends_it(it: House) -> None:
    it.write("slow.yaml", pod("slow", lives={"app": {"term_seconds": None}}, grace=60))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow", gracePeriodSeconds=1)
    assert it.status("slow") == "Terminating"
    assert it.pod("slow")["metadata"]["deletionGracePeriodSeconds"] == 1
    it.until(lambda: it.status("slow") == "Stopped", within=10)


def test_a_pod_that_is_being_stopped_can_be_hurried(it: House) -> None:
    it.write("slow.yaml", pod("slow", lives={"app": {"term_seconds": None}}, grace=600))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow")
    it.until(lambda: it.agent.manager.pods() == ())
    assert it.pod("slow")["metadata"]["deletionGracePeriodSeconds"] == 600
    it.client.post("stop", "default", "slow", gracePeriodSeconds=1)
    assert it.pod("slow")["metadata"]["deletionGracePeriodSeconds"] in (1, 2)
    it.until(lambda: it.status("slow") == "Stopped", within=10)


def test_a_pod_that_was_stopped_starts_at_once_and_as_if_it_had_never_run(it: House) -> None:
    it.write("web.yaml", pod("web"))
    it.until(lambda: it.status("web") == "Running")
    it.client.post("stop", "default", "web")
    it.until(lambda: it.status("web") == "Stopped", within=1.5)
    it.client.post("start", "default", "web")
    it.until(lambda: it.status("web") == "Running", within=1.0)
    (status,) = it.pod("web")["status"]["containerStatuses"]
    assert (status["restartCount"], status["lastState"]) == (0, {})


def test_a_pod_that_is_started_while_it_is_being_stopped_starts_once_it_has_ended(it: House) -> None:
    it.write("slow.yaml", pod("slow", lives={"app": {"term_seconds": 0.4}}))
    it.until(lambda: it.status("slow") == "Running")
    it.client.post("stop", "default", "slow")
    it.client.post("start", "default", "slow")
    assert it.status("slow") == "Terminating"
    it.until(lambda: it.status("slow") == "Running", within=2.0)
    assert it.pod("slow")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_job_that_is_stopped_and_started_runs_again(it: House) -> None:
    it.write("job.yaml", pod("job", lives={"app": {"after_seconds": 0.1}}, policy="Never"))
    it.until(lambda: it.status("job") == "Completed")
    before = it.pod("job")["status"]["containerStatuses"][0]["containerID"]
    it.client.post("stop", "default", "job")
    it.until(lambda: it.status("job") == "Stopped")
    it.client.post("start", "default", "job")
    it.until(lambda: it.status("job") == "Completed")
    assert it.pod("job")["status"]["containerStatuses"][0]["containerID"] != before


def test_a_pod_whose_manifest_goes_is_terminating_and_then_gone(it: House) -> None:
    it.write("slow.yaml", pod("slow", lives={"app": {"term_seconds": 0.5}}))
    it.until(lambda: it.status("slow") == "Running")
    (it.manifests / "slow.yaml").unlink()
    it.until(lambda: it.status("slow") == "Terminating")
    it.until(lambda: it.status("slow") == "")


# ---- the socket ----


def test_only_its_owner_may_open_the_socket_and_it_goes_with_the_agent(it: House) -> None:
    assert stat.S_IMODE(it.socket.stat().st_mode) == 0o600


def test_where_nobody_listens_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(NobodyAnswers, match=str(tmp_path)):
        LocalClient(tmp_path / "none.sock").get("pods")


def test_the_socket_of_a_dead_agent_is_swept_away(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listen(path):
        assert stat.S_ISSOCK(path.stat().st_mode)


def test_the_socket_of_a_living_agent_and_other_files_are_left_alone(it: House, tmp_path: Path) -> None:
    with pytest.raises(SocketInUse, match="another agent"):
        listen(it.socket)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SocketInUse, match="is not a socket"):
        listen(tmp_path / "file")
    with pytest.raises(BadInput, match="use a shorter path"):
        listen(tmp_path / ("x" * 120))
    assert (tmp_path / "file").read_text() == "precious"


def test_a_socket_where_none_can_be_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(BadInput, match=r"cannot listen on .*: Not a directory; use another path with --socket"):
        listen(tmp_path / "file" / "x" / "s")
