"""The parts of a standalone agent: the effect of the kubelet configuration, and errors."""

import asyncio
import ipaddress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from podkeeper.app.sources import stored_manifests
from podkeeper.app.standalone import AgentParts, AlreadyRunning, Standalone, host_ip, open_agent_parts
from podkeeper.journal.file import FileJournal
from podkeeper.model.errors import AgentError, BadInput
from podkeeper.model.kubelet_config import CrashLoopBackOffConfig, Duration, KubeletConfiguration
from podkeeper.model.messages import FILE_SOURCE, HTTP_SOURCE
from podkeeper.rules.logs.rotation import RotationPolicy as LogPolicy
from podkeeper.rules.static.pod import FromURL
from podkeeper.sources.manifest_content import ManifestReader

URL = "http://127.0.0.1:1/pods"


def parts_of(wanted: Standalone) -> AgentParts:
    async def open_parts() -> AgentParts:
        async with open_agent_parts(wanted) as parts:
            return parts

    return asyncio.run(open_parts())


def fake(root: Path, config: KubeletConfiguration | None = None, runtime: str = "fake") -> Standalone:
    return Standalone(paths=(), root=root, node_name="n1", runtime=runtime, config=config or KubeletConfiguration())


def test_the_defaults_without_a_configuration(tmp_path: Path) -> None:
    parts = parts_of(fake(tmp_path / "r"))
    assert (parts.ports.runtime.name, [source.name for source in parts.ports.sources]) == ("fake", ["file"])
    assert parts.settings.node_name == "n1"
    assert (parts.settings.node.status.allocatable or {})["pods"] == "110"
    assert parts.settings.log_root == str(tmp_path / "r" / "logs")
    assert parts.settings.restart_curve.maximum == timedelta(minutes=5)
    assert parts.problems() == ()


def test_the_configuration_is_applied(tmp_path: Path) -> None:
    config = KubeletConfiguration(
        static_pod_url=URL,
        max_pods=7,
        pod_logs_dir="/elsewhere",
        sync_frequency=Duration("30s"),
        crash_loop_back_off=CrashLoopBackOffConfig(max_container_restart_period=Duration("4s")),
    )
    parts = parts_of(fake(tmp_path / "r", config))
    assert [source.name for source in parts.ports.sources] == ["file", "http"]
    assert (parts.settings.node.status.allocatable or {})["pods"] == "7"
    assert parts.settings.log_root == "/elsewhere"
    assert parts.settings.timing.resync_seconds == 30
    curve = parts.settings.restart_curve
    assert (curve.initial, curve.maximum) == (timedelta(seconds=4), timedelta(seconds=4))


@pytest.mark.parametrize("keep_secrets", [False, True])
def test_manifests_are_stored_and_secrets_only_with_keep_secrets(tmp_path: Path, keep_secrets: bool) -> None:
    (tmp_path / "all.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app, image: host}]}\n---\n"
        "apiVersion: v1\nkind: Secret\nmetadata: {name: word}\ndata: {word: aHVzaA==}\n"
    )

    async def live() -> bytes:
        wanted = Standalone(
            paths=(tmp_path / "all.yaml",),
            root=tmp_path / "r",
            node_name="n1",
            runtime="fake",
            keep_secrets=keep_secrets,
        )
        async with open_agent_parts(wanted) as parts, asyncio.timeout(10):
            sent = asyncio.Event()
            source, journal = parts.ports.sources[0], parts.ports.journal
            running = asyncio.create_task(source.run(lambda update: sent.set()))
            await sent.wait()
            running.cancel()
            assert journal is not None
            return b"".join(journal.load().values())

    checkpoints = asyncio.run(live())
    assert b"web-n1" in checkpoints
    assert (b"aHVzaA==" in checkpoints) is keep_secrets


