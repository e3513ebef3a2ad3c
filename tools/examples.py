"""Copy the examples for `make run`: `python -m tools.examples FOLDER`.

The web server gets a port that is free on this machine. All other files are copied unchanged. Then print commands to
try while the pods run.
"""

import socket
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
USUAL_PORT = 8080

NEXT = """\
The pods of {examples}: a web server with probes (http://127.0.0.1:{port}/), a job, a sidecar pair, a crash loop.
Press Ctrl-C to stop them. In another terminal, try:

    .venv/bin/podkeeper ps                   list pods and the reason if one does not run
    .venv/bin/podkeeper logs -f pair         follow the logs of a pod
    .venv/bin/podkeeper explain crash        show what a pod waits for, and its history
    .venv/bin/podkeeper exec web -- id       run a command in a container
    edit {folder}/job.yaml                   a changed manifest replaces its pod at once
"""


def main(folder: Path) -> int:
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
    """Return the usual port if it is free, otherwise any free port."""
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
