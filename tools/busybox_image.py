"""Images from this machine's busybox, for containerd on a machine that reaches no registry.

    python -m tools.busybox_image docker.io/library/busybox:1.36 registry.k8s.io/pause:3.6 \
        | ctr -n k8s.io images import -

Names come in, one OCI archive with an image of each name goes out. A name that ends in `pause:...` gets a first process
that sleeps, which is all that a sandbox's image has to do. Needs Debian's busybox-static.
"""

import sys

from tests.runtimes.cri.oci import BUSYBOX, Store

SLEEPS = {"Cmd": ["sleep", "2147483647"]}
SHELL = {"Cmd": ["sh"]}


def main(names: list[str]) -> int:
    """Write the archive."""
    if not names or sys.stdout.isatty():
        print(__doc__, file=sys.stderr)
        return 2
    if not BUSYBOX.exists():
        print("there is no busybox here: apt-get install busybox-static", file=sys.stderr)
        return 1
    store = Store()
    for name in names:
        store.add(name, SLEEPS if "/pause:" in name else SHELL)
    sys.stdout.buffer.write(store.archive(*names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
