"""`podkeeper exec POD -- COMMAND`: run a command in a container; its exit status is passed on."""

import click

from podkeeper.app.cli.asking import asks, complete_container, complete_pod, container_meant, identity, pod_named
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-c", "--container", help="Which container [the first].", shell_complete=complete_container)
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Pass this command's input on.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Give the command a terminal (with -i).")
@asks
def exec(
    pod: str, command: tuple[str, ...], container: str | None, with_input: bool, terminal: bool, client: LocalClient
) -> None:
    """Run a command in a container, such as: podkeeper exec -it web -- sh.

    It ends with this one: when you go, it is told that its terminal is gone (HUP), and killed if it does not mind.
    """
    from podkeeper.app.cli.talking import has_terminal, talk

    found = pod_named(client, pod)
    terminal = terminal and with_input and has_terminal()  # as kubectl has it: a terminal one can type at, or none
    conversation = client.talk(
        *("exec", *identity(found), container_meant(found, container)),
        command=command,
        input=with_input,
        output=True,
        error=not terminal,
        tty=terminal,
    )
    raise SystemExit(talk(conversation, with_input=with_input, terminal=terminal))
