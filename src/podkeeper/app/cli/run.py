"""`podkeeper run PATH...`: run the pods of manifests, in the foreground, and keep them as their specs say."""

import asyncio
import logging
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeeper.app.cli.naming import own_name, which_agent
from podkeeper.app.local.places import default_root, socket_for

if TYPE_CHECKING:
    from podkeeper.app.cli.run_life import Wishes
    from podkeeper.app.cli.run_screen import Screen
    from podkeeper.app.standalone import Standalone
    from podkeeper.model.kubelet_config import KubeletConfiguration

RUNTIMES = ("process", "cri", "fake")
_SHOWN_ANYWAY = (  # broken manifests, and pods that are tried again: the screen tells of them
    *("podkeeper.sources.", "podkeeper.engine.workers", "podkeeper.engine.starter", "podkeeper.engine.images"),
)
_NO_TABLE = ("", "dumb", "unknown")  # terminals on which nothing can be drawn again
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Where the agent keeps its things [{default_root()}].",
)
@click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Where it answers the other commands.")
@click.option("--node-name", default=lambda: socket.gethostname().lower(), help="The node's name [this host's name].")
@click.option("--runtime", default="process", show_default=True, type=click.Choice(RUNTIMES), help="What runs pods.")
@click.option(
    "--runtime-endpoint", metavar="SOCKET", default="",
    help="With --runtime cri: the runtime's socket [that of containerd or CRI-O, whichever is there].",
)  # fmt: skip
@click.option(
    "--host-image", "host_images", multiple=True, metavar="PATTERN",
    help="Images that mean this machine's own files, besides 'host'. May be repeated.",
)  # fmt: skip
@click.option(
    "--config", "config_path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A KubeletConfiguration; what of it is not honoured is named.",
)  # fmt: skip
@click.option(
    "--keep-secrets", is_flag=True,
    help="Store the Secrets of manifests below --root, so that pods start while the manifests cannot be read.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="End when all pods have ended; exit with 0 only if all of them succeeded.")
@click.option("--stop-pods-on-exit", is_flag=True, help="Stop the pods also when the agent is ended by SIGTERM.")
@click.option("--plain", is_flag=True, help="Plain lines, as when the output is no terminal.")
@click.option("-v", "--verbose", count=True, help="Write more of the agent's log to stderr; twice: all of it.")
def run(
    paths: tuple[Path, ...],
    root: Path | None,
    socket_path: Path | None,
    node_name: str,
    runtime: str,
    runtime_endpoint: str,
    host_images: tuple[str, ...],
    config_path: Path | None,
    keep_secrets: bool,
    once: bool,
    stop_pods_on_exit: bool,
    plain: bool,
    verbose: int,
) -> None:
    """Run the pods of manifests (files or folders) and keep them as their specs say.

    Changed manifests take effect at once. Ctrl-C stops the pods; pressed again, it leaves running who has not ended.
    SIGTERM ends the agent only: the pods go on, and the next 'podkeeper run' takes them up again.

    \b
    Examples:
      podkeeper run web.yaml              one manifest
      podkeeper run --once jobs/          until all pods of a folder have ended
      podkeeper run --root ~/pk pods/     with a place of its own for what it keeps

    \b
    Exit status:
      0    all pods were stopped or left as asked; with --once, all of them succeeded
      1    it could not start; with --once, a pod failed or a manifest could not be used
      2    the command was not called as it should be
      130  Ctrl-C was pressed again; with --once, once
    """
    from podkeeper.app.cli.run_life import Wishes
    from podkeeper.app.process import tune_garbage_collection
    from podkeeper.app.standalone import Standalone
    from podkeeper.model.errors import AgentError
    from podkeeper.rules.validate.names import dns_subdomain

    root = (root or default_root()).absolute()
    place = (socket_path or socket_for(root)).absolute()
    try:
        config = _configuration(config_path, runtime)
        if not paths and not config.static_pod_path and not config.static_pod_url:
            raise click.UsageError("nothing to run: name manifests (files or folders), or a staticPodPath in --config")
        if runtime_endpoint and runtime != "cri":
            raise click.UsageError("--runtime-endpoint names a container runtime: say --runtime cri as well")
        if bad := next(dns_subdomain("--node-name", node_name), None):
            raise click.UsageError(str(bad))
        wanted = Standalone(
            paths=paths,
            root=root,
            node_name=node_name,
            runtime=runtime,
            runtime_endpoint=runtime_endpoint,
            host_images=host_images,
            config=config,
            keep_secrets=keep_secrets,
        )
        wishes = Wishes(
            once=once,
            stop_pods_on_exit=stop_pods_on_exit,
            again=shlex.join([own_name(), *sys.argv[1:]]),
            pods_survive=runtime != "fake",
            places=", ".join(map(str, (*paths, *filter(None, (config.static_pod_path, config.static_pod_url))))),
        )
        tune_garbage_collection()
        screen = _screen(which_agent(root, socket_path), plain=plain or not _can_draw())
        _set_up_logging(verbose, screen)
        status = asyncio.run(_live(wanted, wishes, place, screen, which_agent(root, socket_path)))
    except AgentError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)


