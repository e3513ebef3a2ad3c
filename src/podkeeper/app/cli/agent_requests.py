"""Helpers of all commands that send requests to an agent.

They find the agent's socket, the pod and the container, and turn errors into messages. Standard library and click
only, so that commands start fast.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from podkeeper.app.local.client import AgentNotRunning, Json, LocalClient, RequestFailed
from podkeeper.app.local.paths import SOCKET_VARIABLE, default_root, default_socket, socket_for

P = ParamSpec("P")
T = TypeVar("T")

CONTAINER_HELP = "Container name [default: the pod's default container, or the first]."


def with_client(command: Callable[P, T]) -> Callable[P, T]:
    """Add the options that select an agent. The command receives a `client` instead of their values."""

    @click.option(
        "--socket", "socket_path", type=click.Path(path_type=Path), help="Socket of the agent [default: from --root]."
    )
    @click.option(
        "--root", type=click.Path(path_type=Path), help=f"Root directory of the agent [default: {default_root()}]."
    )
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        named, root = kwargs.pop("socket_path"), kwargs.pop("root")
        assert named is None or isinstance(named, Path)
        assert root is None or isinstance(root, Path)
        kwargs["client"] = LocalClient(agent_socket(named, root))
        with errors_as_messages():
            return command(*args, **kwargs)

    return wrapped


def agent_socket(socket_path: Path | None, root: Path | None) -> Path:
    return socket_path or (socket_for(root.absolute()) if root is not None else default_socket())


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn exceptions of the client into messages with the next step."""
    try:
        yield
    except AgentNotRunning as error:
        raise click.ClickException(
            f"{error}\n"
            "Start an agent with 'podkeeper run PATH...'. If it was started with --root or --socket, use the same "
            f"option here, or set {SOCKET_VARIABLE}.\n"
            f"Default socket: {default_socket()}, default root: {default_root()}."
        ) from error
    except RequestFailed as error:
        raise click.ClickException(str(error)) from error
    except BrokenPipeError:
        raise SystemExit(141) from None  # the reader, such as `head`, has closed the pipe (128 + SIGPIPE)


def get_pod(client: LocalClient, name: str) -> Json:
    """Return a pod by name: `web`, `web-node` or `namespace/web`."""
    return client.get("pods", *name.split("/", 1))


def identity(pod: Json) -> tuple[str, str]:
    """Return a pod's namespace and full name."""
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def display_name(pod: Json) -> str:
    """Return a pod's name as `ps` shows it, with its namespace if that is not `default`."""
    namespace, name = identity(pod)
    return name if namespace == "default" else f"{namespace}/{name}"


def containers_of(pod: Json) -> list[str]:
    """Return the names of a pod's containers in the order of kubectl's logs."""
    spec = pod["spec"]
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [each["name"] for kind in kinds for each in spec.get(kind) or ()]


DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def chosen_container(pod: Json, named: str | None) -> str:
    """Return the named container, or the one of the default-container annotation, or the first."""
    known = containers_of(pod)
    annotations = pod["metadata"].get("annotations") or {}
    wanted = named or annotations.get(DEFAULT_CONTAINER) or pod["spec"]["containers"][0]["name"]
    if wanted not in known:
        raise click.ClickException(
            f"container {wanted} not found in pod {pod['metadata']['name']}; it has: {', '.join(known)}"
        )
    return str(wanted)


def container_spec(pod: Json, name: str) -> Json:
    """Return the spec of a container."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    containers: Iterator[Json] = (each for kind in kinds for each in pod["spec"].get(kind) or ())
    return next(each for each in containers if each["name"] == name)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines with aligned columns in kubectl's format."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def complete_pod(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Return the pod names with this prefix, or nothing if no agent answers."""
    try:
        found = _client_for(context).get("pods")
    except (RequestFailed, json.JSONDecodeError):
        return []
    return [CompletionItem(name) for name in map(display_name, found.get("items") or ()) if name.startswith(prefix)]


def complete_container(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Return the container names with this prefix of the pod named before."""
    # While the value of an option is being completed, click leaves the preceding arguments in `context.args`.
    pod = str(context.params.get("pod") or next(iter(context.args), ""))
    try:
        found = get_pod(_client_for(context), pod)
    except (RequestFailed, json.JSONDecodeError):
        return []
    return [CompletionItem(name) for name in containers_of(found) if name.startswith(prefix)]


def _client_for(context: click.Context) -> LocalClient:
    """Return a client for the agent that the options typed so far select."""
    named, root = context.params.get("socket_path"), context.params.get("root")
    return LocalClient(agent_socket(named and Path(named), root and Path(root)))
