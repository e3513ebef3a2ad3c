"""`podkeeper completion SHELL`: print a shell completion script."""

import click

_HINTS = {
    "bash": '  eval "$(podkeeper completion bash)"    # in ~/.bashrc',
    "zsh": '  eval "$(podkeeper completion zsh)"     # in ~/.zshrc',
    "fish": "  podkeeper completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\nTo enable completion, add one of these lines:\n" + "\n".join(_HINTS.values()))
@click.argument("shell", type=click.Choice(list(_HINTS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    root = context.find_root().command
    click.echo(complete(root, {}, "podkeeper", "_PODKEEPER_COMPLETE").source())