async def _live(wanted: "Standalone", wishes: "Wishes", place: Path, screen: "Screen", option: str) -> int:
    from podkeeper import __version__
    from podkeeper.app.build import Agent
    from podkeeper.app.cli.run_life import Life
    from podkeeper.app.local.server import Info, LocalServer
    from podkeeper.app.standalone import assembled

    async with assembled(wanted, screen.complain) as parts:
        agent = Agent(parts.ports, parts.settings)
        info = Info(
            version=__version__,
            node=wanted.node_name,
            root=str(wanted.root),
            runtime=agent.runtime.name,
            pid=os.getpid(),
            paths=tuple(str(path.absolute()) for path in wanted.paths),
        )
        server = LocalServer(
            agent=agent,
            gate=parts.gate,
            streams=parts.streams(agent),
            forwards=parts.forwards,
            info=info,
            path=place,
        )
        await server.start()
        try:
            screen.say(f"podkeeper {__version__}: node {wanted.node_name}, runtime {info.runtime}, root {wanted.root}")
            screen.say(f"It answers on {place}: try '{own_name()} ps{option}'.")
            return await Life(agent, parts.gate, screen, wishes).run(parts.problems, parts.rooms, parts.spare_all)
        finally:
            await server.close()


def _configuration(path: Path | None, runtime: str) -> "KubeletConfiguration":
    from podkeeper.app.cli.kubelet_file import read_kubelet_file
    from podkeeper.app.standalone import HONOURED, HONOURED_FOR_CONTAINERS
    from podkeeper.model.kubelet_config import KubeletConfiguration

    if path is None:
        return KubeletConfiguration()
    config, without_effect = read_kubelet_file(path, HONOURED_FOR_CONTAINERS if runtime == "cri" else HONOURED)
    for problem in without_effect:
        click.echo(f"warning: {problem}", err=True)
    return config


def _screen(option: str, *, plain: bool) -> "Screen":
    if plain:
        from podkeeper.app.cli.run_screen import Lines

        return Lines()
    from podkeeper.app.cli.run_table import LiveTable

    return LiveTable(own_name(), option)


def _can_draw() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in _NO_TABLE


def _set_up_logging(verbose: int, screen: "Screen") -> None:
    def is_wanted(record: logging.LogRecord) -> bool:
        # What is broken off when the agent ends is no news to whoever ended it.
        is_news = not screen.closed or record.levelno >= logging.ERROR
        return bool(verbose) or (is_news and not record.name.startswith(_SHOWN_ANYWAY))

    handler = _ToStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    handler.addFilter(is_wanted)
    logging.basicConfig(level=_LEVELS[min(verbose, len(_LEVELS) - 1)], handlers=[handler])


class _ToStderr(logging.Handler):
    """Writes to whatever stderr is now: a live table takes it over, and shows lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)
