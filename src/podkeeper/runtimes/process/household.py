"""All keepers of one root directory: made, found again, looked after, sent away.

    root/agent.lock                 held by the one agent that works here
    root/sandboxes/<id>/            one sandbox; `keeper.main` says what lies there
    root/sandboxes/.gone-<id>/      one that is no more; its files are being deleted

What happens goes into the `Mirror`, in the order in which keepers tell it. A keeper whose line breaks is either dead,
then its containers have ended, or it is connected to again. One that lives and is silent is tried for ever, a little
less often each time, and meanwhile its sandbox is not ready.
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
from podkeeper.runtimes.process.hatchery import Hatchery, lock_file
from podkeeper.runtimes.process.keeper.files import CONFIG_FILE, KEEPER_FILE, LOCK_FILE, STOPPED_FILE, Json, write_json
from podkeeper.runtimes.process.keepers import Keeper, Patience
from podkeeper.runtimes.process.links import LinkLost
from podkeeper.runtimes.process.records import Mirror, Sandbox, SandboxFacts, Standing, told

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 1.0
_GONE: Final = ".gone-"
_ID_BYTES: Final = 8
_PAUSE_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)


def new_id() -> str:
    """A name for a sandbox or a container: 13 letters and digits."""
    return base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().rstrip("=").lower()


class Household:
    """The keepers, and the mirror that shows what they keep."""

    def __init__(self, root: str, hatchery: Hatchery, mirror: Mirror, patience: Patience) -> None:
        self._root = root
        self._home = os.path.join(root, "sandboxes")
        self._hatchery = hatchery
        self._mirror = mirror
        self._patience = patience
        self._silent: set[str] = set()  # ids of sandboxes whose keepers live and do not answer
        self._keepers: dict[str, Keeper] = {}
        self._lock: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Find every keeper of a former life of the agent, and learn how things are. Raises BadInput."""
        os.makedirs(self._home, mode=0o700, exist_ok=True)
        self._lock = lock_file(os.path.join(self._root, "agent.lock"), make=True)
        if self._lock is None:
            text = (
                f"cannot use {self._root}: another agent works there; stop it, or give this one a directory of its own"
            )
            raise BadInput(Problem(text))
        self._hatchery.start()
        async with asyncio.TaskGroup() as group:
            for name in sorted(os.listdir(self._home)):
                if name.startswith(_GONE):
                    self._spawn(self._delete(os.path.join(self._home, name)))
                else:
                    group.create_task(self._guarded(self._find(name)))

    async def close(self) -> None:
        """Let go of everything; keepers go on keeping."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for keeper in self._keepers.values():
            keeper.hang_up()
        self._keepers.clear()
        await self._hatchery.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keeper_of(self, sandbox: Sandbox) -> Keeper:
        """The keeper of a sandbox that is known."""
        return self._keepers[sandbox.facts.id]

    def directory_of(self, sandbox: Sandbox) -> str:
        """Where the files of a sandbox are."""
        return os.path.join(self._home, sandbox.facts.id)

    # Making.

    async def make(self, facts: SandboxFacts) -> Sandbox:
        """Make a sandbox with a keeper. Raises RuntimeUnavailable."""
        sandbox = Sandbox(facts, Standing.READY)
        directory = self.directory_of(sandbox)
        keeper = self._keeper(sandbox)
        os.mkdir(directory, 0o700)
        try:
            write_json(os.path.join(directory, CONFIG_FILE), msgspec.to_builtins(facts))
            lock = lock_file(os.path.join(directory, LOCK_FILE), make=True)
            assert lock is not None, "a new file is nobody else's"
            try:
                connection = await self._hatchery.hatch(directory, lock)
            finally:
                os.close(lock)
            await keeper.greet(connection)
        except BaseException:
            self._spawn(self._abandon(keeper))
            raise
        self._keepers[facts.id] = keeper
        self._mirror.add(sandbox)
        return sandbox

    async def _abandon(self, keeper: Keeper) -> None:
        """See that a keeper nobody knows of does not stay, now or when it comes at last."""
        keeper.hang_up()
        for pause in (0.0, *_RETRY_SECONDS, *(10.0,) * 10):
            await asyncio.sleep(pause)
            with suppress(TryLater):
                await keeper.kill()
                await self._delete(self._put_aside(keeper.directory))
                return
        log.error("cannot get rid of a keeper that never got ready; its files are in %s", keeper.directory)

    # Finding.

    async def _find(self, name: str) -> None:
        """Take up what a former life of the agent has left in a directory."""
        directory = os.path.join(self._home, name)
        facts = _facts_of(directory)
        if facts is None or facts.id != name:
            log.warning("%s is no sandbox: it is deleted", directory)
            await self._delete(self._put_aside(directory))
            return
        sandbox = Sandbox(facts, Standing.READY)
        keeper = self._keepers[name] = self._keeper(sandbox)
        try:
            if await keeper.connect():
                self._mirror.add(sandbox, tell=False)
                return
        except RuntimeUnavailable as error:
            log.warning("%s; its pod is taken as it was when it last spoke", error)
            self._mirror.add(sandbox, tell=False)
            for container in keeper.remembered():
                self._mirror.put(sandbox, container, tell=False)
            self._spawn(self._look_after(sandbox))
            return
        if not os.path.exists(os.path.join(directory, KEEPER_FILE)):  # it never came into being
            del self._keepers[name]
            await self._delete(self._put_aside(directory))
            return
        sandbox.standing = Standing.STOPPED
        self._mirror.add(sandbox, tell=False)
        for container in await keeper.bury():
            self._mirror.put(sandbox, container, tell=False)

    # Looking after.

    def _keeper(self, sandbox: Sandbox) -> Keeper:
        hear, lost = partial(self._hear, sandbox), partial(self._lost, sandbox)
        return Keeper(self.directory_of(sandbox), sandbox.pod, hear=hear, lost=lost, patience=self._patience)

    def _hear(self, sandbox: Sandbox, message: Json) -> None:
        match message["event"]:
            case "state":
                containers = [told(each) for each in message["containers"]]
                for gone in set(sandbox.containers) - {each.id for each in containers}:
                    self._mirror.remove_container(sandbox, gone)
                for each in containers:
                    self._mirror.put(sandbox, each)
                self._stand(sandbox, Standing.LEAVING if message.get("leaving") else Standing.READY)
            case "leaving":
                self._stand(sandbox, Standing.LEAVING)
            case "removed":
                self._mirror.remove_container(sandbox, message["container"]["id"])
            case _:
                self._mirror.put(sandbox, told(message["container"]))

    def silent_pods(self) -> list[str]:
        """The pods whose keepers do not answer."""
        return sorted(box.pod for box in self._mirror.sandboxes.values() if box.facts.id in self._silent)

    def _lost(self, sandbox: Sandbox) -> None:
        self._spawn(self._look_after(sandbox))

    async def _look_after(self, sandbox: Sandbox) -> None:
        """Find out what became of a keeper that cannot be spoken with: dead, or well again."""
        keeper, monotonic = self.keeper_of(sandbox), asyncio.get_running_loop().time
        since, failures = monotonic(), 0
        try:
            while self._is_current(sandbox) and keeper.link is None:
                try:
                    if not await keeper.connect():
                        await self._ended(sandbox)
                    return
                except RuntimeUnavailable as error:
                    self._silent.add(sandbox.facts.id)
                    if sandbox.standing is not Standing.SILENT and monotonic() - since >= self._patience.hung_seconds:
                        log.warning("%s; its pod is reported as not ready", error)
                        self._stand(sandbox, Standing.SILENT)
                await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
                failures += 1
        finally:
            self._silent.discard(sandbox.facts.id)

    async def _ended(self, sandbox: Sandbox) -> None:
        """A keeper is dead: its containers have ended, and its sandbox has."""
        if not self._is_current(sandbox):
            return
        keeper = self.keeper_of(sandbox)
        if not os.path.exists(os.path.join(keeper.directory, STOPPED_FILE)):
            log.warning("the keeper of pod %s is dead, and so are its containers", sandbox.pod)
        containers = await keeper.bury()
        if self._is_current(sandbox):
            for container in containers:
                self._mirror.put(sandbox, container)
            self._mirror.stand(sandbox, Standing.STOPPED)

    def _stand(self, sandbox: Sandbox, standing: Standing) -> None:
        """Show how a sandbox is; one that is over stays so, one that is only being found is not news."""
        if self._is_current(sandbox):
            self._mirror.stand(sandbox, standing)
        elif sandbox.facts.id not in self._mirror.sandboxes:
            sandbox.standing = standing

    def _is_current(self, sandbox: Sandbox) -> bool:
        known = self._mirror.sandboxes.get(sandbox.facts.id) is sandbox
        return known and sandbox.standing is not Standing.STOPPED

    # Ending.

    async def stop(self, sandbox: Sandbox) -> None:
        """Send a keeper away, and by force whatever it keeps. Raises TryLater."""
        if sandbox.standing is Standing.STOPPED:
            return
        keeper = self.keeper_of(sandbox)  # before the await: another call may remove the sandbox meanwhile
        await self.insist(sandbox, "shutdown", {}, SHUTDOWN_SECONDS)
        if not await keeper.is_dead_soon():
            await keeper.kill()
        keeper.hang_up()
        await self._ended(sandbox)

    async def insist(self, sandbox: Sandbox, do: str, what: Json, usual_seconds: float) -> None:
        """Have something ended that a keeper keeps; one that does not answer is ended itself. Raises TryLater."""
        keeper = self.keeper_of(sandbox)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience.force_seconds):
                while keeper.link is None and sandbox.standing is not Standing.STOPPED:
                    await asyncio.sleep(_PAUSE_SECONDS)
        try:
            await keeper.insist(do, what, usual_seconds)
        except LinkLost:
            if not await keeper.is_dead_soon():
                log.warning("the keeper of pod %s does not answer: it is ended, with all that it keeps", sandbox.pod)
                await keeper.kill()
            await self._ended(sandbox)

    async def remove(self, sandbox: Sandbox) -> None:
        """The same, and then nothing of it is left."""
        await self.stop(sandbox)
        if self._mirror.sandboxes.get(sandbox.facts.id) is not sandbox:
            return  # somebody else was quicker
        aside = self._put_aside(self.directory_of(sandbox))
        self._keepers.pop(sandbox.facts.id, None)
        self._mirror.remove(sandbox)
        await self._delete(aside)

    async def delete_container(self, sandbox: Sandbox, container_id: str) -> None:
        """Delete what is left of a container whose keeper is gone."""
        home = os.path.join(self.directory_of(sandbox), "containers", container_id)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(home, CONFIG_FILE))  # nobody who comes later takes it for a container
        self._mirror.remove_container(sandbox, container_id)

    def _put_aside(self, directory: str) -> str:
        """Take a sandbox out of sight in one step; deleting its files may take long, or be interrupted."""
        aside = os.path.join(self._home, f"{_GONE}{os.path.basename(directory)}-{time.time_ns()}")
        with suppress(FileNotFoundError):
            os.rename(directory, aside)
        return aside

    async def _delete(self, directory: str) -> None:
        """Delete what was put aside; what cannot be deleted now is tried again by the next life of the agent."""
        try:
            if os.path.exists(os.path.join(directory, STOPPED_FILE)):
                await asyncio.to_thread(shutil.rmtree, directory)
            elif os.path.exists(directory):
                await self._hatchery.clear(directory)
        except (OSError, TryLater) as error:
            log.warning("cannot delete %s yet: %s", directory, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("looking after keepers failed in an unforeseen way")


def _facts_of(directory: str) -> SandboxFacts | None:
    try:
        with open(os.path.join(directory, CONFIG_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=SandboxFacts)
    except (OSError, *UNDECODABLE):
        return None
