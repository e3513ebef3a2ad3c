"""`podkeeper attach POD`: join the first process of a container, from now on."""

import click

from podkeeper.app.cli.asking import asks, complete_pod, container_meant, identity, pod_named
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.option("-c", "--container", help="Which container [the first].")
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Pass this command's input on.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Its terminal is ours.")
@asks
def attach(pod: str, container: str | None, with_input: bool, terminal: bool, client: LocalClient) -> None:
    """See what a container writes from now on, and talk with it. Ctrl-C leaves it alone."""
    from podkeeper.app.cli.talking import has_terminal, talk

    found = pod_named(client, pod)
    terminal = terminal and has_terminal()
    conversation = client.talk(
        *("attach", *identity(found), container_meant(found, container)),
        input=with_input,
        output=True,
        error=not terminal,
        tty=terminal,
    )
    raise SystemExit(talk(conversation, with_input=with_input, terminal=terminal))
