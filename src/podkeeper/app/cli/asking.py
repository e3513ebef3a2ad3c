"""What the commands share that ask an agent: where it is, which pod is meant, and what to say when that fails.

Standard library and click only: a command's first word must come at once.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from podkeeper.app.local.client import AskingFailed, Json, LocalClient, NobodyAnswers
from podkeeper.app.local.places import SOCKET_VARIABLE, default_root, default_socket, socket_for

P = ParamSpec("P")
T = TypeVar("T")


def asks(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command the options that say which agent is asked: it gets them as `client`."""

    @click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="The agent's socket.")
    @click.option(
        "--root", type=click.Path(path_type=Path), help="The agent's root, if it was started with one of its own."
    )
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        named, root = kwargs.pop("socket_path"), kwargs.pop("root")
        assert named is None or isinstance(named, Path)
        assert root is None or isinstance(root, Path)
        kwargs["client"] = LocalClient(place_of(named, root))
        with troubles_told():
            return command(*args, **kwargs)

    return wrapped


def place_of(socket_path: Path | None, root: Path | None) -> Path:
    """Where the agent that is meant should listen."""
    return socket_path or (socket_for(root.absolute()) if root is not None else default_socket())


@contextmanager
def troubles_told() -> Iterator[None]:
    """Say what went wrong in a line, and what to do about it."""
    try:
        yield
    except NobodyAnswers as error:
        raise click.ClickException(
            f"{error}\n"
            "Start one with 'podkeeper run PATH...'; if it was started with --root or --socket, say so here as well "
            f"(or set {SOCKET_VARIABLE}). Usual places: {default_socket()}, {default_root()}."
        ) from error
    except AskingFailed as error:
        raise click.ClickException(str(error)) from error
    except BrokenPipeError:
        raise SystemExit(141) from None  # `| head` has seen enough


def pod_named(client: LocalClient, name: str) -> Json:
    """The pod that a person means: `web`, `web-node`, `namespace/web`."""
    return client.get("pods", *name.split("/", 1))


def identity(pod: Json) -> tuple[str, str]:
    """A pod's namespace and full name, as paths want them."""
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def shown_name(pod: Json) -> str:
    """A pod's name as `ps` shows it: with its namespace where that is not the usual one."""
    namespace, name = identity(pod)
    return name if namespace == "default" else f"{namespace}/{name}"


def containers_of(pod: Json) -> list[str]:
    """The names of a pod's containers, in the order in which kubectl shows their logs."""
    spec = pod["spec"]
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [each["name"] for kind in kinds for each in spec.get(kind) or ()]


DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def container_meant(pod: Json, named: str | None) -> str:
    """The container that is meant: the one named, the one the pod names itself, or the first."""
    known = containers_of(pod)
    annotations = pod["metadata"].get("annotations") or {}
    wanted = named or annotations.get(DEFAULT_CONTAINER) or pod["spec"]["containers"][0]["name"]
    if wanted not in known:
        raise click.ClickException(
            f"cannot find a container {wanted!r} in pod {pod['metadata']['name']}; right would be one of: "
            + ", ".join(known)
        )
    return str(wanted)


def container_named(pod: Json, name: str) -> Json:
    """What a pod says about one of its containers."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    every: Iterator[Json] = (each for kind in kinds for each in pod["spec"].get(kind) or ())
    return next(each for each in every if each["name"] == name)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines, in columns, as kubectl writes them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def complete_pod(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of pods that begin so, for the shell; nothing where nobody answers."""
    try:
        found = _client_meant(context).get("pods")
    except (AskingFailed, json.JSONDecodeError):
        return []
    return [CompletionItem(name) for name in map(shown_name, found.get("items") or ()) if name.startswith(begun)]


def complete_container(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the containers of the pod that was named before."""
    # After an option that still lacks its value, click leaves what stands before it unsorted.
    pod = str(context.params.get("pod") or next(iter(context.args), ""))
    try:
        found = pod_named(_client_meant(context), pod)
    except (AskingFailed, json.JSONDecodeError):
        return []
    return [CompletionItem(name) for name in containers_of(found) if name.startswith(begun)]


def _client_meant(context: click.Context) -> LocalClient:
    """The agent that the options typed so far mean."""
    named, root = context.params.get("socket_path"), context.params.get("root")
    return LocalClient(place_of(named and Path(named), root and Path(root)))