@pytest.mark.parametrize(
    "url, kept",
    [pytest.param(None, ["file"], id="not configured"), pytest.param(URL, ["file", "http"], id="configured")],
)
def test_manifests_of_a_source_that_is_not_configured_are_removed_from_the_disk(
    tmp_path: Path, url: str | None, kept: list[str]
) -> None:
    path = tmp_path / "journal"
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: word}\ndata: {word: aHVzaA==}\n"
    items = ManifestReader("n1", has_store=True).read(secret.encode(), FromURL(URL), URL).items

    async def former() -> None:
        journal = FileJournal.open(path)
        for source in (FILE_SOURCE, HTTP_SOURCE):
            stored_manifests(journal, source, "n1", keep_secrets=True).save({URL: items})
        journal.put("other/http", b"a note of something else")
        await journal.close()

    async def present() -> list[str]:
        config = KubeletConfiguration(static_pod_url=url)
        async with open_agent_parts(replace(fake(tmp_path, config, "process"), keep_secrets=True)) as parts:
            assert path.read_bytes().count(b"aHVzaA==") == len(kept)  # not only after the journal is closed
            assert parts.ports.journal is not None
            return sorted(key.rpartition("/")[0] for key in parts.ports.journal.load())

    asyncio.run(former())
    assert path.read_bytes().count(b"aHVzaA==") == 2
    assert asyncio.run(present()) == [*(f"manifest/{source}" for source in kept), "other"]


LOGS: dict[str, tuple[KubeletConfiguration, LogPolicy]] = {
    "as usual": (KubeletConfiguration(), LogPolicy(10 * 2**20, 5, 1, 10.0)),
    "all of it": (
        KubeletConfiguration(
            container_log_max_size="1500k",
            container_log_max_files=3,
            container_log_max_workers=4,
            container_log_monitor_interval=Duration("1m30s"),
        ),
        LogPolicy(1_500_000, 3, 4, 90.0),
    ),
    "never": (KubeletConfiguration(container_log_max_size="-1"), LogPolicy(max_bytes=None)),
    "no interval is the default": (
        KubeletConfiguration(container_log_monitor_interval=Duration("0s")),
        LogPolicy(),
    ),
}


@pytest.mark.parametrize("config, expected", LOGS.values(), ids=LOGS.keys())
def test_the_policy_of_log_rotation(tmp_path: Path, config: KubeletConfiguration, expected: LogPolicy) -> None:
    assert parts_of(fake(tmp_path / "r", config)).settings.log_policy == expected


def test_all_invalid_log_settings_are_reported(tmp_path: Path) -> None:
    config = KubeletConfiguration(
        container_log_max_size="much",
        container_log_max_files=1,
        container_log_max_workers=0,
        container_log_monitor_interval=Duration("-3s"),
    )
    with pytest.raises(BadInput) as refused:
        parts_of(fake(tmp_path / "r", config))
    assert {problem.field for problem in refused.value.problems} == {
        *("containerLogMaxSize", "containerLogMaxFiles", "containerLogMaxWorkers", "containerLogMonitorInterval"),
    }


def test_logs_are_rotated_except_with_the_fake_runtime(tmp_path: Path) -> None:
    assert parts_of(fake(tmp_path / "r")).ports.log_files is None
    config = KubeletConfiguration(pod_logs_dir=str(tmp_path / "logs"))
    assert parts_of(fake(tmp_path / "s", config, runtime="process")).ports.log_files is not None


def test_a_root_is_locked_by_one_agent_and_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_agent_parts(fake(tmp_path / "r")):
            with pytest.raises(AlreadyRunning, match="another agent uses the root"):
                async with open_agent_parts(fake(tmp_path / "r")):
                    pass
        async with open_agent_parts(fake(tmp_path / "r")):
            pass

    asyncio.run(scenario())


REFUSALS = {
    "an unknown runtime": ("podman", "r", "supported runtimes: process, cri, fake"),
    "a root that is a file": ("fake", "file", "use another root with --root"),
}


@pytest.mark.parametrize("runtime, root, message", REFUSALS.values(), ids=REFUSALS.keys())
def test_invalid_options_are_rejected(tmp_path: Path, runtime: str, root: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=message):
        parts_of(fake(tmp_path / root, runtime=runtime))


def test_the_machine_has_an_address() -> None:
    assert ipaddress.ip_address(host_ip()).version in (4, 6)
