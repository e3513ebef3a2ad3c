"""`podkeeper attach POD`: attach to the main process of a running container."""

import click

from podkeeper.app.cli.agent_requests import (
    CONTAINER_HELP,
    chosen_container,
    complete_container,
    complete_pod,
    container_spec,
    get_pod,
    identity,
    with_client,
)
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.option("-c", "--container", metavar="NAME", help=CONTAINER_HELP, shell_complete=complete_container)
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Pass stdin to the container.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Use this terminal as the container's TTY (needs -i).")
@with_client
def attach(pod: str, container: str | None, with_input: bool, terminal: bool, client: LocalClient) -> None:
    """Attach to the main process of a container.

    Prints the output that the container writes from now on. Ctrl-C detaches, and the container keeps running. With
    -it, the container receives all keys, including Ctrl-C. To detach then, close the terminal or kill this command.

    A container with stdinOnce reaches the end of its input when the first client detaches.

    \b
    Examples:
      podkeeper attach web
      podkeeper attach -it shell
    """
    from podkeeper.app.cli.terminal_session import run_session

    found = get_pod(client, pod)
    name = chosen_container(found, container)
    with_input, terminal = _supported(container_spec(found, name), with_input, terminal)
    channels = client.open_channels(
        *("attach", *identity(found), name),
        input=with_input,
        output=True,
        error=not terminal,
        tty=terminal,
    )
    if terminal:
        click.echo("If you don't see a command prompt, try pressing enter.", err=True)
    raise SystemExit(run_session(channels, with_input=with_input, terminal=terminal, redraw=True))


def _supported(container: dict[str, object], with_input: bool, terminal: bool) -> tuple[bool, bool]:
    """Return whether to use stdin and a TTY. Print what the container does not support, as kubectl does."""
    from podkeeper.app.cli.terminal_session import has_terminal

    name = container["name"]
    if with_input and not container.get("stdin"):
        click.echo(f"Unable to use stdin - container {name} has no stdin", err=True)
        with_input = False
    if terminal and not container.get("tty"):
        click.echo(f"Unable to use a TTY - container {name} did not allocate one", err=True)
    # Use the TTY even without -t: input to a container with a TTY always goes through it.
    return with_input, bool(with_input and container.get("tty") and has_terminal())
