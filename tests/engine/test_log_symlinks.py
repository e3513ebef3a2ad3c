"""Log symlinks: missing ones are created, dead ones are removed."""

import asyncio
from collections.abc import Sequence

from podkeeper.engine.log_symlinks import LogSymlinks
from podkeeper.model.errors import TryLater
from podkeeper.model.log_tree import LogLink
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.testing.virtual_time import simulate


class Links:
    """Links in a dictionary. The value is whether the target exists."""

    def __init__(self, **existing: bool) -> None:
        self.existing = {f"{name}.log": alive for name, alive in existing.items()}

    async def list_links(self) -> dict[str, bool]:
        return dict(self.existing)

    async def make(self, links: Sequence[LogLink]) -> None:
        self.existing |= {link.name: True for link in links}

    async def remove(self, names: Sequence[str]) -> None:
        for name in names:
            del self.existing[name]


class Runtime:
    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.failures = 0

    async def list_pods(self) -> Sequence[PodRecord]:
        if self.failures:
            self.failures -= 1
            raise TryLater("cannot list: not now")
        containers = tuple(ContainerRecord(id=each, name="c", state=RecordState.RUNNING) for each in self.ids)
        return [PodRecord(uid="u", name="p", namespace="ns", containers=containers)]


def test_missing_links_are_created_and_dead_links_removed() -> None:
    links = Links(old=False, kept=True, **{"p_ns_c-b": False})

    async def scenario() -> None:
        await LogSymlinks(runtime=Runtime("a", "b"), links=links, log_root="/logs").sync()

    simulate(scenario())
    assert links.existing == {"kept.log": True, "p_ns_c-a.log": True, "p_ns_c-b.log": False}


def test_a_failed_run_is_retried_a_minute_later() -> None:
    links, runtime = Links(), Runtime("a")
    runtime.failures = 1

    async def scenario() -> None:
        symlinks = asyncio.create_task(LogSymlinks(runtime=runtime, links=links, log_root="/logs").run())
        await asyncio.sleep(59)
        assert links.existing == {}
        await asyncio.sleep(2)
        assert links.existing == {"p_ns_c-a.log": True}
        symlinks.cancel()

    simulate(scenario())


def test_links_are_listed_before_the_runtime() -> None:
    """A dead link whose container is not in the list belongs to no container."""
    order: list[str] = []

    class RecordingLinks(Links):
        async def list_links(self) -> dict[str, bool]:
            order.append("list_links")
            return await super().list_links()

        async def make(self, links: Sequence[LogLink]) -> None:
            order.append(f"make {links[0].log}")

        async def remove(self, names: Sequence[str]) -> None:
            order.append(f"remove {' '.join(names)}")

    class RecordingRuntime(Runtime):
        async def list_pods(self) -> Sequence[PodRecord]:
            order.append("list")
            return await super().list_pods()

    async def scenario() -> None:
        links = RecordingLinks(old=False)
        await LogSymlinks(runtime=RecordingRuntime("a"), links=links, log_root="/logs").sync()
        assert order == ["list_links", "list", "make /logs/ns_p_u/c/0.log", "remove old.log"]
        order.clear()
        links.existing = {"p_ns_c-a.log": True}
        await LogSymlinks(runtime=RecordingRuntime("a"), links=links, log_root="/logs").sync()
        assert order == ["list_links", "list"]

    simulate(scenario())


def test_runs_continue_after_any_error() -> None:
    runs: list[float] = []

    class Failing(Links):
        async def list_links(self) -> dict[str, bool]:
            runs.append(asyncio.get_running_loop().time())
            raise (TryLater("busy"), ZeroDivisionError("a bug"))[len(runs) % 2]

    async def scenario() -> None:
        symlinks = LogSymlinks(runtime=Runtime(), links=Failing(), log_root="/logs", period_seconds=7)
        task = asyncio.create_task(symlinks.run())
        await asyncio.sleep(15)
        assert runs == [0, 7, 14]
        task.cancel()

    simulate(scenario())
