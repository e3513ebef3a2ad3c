"""The command line: `podkeeper COMMAND`. One module per command, imported only when it is called."""

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


class _Commands(click.Group):
    """Finds a command in the module of its name, so that no command pays for another's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(COMMANDS)}"
            ctx.fail(f"cannot find a command {args[0]!r}; {hint}")
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
Begin with:                podkeeper doctor
                           podkeeper run examples
In another terminal then:  podkeeper ps
"""


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="podkeeper")
def main() -> None:
    """Run pods and keep them as their specs say: the Kubernetes node agent, in Python."""
    for stream in (sys.stdout, sys.stderr):
        # What a terminal cannot show is told in escapes; it is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
