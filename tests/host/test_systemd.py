"""Talking with systemd: over the system bus as well as over its own socket, and with those who are no systemd."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from jeepney import DBusAddress, new_signal

from podkeeper.host.dbus import Connection, Refused, connected
from podkeeper.host.systemd import NoSystemd, Systemd
from podkeeper.ports.cgroups import Cgroups
from podkeeper.testing.contracts import name_of
from podkeeper.testing.contracts.cgroups import CGROUPS
from podkeeper.testing.contracts.contract import Scenario
from tests.host import systemd_scenes
from tests.host.booted import Booted

DAEMON = "/usr/bin/dbus-daemon"
SOCKET = """[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
"""
SERVICE = f"""[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
ExecStart={DAEMON} --config-file=/run/bus.conf --address=systemd: --nofork --nopidfile
"""
CONFIG = """<busconfig><type>system</type><listen>systemd:</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="*"/><allow receive_type="*"/></policy>
</busconfig>
"""


@pytest.fixture
def with_a_bus(systemd: Booted) -> Iterator[Booted]:
    """The same systemd, with a system bus beside it."""
    if not os.path.exists(DAEMON):
        pytest.skip("there is no dbus-daemon: install Debian's dbus-daemon")
    files = {
        "/run/systemd/system/dbus.socket": SOCKET,
        "/run/systemd/system/dbus.service": SERVICE,
        "/run/bus.conf": CONFIG,
    }
    for path, text in files.items():
        systemd.run("sh", "-c", 'mkdir -p "$(dirname "$1")"; printf %s "$2" >"$1"', "sh", path, text)
    systemd.run("systemctl", "daemon-reload")
    systemd.run("systemctl", "start", "dbus.service")
    systemd.play(systemd_scenes.systemd_is_on_the_bus)
    try:
        yield systemd
    finally:
        systemd.run("systemctl", "stop", "dbus.socket", "dbus.service")
        systemd.run("rm", *files)
        systemd.run("systemctl", "daemon-reload")


@pytest.mark.parametrize("scenario", CGROUPS.scenarios, ids=name_of)
def test_a_promise_is_kept_over_the_system_bus(with_a_bus: Booted, scenario: Scenario[Cgroups]) -> None:
    with_a_bus.play(systemd_scenes.promise_on_the_bus, scenario.__name__)


def test_the_bus_serves_where_systemds_own_socket_does_not(with_a_bus: Booted) -> None:
    with_a_bus.play(systemd_scenes.where_its_own_socket_is_closed_the_bus_serves)


def test_a_bus_may_be_restarted(with_a_bus: Booted) -> None:
    with_a_bus.play(systemd_scenes.a_bus_may_be_restarted)


def test_what_systemd_says_is_passed_on(systemd: Booted) -> None:
    systemd.play(systemd_scenes.what_systemd_says_is_passed_on)


# ---- no systemd ------------------------------------------------------------------------------


def test_who_is_not_there_is_named(tmp_path: Path) -> None:
    private, bus = str(tmp_path / "private"), str(tmp_path / "bus")
    with pytest.raises(NoSystemd, match=rf"cannot reach systemd: {private}: No such file or directory; {bus}: No such"):
        asyncio.run(Systemd.open(private, bus))


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talked(tmp_path: Path, talk: Talk, scenario: Callable[[str], Awaitable[None]]) -> None:
    """Let somebody talk on a socket while a scenario happens."""
    path = str(tmp_path / "s")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    async def whole() -> None:
        server = await asyncio.start_unix_server(answer, path)
        async with server:
            await scenario(path)

    asyncio.run(whole())


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"BEGIN\r\n")
    writer.write(b"OK 0123456789abcdef0123456789abcdef\r\n")
    await writer.drain()


async def to(path: str) -> Connection:
    return await connected(path, lambda signal, values: None, lambda: None)


WHERE = ("org.example", "/org/example", "org.example.It")


def test_who_turns_us_away_is_no_systemd(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"REJECTED EXTERNAL\r\n")
        await writer.drain()

    async def scenario(path: str) -> None:
        with pytest.raises(NoSystemd, match=r"Authentication failed.*REJECTED"):
            await Systemd.open(path, "")

    talked(tmp_path, talk, scenario)


def test_who_hangs_up_ends_every_call_and_those_after_it(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.read(1)

    async def scenario(path: str) -> None:
        connection = await to(path)
        with pytest.raises(ConnectionError):
            await connection.call(WHERE, "Do")
        with pytest.raises(ConnectionError, match="closed"):
            await connection.call(WHERE, "Do")
        assert not connection.is_open

    talked(tmp_path, talk, scenario)


def test_a_greeting_may_come_in_pieces_and_with_more_behind_it(tmp_path: Path) -> None:
    heard: list[tuple[str, tuple[str, ...]]] = []
    signal = new_signal(DBusAddress("/org/example", interface="org.example.It"), "Happened", "s", ("so it is",))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"BEGIN\r\n")
        writer.write(b"OK 0123")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"456789abcdef\r\n" + signal.serialise(1))
        await writer.drain()
        await reader.read()

    async def scenario(path: str) -> None:
        connection = await connected(path, lambda name, values: heard.append((name, values)), lambda: None)
        async with asyncio.timeout(10):
            while not heard:
                await asyncio.sleep(0.01)
        connection.close()

    talked(tmp_path, talk, scenario)
    assert heard == [("org.example.It.Happened", ("so it is",))]


def test_who_talks_nonsense_is_hung_up_on(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(b"what a nice day it is, is it not? " * 10)
        await writer.drain()

    async def scenario(path: str) -> None:
        with pytest.raises(ConnectionError):
            await (await to(path)).call(WHERE, "Do")

    talked(tmp_path, talk, scenario)


def test_refused_is_told_by_its_name() -> None:
    assert (Refused("org.example.No", "").name, str(Refused("org.example.No", ""))) == ("org.example.No",) * 2
    assert str(Refused("org.example.No", "not today")) == "not today"


def test_d_bus_is_imported_only_where_it_is_needed() -> None:
    code = "import sys, podkeeper.app.containers, podkeeper.app.cli.checkup; sys.exit('jeepney' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
