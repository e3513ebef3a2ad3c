"""`podkeeper run PATH...`: run the agent with the pods of manifests."""

import asyncio
import logging
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeeper.app.cli.command_names import own_name, which_agent
from podkeeper.app.local.paths import default_root, socket_for

if TYPE_CHECKING:
    from podkeeper.app.cli.run_lifecycle import ExitOptions
    from podkeeper.app.cli.run_screen import Screen
    from podkeeper.app.standalone import Standalone
    from podkeeper.model.kubelet_config import KubeletConfiguration

RUNTIMES = ("process", "cri", "fake")
_RUNTIME_HELP = (
    "Run pods as processes of this machine, as containers of containerd or CRI-O (cri), or only simulated (fake)."
)
_ALSO_ON_SCREEN = (  # do not log these: the screen already shows invalid manifests and retries
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
    "--node-name", metavar="NAME", default=lambda: socket.gethostname().lower(),
    help="Name of the node [default: hostname of this machine].",
)  # fmt: skip
@click.option("--runtime", default="process", show_default=True, type=click.Choice(RUNTIMES), help=_RUNTIME_HELP)
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

    PATHS are files or directories with manifests. The agent applies changes of manifests at once. Ctrl-C stops the
    pods and then exits. Press Ctrl-C again to exit and leave the remaining pods running. On SIGTERM, the agent exits
    and all pods keep running. The next 'podkeeper run' adopts them.

    \b
    Examples:
      podkeeper run web.yaml             # one manifest
      podkeeper run --once jobs/         # until all pods have terminated
      podkeeper run --root ~/pk pods/    # with its own data directory

    \b
    Exit status:
      0    success; with --once, all pods succeeded
      1    cannot start; with --once, a pod failed or a manifest is invalid
      2    invalid command line
      130  interrupted: Ctrl-C twice, or once with --once
    """
    from podkeeper.app.cli.run_lifecycle import ExitOptions
    from podkeeper.app.process import tune_garbage_collection
    from podkeeper.app.standalone import Standalone
    from podkeeper.model.errors import AgentError
    from podkeeper.rules.validate.names import dns_subdomain

    root = (root or default_root()).absolute()
    listen_path = (socket_path or socket_for(root)).absolute()
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
        options = Standalone(
            paths=paths,
            root=root,
            node_name=node_name,
            runtime=runtime,
            runtime_endpoint=runtime_endpoint,
            host_images=host_images,
            config=config,
            keep_secrets=keep_secrets,
        )
        exit_options = ExitOptions(
            once=once,
            stop_pods_on_exit=stop_pods_on_exit,
            run_command=shlex.join([own_name(), *sys.argv[1:]]),
            pods_survive=runtime != "fake",
            manifests=", ".join(map(str, (*paths, *filter(None, (config.static_pod_path, config.static_pod_url))))),
        )
        tune_garbage_collection()
        screen = _screen(which_agent(root, socket_path), plain=plain or not _can_draw())
        _set_up_logging(verbose, screen)
        status = asyncio.run(_run_agent(options, exit_options, listen_path, screen, which_agent(root, socket_path)))
    except AgentError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)


async def _run_agent(
    options: "Standalone", exit_options: "ExitOptions", listen_path: Path, screen: "Screen", option: str
) -> int:
    from podkeeper import __version__
    from podkeeper.app.agent import Agent
    from podkeeper.app.build import Engine
    from podkeeper.app.cli.run_lifecycle import RunLifecycle
    from podkeeper.app.local.pod_queries import PodQueries
    from podkeeper.app.local.server import AgentInfo, LocalServer
    from podkeeper.app.standalone import open_agent_parts

    async with open_agent_parts(options, screen.show_problems) as parts:
        agent = Agent(Engine(parts.ports, parts.settings))
        queries = PodQueries(agent, parts.stop_filter)
        info = AgentInfo(
            version=__version__,
            node=options.node_name,
            root=str(options.root),
            runtime=agent.runtime_name,
            pid=os.getpid(),
            paths=tuple(str(path.absolute()) for path in options.paths),
        )
        server = LocalServer(
            agent=agent,
            queries=queries,
            stop_filter=parts.stop_filter,
            streams=parts.streams(agent),
            forwards=parts.forwards,
            info=info,
            path=listen_path,
        )
        await server.start()
        try:
            screen.print_line(
                f"podkeeper {__version__}: node {options.node_name}, runtime {info.runtime}, root {options.root}"
            )
            screen.print_line(f"Listening on {listen_path}. Try '{own_name()} ps{option}'.")
            lifecycle = RunLifecycle(agent, queries, parts.stop_filter, screen, exit_options)
            return await lifecycle.run(parts.problems, parts.background_tasks, parts.cancel_stops)
        finally:
            await server.close()


def _configuration(path: Path | None, runtime: str) -> "KubeletConfiguration":
    from podkeeper.app.cli.kubelet_file import read_kubelet_file
    from podkeeper.app.standalone import SUPPORTED_CRI_FIELDS, SUPPORTED_FIELDS
    from podkeeper.model.kubelet_config import KubeletConfiguration

    if path is None:
        return KubeletConfiguration()
    config, without_effect = read_kubelet_file(path, SUPPORTED_CRI_FIELDS if runtime == "cri" else SUPPORTED_FIELDS)
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
        # Hide warnings after the screen is closed. The exit interrupts calls, and their errors are expected.
        is_relevant = not screen.closed or record.levelno >= logging.ERROR
        return bool(verbose) or (is_relevant and not record.name.startswith(_ALSO_ON_SCREEN))

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
