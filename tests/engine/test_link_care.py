"""The care for links to logs: what was missed is made, what is dead goes."""

import asyncio
from collections.abc import Sequence

from podkeeper.engine.link_care import LinkCare
from podkeeper.model.errors import TryLater
from podkeeper.model.runtime import ContainerRecord, ContainerState, PodRecord
from podkeeper.rules.log_links import LogLink
from podkeeper.testing.virtual_time import simulate


class Links:
    """Links in a dictionary, each with whether it leads somewhere."""

    def __init__(self, **there: bool) -> None:
        self.there = {f"{name}.log": alive for name, alive in there.items()}

    async def survey(self) -> dict[str, bool]:
        return dict(self.there)

    async def make(self, links: Sequence[LogLink]) -> None:
        self.there |= {link.name: True for link in links}

    async def remove(self, names: Sequence[str]) -> None:
        for name in names:
            del self.there[name]


class Runtime:
    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.failures = 0

    async def list_pods(self) -> Sequence[PodRecord]:
        if self.failures:
            self.failures -= 1
            raise TryLater("cannot list: not now")
        containers = tuple(ContainerRecord(id=each, name="c", state=ContainerState.RUNNING) for each in self.ids)
        return [PodRecord(uid="u", name="p", namespace="ns", containers=containers)]


def test_a_look_makes_what_is_missing_and_removes_what_is_dead() -> None:
    links = Links(old=False, kept=True, **{"p_ns_c-b": False})

    async def scenario() -> None:
        await LinkCare(runtime=Runtime("a", "b"), links=links, log_root="/logs").look()

    simulate(scenario())
    assert links.there == {"kept.log": True, "p_ns_c-a.log": True, "p_ns_c-b.log": False}


def test_what_fails_is_tried_again_a_minute_later() -> None:
    links, runtime = Links(), Runtime("a")
    runtime.failures = 1

    async def scenario() -> None:
        care = asyncio.create_task(LinkCare(runtime=runtime, links=links, log_root="/logs").run())
        await asyncio.sleep(59)
        assert links.there == {}
        await asyncio.sleep(2)
        assert links.there == {"p_ns_c-a.log": True}
        care.cancel()

    simulate(scenario())


def test_links_are_seen_before_the_runtime_is_listed() -> None:
    """A dead link whose container is not in the list belongs to no container."""
    order: list[str] = []

    class Watched(Links):
        async def survey(self) -> dict[str, bool]:
            order.append("survey")
            return await super().survey()

        async def make(self, links: Sequence[LogLink]) -> None:
            order.append(f"make {links[0].log}")

        async def remove(self, names: Sequence[str]) -> None:
            order.append(f"remove {' '.join(names)}")

    class WatchedRuntime(Runtime):
        async def list_pods(self) -> Sequence[PodRecord]:
            order.append("list")
            return await super().list_pods()

    async def scenario() -> None:
        links = Watched(old=False)
        await LinkCare(runtime=WatchedRuntime("a"), links=links, log_root="/logs").look()
        assert order == ["survey", "list", "make /logs/ns_p_u/c/0.log", "remove old.log"]
        order.clear()
        links.there = {"p_ns_c-a.log": True}
        await LinkCare(runtime=WatchedRuntime("a"), links=links, log_root="/logs").look()
        assert order == ["survey", "list"]

    simulate(scenario())


def test_looks_follow_each_other_whatever_fails() -> None:
    looks: list[float] = []

    class Failing(Links):
        async def survey(self) -> dict[str, bool]:
            looks.append(asyncio.get_running_loop().time())
            raise (TryLater("busy"), ZeroDivisionError("a bug"))[len(looks) % 2]

    async def scenario() -> None:
        care = LinkCare(runtime=Runtime(), links=Failing(), log_root="/logs", period_seconds=7)
        task = asyncio.create_task(care.run())
        await asyncio.sleep(15)
        assert looks == [0, 7, 14]
        task.cancel()

    simulate(scenario())
