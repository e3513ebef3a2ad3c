"""`podkeeper exec POD -- COMMAND`: run a command in a container and exit with its status."""

import click

from podkeeper.app.cli.asking import (
    CONTAINER_HELP,
    asks,
    complete_container,
    complete_pod,
    container_meant,
    identity,
    pod_named,
)
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-c", "--container", help=CONTAINER_HELP, shell_complete=complete_container)
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Pass stdin to the command.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Allocate a TTY for the command (needs -i).")
@asks
def exec(
    pod: str, command: tuple[str, ...], container: str | None, with_input: bool, terminal: bool, client: LocalClient
) -> None:
    """Run a command in a container.

    Exits with the exit status of the command. If podkeeper exec ends first, the command receives SIGHUP, then SIGKILL.

    \b
    Examples:
      podkeeper exec web -- ls /
      podkeeper exec -it web -- sh
    """
    from podkeeper.app.cli.talking import has_terminal, talk

    found = pod_named(client, pod)
    terminal = terminal and with_input and has_terminal()  # like kubectl, no TTY without a terminal as input
    conversation = client.talk(
        *("exec", *identity(found), container_meant(found, container)),
        command=command,
        input=with_input,
        output=True,
        error=not terminal,
        tty=terminal,
    )
    raise SystemExit(talk(conversation, with_input=with_input, terminal=terminal))
