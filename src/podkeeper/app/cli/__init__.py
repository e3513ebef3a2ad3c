"""The command line: `podkeeper COMMAND`. One module per command, imported only when it is called."""

from importlib import import_module

import click

from podkeeper import __version__

COMMANDS = (
    *("run", "ps", "logs", "exec", "attach", "stop", "start", "describe", "explain"),
    *("validate", "plan", "doctor", "demo", "sim", "completion"),
)


class _Commands(click.Group):
    """Finds a command in the module of its name, so that no command pays for another's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"podkeeper.app.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="podkeeper")
def main() -> None:
    """Run pods and keep them as their specs say: the Kubernetes node agent, in Python."""
