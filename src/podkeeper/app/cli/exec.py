"""`podkeeper exec POD -- COMMAND`: run a command in a container."""

import click

from podkeeper.app.cli.agent_requests import (
    CONTAINER_HELP,
    chosen_container,
    complete_container,
    complete_pod,
    get_pod,
    identity,
    with_client,
)
from podkeeper.app.local.client import LocalClient


@click.command()
@click.argument("pod", shell_complete=complete_pod)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-c", "--container", metavar="NAME", help=CONTAINER_HELP, shell_complete=complete_container)
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Pass stdin to the command.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Allocate a TTY for the command (needs -i).")
@with_client
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
    from podkeeper.app.cli.terminal_session import has_terminal, run_session

    found = get_pod(client, pod)
    terminal = terminal and with_input and has_terminal()  # like kubectl, no TTY without a terminal as input
    channels = client.open_channels(
        *("exec", *identity(found), chosen_container(found, container)),
        command=command,
        input=with_input,
        output=True,
        error=not terminal,
        tty=terminal,
    )
    raise SystemExit(run_session(channels, with_input=with_input, terminal=terminal))
