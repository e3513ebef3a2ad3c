"""Command line of podkeeper: one module per command."""

import io
import sys
from difflib import get_close_matches
from importlib import import_module

import click

from podkeeper import __version__

COMMANDS = (
    *("run", "ps", "logs", "exec", "attach", "port-forward", "stop", "start", "describe", "explain"),
    *("validate", "plan", "doctor", "demo", "sim", "completion"),
)


class _CommandGroup(click.Group):
    """Import a command's module only when the command is used, because the imports of some commands are slow."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"available commands: {', '.join(COMMANDS)}"
            ctx.fail(f"unknown command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"podkeeper.app.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command


_EPILOG = """
\b
To begin, run 'podkeeper doctor', then 'podkeeper run examples'.
Run 'podkeeper COMMAND --help' for the options of a command.
"""


@click.command(
    cls=_CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="podkeeper")
def main() -> None:
    """Run pods from manifests on this machine, as the kubelet does."""
    for stream in (sys.stdout, sys.stderr):
        # Print characters that the terminal's encoding lacks as escapes. By default Python would raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
