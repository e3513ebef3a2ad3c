"""All keepers of one root directory: create, adopt, reconnect, stop, remove.

    root/agent.lock                 held by the only agent that may use this directory
    root/sandboxes/<id>/            one sandbox, see `keeper.main` for its files
    root/sandboxes/.gone-<id>/      a removed sandbox whose files are being deleted

Events of keepers update the `PodTable` in the order in which they arrive. If a connection breaks, the pool checks
whether the keeper is dead. If it is dead, its containers have exited. If not, the pool reconnects. If a keeper runs but
does not answer, the pool retries with backoff until it answers or is dead. If the keeper stays unresponsive, its
sandbox becomes not ready.
"""

import asyncio
import base64
import logging
import os
import secrets
import shutil
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from podkeeper.model.errors import UNDECODABLE, BadInput, Problem, RuntimeUnavailable, TryLater
from podkeeper.runtimes.process.fork_client import ForkServerClient, lock_file
from podkeeper.runtimes.process.keeper.files import CONFIG_FILE, KEEPER_FILE, LOCK_FILE, STOPPED_FILE, Json, write_json
from podkeeper.runtimes.process.keeper_client import KeeperClient, KeeperTimeouts
from podkeeper.runtimes.process.keeper_link import KeeperUnreachable
from podkeeper.runtimes.process.records import PodTable, Sandbox, SandboxFacts, SandboxState, decode_container

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 1.0
_GONE: Final = ".gone-"
_ID_BYTES: Final = 8
_POLL_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
# A killed keeper may write its last files while its directory is deleted, which then fails with ENOTEMPTY.
_DELETE_RETRY_SECONDS: Final = (0.05, 0.2, 0.5)


def new_id() -> str:
    """Return a new ID for a sandbox or a container: 13 letters and digits."""
    return base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().rstrip("=").lower()


