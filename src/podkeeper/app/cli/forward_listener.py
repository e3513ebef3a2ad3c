"""Accept local connections and forward them to a pod, for `port-forward`.

    connection --thread--> channel 0        channel 1 --thread--> connection        channel 3: the error

Standard library only, so that the command starts fast. Each connection uses two threads, because there are few
connections.
"""

import contextlib
import ipaddress
import json
import selectors
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import click

from podkeeper.app.cli.terminal_session import CLOSE, ERROR, STDIN, STDOUT
from podkeeper.app.local.client import INTERRUPT_CHECK_SECONDS, ChannelSocket, Json, LocalClient, RequestFailed

LOCALHOST: Final = ("127.0.0.1", "::1")
_BLOCK_BYTES: Final = 65536
_LARGEST_PORT: Final = 65535
_BACKLOG: Final = 128


class PortPair(NamedTuple):
    """A local port (0: any free port) and a port of the pod."""

    local: int
    remote: int


class Listener(NamedTuple):
    socket: socket.socket
    pair: PortPair


# ---- arguments ----


def parse_port_pairs(pod: Json, texts: Sequence[str]) -> list[PortPair]:
    """Parse the port arguments. Raises ClickException."""
    return [_pair(pod, text) for text in texts]


def _pair(pod: Json, text: str) -> PortPair:
    first, colon, second = text.partition(":")
    if ":" in second:
        raise click.ClickException(f"cannot parse ports {text!r}; expected [LOCAL:]REMOTE, e.g. 8080:80, 80 or :80")
    remote = _remote(pod, second if colon else first)
    local = remote if not colon else _number(first) if first else 0
    if local is None or local > _LARGEST_PORT:
        raise click.ClickException(f"cannot listen on port {first!r}; expected a number from 0 to {_LARGEST_PORT}")
    return PortPair(local, remote)


def _remote(pod: Json, text: str) -> int:
    if (number := _number(text)) is not None:
        if not 0 < number <= _LARGEST_PORT:
            raise click.ClickException(f"cannot forward to port {number}; expected a number from 1 to {_LARGEST_PORT}")
        return number
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    named = {port.get("name"): port["containerPort"] for each in containers for port in each.get("ports") or ()}
    if not text or text not in named:
        known = ", ".join(name for name in named if name)
        hint = f"; its named ports: {known}" if known else "; it has no named ports, use a number"
        raise click.ClickException(f"Pod '{pod['metadata']['name']}' does not have a named port '{text}'{hint}")
    return int(named[text])


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


# ---- listeners ----


@contextlib.contextmanager
def listeners_for(pairs: Sequence[PortPair], address: str) -> Iterator[list[Listener]]:
    """Open the listeners and print them. Print failures, too. Raises ClickException if all fail."""
    groups = _groups(address)
    with contextlib.ExitStack() as opened:
        made: list[Listener] = []
        for pair in pairs:
            try:
                made += _listen(pair, groups, opened)
            except OSError as error:
                click.echo(f"Unable to listen on port {pair.local}: {error.strerror or error}", err=True)
        if not made:
            raise click.ClickException("unable to listen on any of the requested ports")
        for listener in made:
            click.echo(f"Forwarding from {_address(listener.socket)} -> {listener.pair.remote}")
        yield made


def _groups(address: str) -> list[tuple[str, ...]]:
    """Return groups of addresses.

    At least one address of each group must work, because some machines lack ::1 or 127.0.0.1.
    """
    groups: list[tuple[str, ...]] = []
    for each in dict.fromkeys(address.split(",")):
        if each == "localhost":
            groups.append(LOCALHOST)
            continue
        try:
            groups.append((str(ipaddress.ip_address(each)),))
        except ValueError:
            raise click.ClickException(f"{each!r} is not a valid IP; expected an IP address or localhost") from None
    return groups


def _listen(pair: PortPair, groups: Sequence[tuple[str, ...]], opened: contextlib.ExitStack) -> list[Listener]:
    """Listen on the same port on at least one address of each group, otherwise on none. Raises OSError."""
    made: list[Listener] = []
    with contextlib.ExitStack() as undone:
        for group in groups:
            before, failure = len(made), OSError()
            for host in group:
                try:
                    listening = undone.enter_context(_bound(host, pair.local))
                except OSError as error:
                    failure = error
                    continue
                pair = PortPair(listening.getsockname()[1], pair.remote)
                made.append(Listener(listening, pair))
            if len(made) == before:
                raise failure
        opened.push(undone.pop_all())
    return made


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ---- forwarding ----


class Forwarding:
    def __init__(self, client: LocalClient, pod: tuple[str, str]) -> None:
        self._client = client
        self._pod = pod

    def run(self, listeners: Sequence[Listener]) -> None:
        """Accept connections until Ctrl-C."""
        with selectors.DefaultSelector() as selector, contextlib.suppress(KeyboardInterrupt):
            for listener in listeners:
                listener.socket.setblocking(False)
                selector.register(listener.socket, selectors.EVENT_READ, listener)
            while True:
                for key, _ in selector.select(
                    INTERRUPT_CHECK_SECONDS
                ):  # with a timeout, because Ctrl-C is handled between calls
                    self._accept(key.data)

    def _accept(self, listener: Listener) -> None:
        try:
            connected, _ = listener.socket.accept()
        except OSError:
            return  # the client has closed the connection already
        connected.setblocking(True)
        click.echo(f"Handling connection for {listener.pair.local}")
        threading.Thread(target=self._serve, args=(connected, listener.pair), daemon=True).start()

    def _serve(self, connected: socket.socket, pair: PortPair) -> None:
        """Forward one connection until it is closed. Print its error, which does not affect other connections."""
        error_text = ""
        with connected:
            try:
                with self._client.open_channels("portForward", *self._pod, port=pair.remote) as channels:
                    threading.Thread(target=_copy_to_pod, args=(connected, channels), daemon=True).start()
                    error_text = _copy_from_pod(channels, connected)
            except RequestFailed as error:
                error_text = str(error)
            except OSError:
                pass  # the client has closed the connection
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)  # close() alone does not wake the thread in recv()
        if error_text:
            click.echo(f"an error occurred forwarding {pair.local} -> {pair.remote}: {error_text}", err=True)


def _copy_to_pod(connected: socket.socket, channels: ChannelSocket) -> None:
    with contextlib.suppress(OSError):
        while data := connected.recv(_BLOCK_BYTES):
            channels.send(STDIN, data)
        channels.send(CLOSE, bytes([STDIN]))


def _copy_from_pod(channels: ChannelSocket, connected: socket.socket) -> str:
    """Write the pod's data to the connection. Return the error, or "" on success."""
    with contextlib.suppress(struct.error):  # the agent closed the stream within a message
        for channel, data in channels.messages():
            if channel == STDOUT:
                connected.sendall(data)
            elif channel == ERROR:
                return str(json.loads(data).get("message") or "")
    return "lost the connection to the agent"
