"""Lay out the examples for `make run`: `python -m tools.examples FOLDER`.

They are copied as they are, save that the web server gets a port that is free on this machine. Then it is said what
can be tried while they run.
"""

import socket
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
USUAL_PORT = 8080

NEXT = """\
The pods of {examples}: a web server with probes (http://127.0.0.1:{port}/), a job, a sidecar pair, a crash loop.
Ctrl-C stops them. In another terminal, meanwhile:

    .venv/bin/podkeeper ps                   what runs, and why something does not
    .venv/bin/podkeeper logs -f pair         what containers say
    .venv/bin/podkeeper explain crash        what a pod waits for, and how it got there
    .venv/bin/podkeeper exec web -- id       a command inside a container
    edit {folder}/job.yaml                   another manifest is another pod, at once
"""


def main(folder: Path) -> int:
    """Lay them out."""
    port = free_port(USUAL_PORT)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(EXAMPLES.glob("*.yaml")):
        text = path.read_text().replace(str(USUAL_PORT), str(port))
        copy = folder / path.name
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
    sys.stdout.write(NEXT.format(examples=EXAMPLES.name, port=port, folder=folder))
    return 0


def free_port(usual: int) -> int:
    """The usual port if nobody has it, else any that is free."""
    for port in (usual, 0):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    return usual


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
