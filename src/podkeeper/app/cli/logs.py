"""`podkeeper logs POD`: print the logs of containers."""

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import click

from podkeeper.app.cli.agent_requests import (
    chosen_container,
    complete_container,
    complete_pod,
    containers_of,
    get_pod,
    identity,
    with_client,
)
from podkeeper.app.local.client import INTERRUPT_CHECK_SECONDS, Json, LocalClient, RequestFailed

_UNITS = {"s": 1, "m": 60, "h": 3600}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smh])+")


def _since(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    if not _SPAN.fullmatch(text):
        raise click.BadParameter(f"cannot parse {text!r} as a duration (e.g. 5s, 2m or 1h30m)")
    parts = re.findall(r"([\d.]+)([smh])", text)
    return max(1, round(sum(float(number) * _UNITS[unit] for number, unit in parts)))


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.argument("container_argument", metavar="[CONTAINER]", required=False, shell_complete=complete_container)
@click.option(
    "-c", "--container", metavar="NAME", shell_complete=complete_container,
    help="Container name [default: all containers].",
)  # fmt: skip
@click.option("--all-containers", is_flag=True, help="Print the logs of all containers [default].")
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Print the container's name before each line [default if there are several].",
)
@click.option("-f", "--follow", is_flag=True, help="Continue to print new lines while the containers run.")
@click.option("-p", "--previous", is_flag=True, help="Print the log of the previous instance of the container.")
@click.option("--tail", type=int, metavar="LINES", help="Number of last lines to print [default: -1, all].")
@click.option(
    "--since", callback=_since, metavar="DURATION", help="Print only lines newer than this, e.g. 5s, 2m or 1h30m."
)
@click.option("--since-time", metavar="TIME", help="Print only lines after this time (RFC 3339).")
@click.option("--limit-bytes", type=click.IntRange(min=1), metavar="BYTES", help="Maximum number of bytes to print.")
@click.option("--timestamps", is_flag=True, help="Print the time before each line.")
@with_client
def logs(
    pod: str,
    container_argument: str | None,
    container: str | None,
    all_containers: bool,
    prefix: bool | None,
    follow: bool,
    previous: bool,
    tail: int | None,
    since: int | None,
    since_time: str | None,
    limit_bytes: int | None,
    timestamps: bool,
    client: LocalClient,
) -> None:
    """Print the logs of the containers of a pod.

    \b
    Examples:
      podkeeper logs web
      podkeeper logs -f --tail 10 pair reader
      podkeeper logs --previous crash
    """
    found = get_pod(client, pod)
    query = {
        "follow": follow,
        "previous": previous,
        "tailLines": tail if tail is not None and tail >= 0 else None,
        "sinceSeconds": since,
        "sinceTime": since_time,
        "limitBytes": limit_bytes,
        "timestamps": timestamps,
    }
    wanted = _containers(found, container or container_argument, all_containers)
    with_names = len(wanted) > 1 if prefix is None else prefix
    streams = {name: client.stream("containerLogs", *identity(found), name, **query) for name in wanted}
    if len(wanted) == 1:
        _write(streams[wanted[0]], f"[{wanted[0]}] " if with_names else "")
        return
    failures = _all_at_once(streams, with_names) if follow else _one_by_one(streams, with_names)
    for failure in failures:
        click.echo(f"note: {failure}", err=True)
    if len(failures) == len(wanted):
        raise click.ClickException("no container has a log")


def _containers(pod: Json, named: str | None, everything: bool) -> list[str]:
    if named is not None and not everything:
        return [chosen_container(pod, named)]
    return containers_of(pod)


def _one_by_one(streams: Mapping[str, Iterator[bytes]], with_names: bool) -> list[str]:
    failures = []
    for name, stream in streams.items():
        try:
            _write(stream, f"[{name}] " if with_names else "")
        except RequestFailed as error:
            failures.append(str(error))
    return failures


def _all_at_once(streams: Mapping[str, Iterator[bytes]], with_names: bool) -> list[str]:
    """Follow several containers without mixing parts of their lines."""
    failures: list[str] = []
    turn = threading.Lock()

    def follow(name: str, stream: Iterator[bytes]) -> None:
        try:
            _write(stream, f"[{name}] " if with_names else "", turn, whole_lines=True)
        except RequestFailed as error:
            failures.append(str(error))
        except (OSError, ValueError):
            return  # stdout is closed

    threads = [threading.Thread(target=follow, args=pair, daemon=True) for pair in streams.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(INTERRUPT_CHECK_SECONDS)  # with a timeout, because join() without one would block Ctrl-C
    return failures


def _write(
    stream: Iterator[bytes],
    prefix: str,
    turn: AbstractContextManager[object] | None = None,
    *,
    whole_lines: bool = False,
) -> None:
    """Write a stream without delay. Without a prefix, blocks are written unchanged."""
    lock = turn or threading.Lock()
    pieces = stream if not prefix and not whole_lines else _prefixed(stream, prefix.encode())
    for piece in pieces:
        with lock:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def _prefixed(stream: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    unfinished = b""
    for block in stream:
        *lines, unfinished = (unfinished + block).split(b"\n")
        if lines:
            yield b"".join(prefix + line + b"\n" for line in lines)
    if unfinished:
        yield prefix + unfinished
