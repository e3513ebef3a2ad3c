"""`podkeeper attach POD`: join the first process of a container, from now on."""

import click

from podkeeper.app.cli.asking import (
    asks,
    complete_container,
    complete_pod,
    container_meant,
    container_named,
    identity,
    pod_named,
)
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.option("-c", "--container", help="Which container [the first].", shell_complete=complete_container)
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Pass this command's input on.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Its terminal is ours (with -i).")
@asks
def attach(pod: str, container: str | None, with_input: bool, terminal: bool, client: LocalClient) -> None:
    """See what a container writes from now on, and talk with it.

    Ctrl-C leaves it alone, unless its terminal is ours (-it): then every key goes there, Ctrl-C too. To leave it
    running, close the window or end this command. It goes on without you; only a container with stdinOnce finds its
    input ended when the first who wrote to it goes.
    """
    from podkeeper.app.cli.talking import talk

    found = pod_named(client, pod)
    name = container_meant(found, container)
    with_input, terminal = _possible(container_named(found, name), with_input, terminal)
    conversation = client.talk(
        *("attach", *identity(found), name),
        input=with_input,
        output=True,
        error=not terminal,
        tty=terminal,
    )
    if terminal:
        click.echo("If you don't see a command prompt, try pressing enter.", err=True)
    raise SystemExit(talk(conversation, with_input=with_input, terminal=terminal, redraw=True))


def _possible(container: dict[str, object], with_input: bool, terminal: bool) -> tuple[bool, bool]:
    """What of an input and a terminal there is to be had; says what there is not, as kubectl does."""
    from podkeeper.app.cli.talking import has_terminal

    name = container["name"]
    if with_input and not container.get("stdin"):
        click.echo(f"Unable to pass input on - container {name} has no stdin", err=True)
        with_input = False
    if terminal and not container.get("tty"):
        click.echo(f"Unable to use a TTY - container {name} did not allocate one", err=True)
    # Who writes to a container at a terminal is at that terminal, asked for or not.
    return with_input, bool(with_input and container.get("tty") and has_terminal())
