"""Talking with systemd, played inside of a booted one (`tests/host/booted.py`): what it says, and the system bus."""

import asyncio
from typing import Any

import pytest

from podkeeper.host.systemd import BUS_SOCKET, NoSystemd, Systemd
from podkeeper.model.errors import TryLater
from podkeeper.testing.contracts.cgroups import CGROUPS
from tests.host.pods import BURSTABLE, GUARANTEED, uid_of
from tests.host.slice_stage import stage, systemctl


async def systemd_is_on_the_bus() -> None:
    """Systemd comes to a new bus a moment after that is there."""
    async with asyncio.timeout(10):
        while True:
            try:
                await (await Systemd.open("", BUS_SOCKET)).close()
                return
            except NoSystemd:
                await asyncio.sleep(0.02)


async def promise_on_the_bus(name: str) -> None:
    """The same for somebody whom systemd's own socket is closed to."""
    (scenario,) = (each for each in CGROUPS.scenarios if each.__name__ == name)
    async with stage(private="", bus=BUS_SOCKET) as here:
        await scenario(here.slices)


async def a_bus_may_be_restarted() -> None:
    async with stage(private="", bus=BUS_SOCKET) as here:
        await here.slices.ensure(BURSTABLE)
        await asyncio.to_thread(systemctl, "restart", "dbus.service")
        await here.slices.ensure(GUARANTEED)
        assert await here.slices.list_pods() == {uid_of(BURSTABLE), uid_of(GUARANTEED)}


async def where_its_own_socket_is_closed_the_bus_serves() -> None:
    async with stage(private="/nowhere/private", bus=BUS_SOCKET) as here:
        await here.slices.ensure(BURSTABLE)
        assert await here.slices.list_pods() == {uid_of(BURSTABLE)}


async def what_systemd_says_is_passed_on() -> None:
    systemd = await Systemd.open(bus="")
    try:
        assert systemd.version >= 200
        assert not await systemd.is_active("unknown.slice")
        await systemd.stop("unknown.slice")
        for unit, properties, words in (
            ("no-suffix", [], "cannot start no-suffix: systemd says: Invalid unit name"),
            ("bad.slice", [("MemoryMax", ("s", "much"))], "cannot start bad.slice: systemd says: "),
            ("bad.slice", [("NoSuchThing", ("b", True))], "cannot start bad.slice: systemd says: .*NoSuchThing"),
        ):
            told: Any = properties
            with pytest.raises(TryLater, match=words):
                await systemd.start_transient(unit, told)
        with pytest.raises(TryLater, match=r"cannot change bad\.slice: systemd says: "):
            await systemd.set_properties("bad.slice", [("NoSuchThing", ("b", True))])
        with pytest.raises(TryLater, match=r"cannot start unknown\.service: systemd says: .*not found"):
            await systemd.start("unknown.service")
    finally:
        await systemd.close()