class KeeperPool:
    """The keepers of one root directory. The pool stores their state in the table."""

    def __init__(self, root: str, fork_server: ForkServerClient, table: PodTable, timeouts: KeeperTimeouts) -> None:
        self._root = root
        self._sandboxes = os.path.join(root, "sandboxes")
        self._fork_server = fork_server
        self._table = table
        self._timeouts = timeouts
        self._unresponsive: set[str] = set()  # IDs of sandboxes whose keepers run but do not answer
        self._keepers: dict[str, KeeperClient] = {}
        self._lock: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_check: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Lock the root directory and adopt the keepers of an earlier agent. Raises BadInput."""
        os.makedirs(self._sandboxes, mode=0o700, exist_ok=True)
        # Before anything else, because two agents would adopt the same keepers and delete each other's sandboxes.
        self._lock = lock_file(os.path.join(self._root, "agent.lock"), make=True)
        if self._lock is None:
            text = f"cannot use {self._root}: another agent uses it. Stop that agent or choose another directory"
            raise BadInput(Problem(text))
        self._fork_server.start()
        async with asyncio.TaskGroup() as group:
            for name in sorted(os.listdir(self._sandboxes)):
                if name.startswith(_GONE):
                    self._spawn(self._delete(os.path.join(self._sandboxes, name)))
                else:
                    group.create_task(self._guarded(self._adopt(name)))
        self._check_later()

    async def close(self) -> None:
        """Disconnect from all keepers. They keep running."""
        if self._next_check is not None:
            self._next_check.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for keeper in self._keepers.values():
            keeper.disconnect()
        self._keepers.clear()
        await self._fork_server.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keeper_of(self, sandbox: Sandbox) -> KeeperClient:
        return self._keepers[sandbox.facts.id]

    def directory_of(self, sandbox: Sandbox) -> str:
        return os.path.join(self._sandboxes, sandbox.facts.id)

    # Creation.

    async def create(self, facts: SandboxFacts) -> Sandbox:
        """Create a sandbox and start its keeper. Raises RuntimeUnavailable."""
        sandbox = Sandbox(facts, SandboxState.READY)
        directory = self.directory_of(sandbox)
        keeper = self._keeper(sandbox)
        os.mkdir(directory, 0o700)
        try:
            write_json(os.path.join(directory, CONFIG_FILE), msgspec.to_builtins(facts))
            # Take the keeper's lock here and pass its descriptor on. So there is no moment in which a starting keeper
            # looks dead.
            lock = lock_file(os.path.join(directory, LOCK_FILE), make=True)
            assert lock is not None, "the lock of a new sandbox is taken"
            try:
                connection = await self._fork_server.fork_keeper(directory, lock)
            finally:
                # The keeper's copy keeps the lock, because flock(2) belongs to the open file.
                os.close(lock)
            await keeper.wait_ready(connection)
        except BaseException:
            # In the background, because the caller may be cancelled and must not wait for the kill.
            self._spawn(self._discard(keeper))
            raise
        self._keepers[facts.id] = keeper
        self._table.add(sandbox)
        return sandbox

    async def _discard(self, keeper: KeeperClient) -> None:
        """Kill a keeper that never became ready, and delete its files. It may still be starting, so retry."""
        keeper.disconnect()
        # A keeper without keeper.json has no known PID, so `kill` fails until the keeper has written the file or has
        # died by itself.
        for pause in (0.0, *_RETRY_SECONDS, *(10.0,) * 10):
            await asyncio.sleep(pause)
            with suppress(TryLater):
                await keeper.kill()
                await self._delete(self._move_aside(keeper.directory))
                return
        log.error("cannot kill a keeper that never became ready; kill it and delete %s", keeper.directory)

    # Adoption.

    async def _adopt(self, name: str) -> None:
        """Adopt a sandbox of an earlier agent."""
        directory = os.path.join(self._sandboxes, name)
        facts = _facts_of(directory)
        if facts is None or facts.id != name:
            log.warning("%s contains no valid sandbox: deleting it", directory)
            await self._delete(self._move_aside(directory))
            return
        sandbox = Sandbox(facts, SandboxState.READY)
        keeper = self._keepers[name] = self._keeper(sandbox)
        try:
            if await keeper.connect():
                self._table.add(sandbox, notify=False)
                return
        except RuntimeUnavailable as error:
            # Do not drop the sandbox: the pod runs, and the engine would start it a second time.
            log.warning("%s; using the stored state of its pod", error)
            self._table.add(sandbox, notify=False)
            for container in keeper.stored_containers():
                self._table.put_container(sandbox, container, notify=False)
            self._spawn(self._reconnect(sandbox))
            return
        if not os.path.exists(os.path.join(directory, KEEPER_FILE)):  # the keeper never became ready
            del self._keepers[name]
            await self._delete(self._move_aside(directory))
            return
        sandbox.state = SandboxState.STOPPED
        self._table.add(sandbox, notify=False)
        for container in await keeper.end_containers():
            self._table.put_container(sandbox, container, notify=False)

    # Events and reconnection.

    def _keeper(self, sandbox: Sandbox) -> KeeperClient:
        return KeeperClient(
            self.directory_of(sandbox),
            sandbox.pod,
            on_event=partial(self._on_event, sandbox),
            on_lost=partial(self._on_lost, sandbox),
            timeouts=self._timeouts,
        )

    def _on_event(self, sandbox: Sandbox, message: Json) -> None:
        match message["event"]:
            case "state":
                containers = [decode_container(each) for each in message["containers"]]
                # Containers that were removed while there was no connection.
                for gone in set(sandbox.containers) - {each.id for each in containers}:
                    self._table.remove_container(sandbox, gone)
                for each in containers:
                    self._table.put_container(sandbox, each)
                self._set_state(sandbox, SandboxState.STOPPING if message.get("leaving") else SandboxState.READY)
            case "leaving":
                self._set_state(sandbox, SandboxState.STOPPING)
            case "removed":
                self._table.remove_container(sandbox, message["container"]["id"])
            case _:
                self._table.put_container(sandbox, decode_container(message["container"]))

    def unresponsive_pods(self) -> list[str]:
        return sorted(box.pod for box in self._table.sandboxes.values() if box.facts.id in self._unresponsive)

    def _on_lost(self, sandbox: Sandbox) -> None:
        self._spawn(self._reconnect(sandbox))

    def _check_later(self) -> None:
        if (seconds := self._timeouts.ping_period_seconds) > 0:
            loop = asyncio.get_running_loop()
            self._next_check = loop.call_later(seconds, lambda: self._spawn(self._check_all()))

    async def _check_all(self) -> None:
        """Ping all keepers, and replace a stopped fork server."""
        await self._fork_server.replace_if_stopped()
        async with asyncio.TaskGroup() as group:
            for keeper in self._keepers.values():
                group.create_task(self._guarded(keeper.check()))
        self._check_later()

    async def _reconnect(self, sandbox: Sandbox) -> None:
        """Reconnect to a keeper after its connection broke, or handle its death."""
        keeper, monotonic = self.keeper_of(sandbox), asyncio.get_running_loop().time
        since, failures = monotonic(), 0
        try:
            while self._is_current(sandbox) and keeper.link is None:
                try:
                    if not await keeper.connect():
                        await self._keeper_died(sandbox)
                    return
                except RuntimeUnavailable as error:
                    self._unresponsive.add(sandbox.facts.id)
                    overdue = monotonic() - since >= self._timeouts.not_ready_seconds
                    if overdue and sandbox.state is not SandboxState.UNRESPONSIVE:
                        log.warning("%s; its pod is reported as not ready", error)
                        self._set_state(sandbox, SandboxState.UNRESPONSIVE)
                await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1
        finally:
            self._unresponsive.discard(sandbox.facts.id)

    async def _keeper_died(self, sandbox: Sandbox) -> None:
        """Mark the containers of a dead keeper as exited, and its sandbox as stopped."""
        if not self._is_current(sandbox):
            return
        keeper = self.keeper_of(sandbox)
        # With this file, the shutdown was requested and is no reason for a warning.
        if not os.path.exists(os.path.join(keeper.directory, STOPPED_FILE)):
            log.warning("the keeper of pod %s died, so all its containers were killed", sandbox.pod)
        containers = await keeper.end_containers()
        if self._is_current(sandbox):
            for container in containers:
                self._table.put_container(sandbox, container)
            self._table.set_state(sandbox, SandboxState.STOPPED)

    def _set_state(self, sandbox: Sandbox, state: SandboxState) -> None:
        """Set the state of a sandbox. Send no event while it is being adopted, and never leave STOPPED."""
        if self._is_current(sandbox):
            self._table.set_state(sandbox, state)
        elif sandbox.facts.id not in self._table.sandboxes:
            sandbox.state = state

    def _is_current(self, sandbox: Sandbox) -> bool:
        known = self._table.sandboxes.get(sandbox.facts.id) is sandbox
        return known and sandbox.state is not SandboxState.STOPPED

    # Stop and removal.

    async def stop(self, sandbox: Sandbox) -> None:
        """Kill all containers of a sandbox and end its keeper. Raises TryLater."""
        if sandbox.state is SandboxState.STOPPED:
            return
        keeper = self.keeper_of(sandbox)  # before the await, because another call may remove the sandbox meanwhile
        await self.call_or_kill(sandbox, "shutdown", {}, SHUTDOWN_SECONDS)
        if not await keeper.wait_dead():
            await keeper.kill()
        keeper.disconnect()
        await self._keeper_died(sandbox)

    async def call_or_kill(self, sandbox: Sandbox, do: str, what: Json, expected_seconds: float) -> None:
        """Send a request that must succeed. If the keeper does not answer, kill it and all its containers instead.

        Raises TryLater.
        """
        keeper = self.keeper_of(sandbox)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.kill_seconds):
                # A reconnection may be under way. A keeper must not be killed only because its connection just broke.
                while keeper.link is None and sandbox.state is not SandboxState.STOPPED:
                    await asyncio.sleep(_POLL_SECONDS)
        try:
            await keeper.call_or_kill(do, what, expected_seconds)
        except KeeperUnreachable:
            if not await keeper.wait_dead():
                log.warning("the keeper of pod %s does not answer: killing it and its containers", sandbox.pod)
                await keeper.kill()
            await self._keeper_died(sandbox)

    async def remove(self, sandbox: Sandbox) -> None:
        """Stop a sandbox and delete its files. Raises TryLater."""
        await self.stop(sandbox)
        if self._table.sandboxes.get(sandbox.facts.id) is not sandbox:
            return  # a concurrent call removed it
        # Rename first: after a crash during the deletion, half a sandbox would be adopted.
        aside = self._move_aside(self.directory_of(sandbox))
        self._keepers.pop(sandbox.facts.id, None)
        self._table.remove(sandbox)
        await self._delete(aside)

    async def delete_container(self, sandbox: Sandbox, container_id: str) -> None:
        """Forget a container of a dead keeper. Its other files are deleted with the sandbox."""
        home = os.path.join(self.directory_of(sandbox), "containers", container_id)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(home, CONFIG_FILE))  # without this file, a later agent does not load the container
        self._table.remove_container(sandbox, container_id)

    def _move_aside(self, directory: str) -> str:
        """Rename a sandbox directory so that no agent adopts it. Deletion may take long or be interrupted."""
        aside = os.path.join(self._sandboxes, f"{_GONE}{os.path.basename(directory)}-{time.time_ns()}")
        with suppress(FileNotFoundError):
            os.rename(directory, aside)
        return aside

    async def _delete(self, directory: str) -> None:
        """Delete a directory that was moved aside. If this fails, the next start of the agent retries it."""
        for pause in (*_DELETE_RETRY_SECONDS, None):
            try:
                await self._delete_once(directory)
            except (OSError, TryLater) as error:
                if pause is None:
                    log.warning("cannot delete %s yet: %s", directory, error)
                else:
                    await asyncio.sleep(pause)
            else:
                return

    async def _delete_once(self, directory: str) -> None:
        # The keeper has deleted the files of container users. Otherwise only a child of the fork server may do that, in
        # the user namespace.
        if os.path.exists(os.path.join(directory, STOPPED_FILE)):
            await asyncio.to_thread(shutil.rmtree, directory)
        elif os.path.exists(directory):
            await self._fork_server.clear(directory)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("unexpected error in a background task of the keeper pool")


def _facts_of(directory: str) -> SandboxFacts | None:
    try:
        with open(os.path.join(directory, CONFIG_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=SandboxFacts)
    except (OSError, *UNDECODABLE):
        return None
