"""`podkeeper run PATH...`: run the agent in the foreground with the pods of manifests."""

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
_SHOWN_ANYWAY = (  # loggers of invalid manifests and of retries, which the screen shows already
    *("podkeeper.sources.", "podkeeper.engine.workers", "podkeeper.engine.starter", "podkeeper.engine.images"),
)
_NO_TABLE = ("", "dumb", "unknown")  # values of TERM for terminals that cannot redraw lines
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Directory for the agent's data [default: {default_root()}].",
)
@click.option(
    "--socket", "socket_path", type=click.Path(path_type=Path),
    help="Socket for the other podkeeper commands [default: from --root].",
)  # fmt: skip
@click.option(
    "--node-name", default=lambda: socket.gethostname().lower(),
    help="Name of the node [default: hostname of this machine].",
)  # fmt: skip
@click.option("--runtime", default="process", show_default=True, type=click.Choice(RUNTIMES), help="Container runtime.")
@click.option(
    "--runtime-endpoint", metavar="SOCKET", default="",
    help="Socket of the runtime, for --runtime cri [default: containerd or CRI-O, if running].",
)  # fmt: skip
@click.option(
    "--host-image", "host_images", multiple=True, metavar="PATTERN",
    help="Run images that match PATTERN on this machine's own files, like the image 'host'. Repeatable.",
)  # fmt: skip
@click.option(
    "--config", "config_path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="KubeletConfiguration file. Unsupported fields are reported.",
)  # fmt: skip
@click.option(
    "--keep-secrets", is_flag=True,
    help="Store Secrets from manifests in --root. Pods can then start while the manifests are unreadable.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Exit when all pods have terminated.")
@click.option("--stop-pods-on-exit", is_flag=True, help="Stop the pods on SIGTERM, too.")
@click.option("--plain", is_flag=True, help="Print lines instead of a table [default if stdout is not a terminal].")
@click.option("-v", "--verbose", count=True, help="Log to stderr at level INFO. Use -vv for DEBUG.")
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
    """Run the pods of manifest files or directories.

    The agent applies changes of manifests at once. Ctrl-C stops the pods and then exits. Press Ctrl-C again to exit
    and leave the remaining pods running. On SIGTERM, the agent exits and all pods keep running. The next
    'podkeeper run' adopts them.

    \b
    Examples:
      podkeeper run web.yaml             # one manifest
      podkeeper run --once jobs/         # until all pods have terminated
      podkeeper run --root ~/pk pods/    # with its own data directory

    \b
    Exit status:
      0    success; with --once, all pods succeeded
      1    cannot start; with --once, a pod failed or a manifest is invalid
      2    wrong usage
      130  Ctrl-C was pressed twice; with --once, Ctrl-C was pressed
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
            raise click.UsageError(
                "nothing to run; give manifest files or directories, or set staticPodPath in --config"
            )
        if runtime_endpoint and runtime != "cri":
            raise click.UsageError("--runtime-endpoint requires --runtime cri")
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
            screen.say(f"Listening on {place}. Try '{own_name()} ps{option}'.")
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
        # Hide warnings after the screen is closed: calls that the exit interrupts fail as expected.
        is_news = not screen.closed or record.levelno >= logging.ERROR
        return bool(verbose) or (is_news and not record.name.startswith(_SHOWN_ANYWAY))

    handler = _ToStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    handler.addFilter(is_wanted)
    logging.basicConfig(level=_LEVELS[min(verbose, len(_LEVELS) - 1)], handlers=[handler])


class _ToStderr(logging.Handler):
    """Write to the current `sys.stderr`, because the live table replaces it to print lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)
