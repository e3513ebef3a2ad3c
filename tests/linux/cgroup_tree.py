"""Plain files that look like the cgroups of a machine."""

from pathlib import Path

from podkeeper.linux.cgroup_support import CgroupSupport, detect


class CgroupTree:
    """Mounted hierarchies, and the cgroup of this process, as plain files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.proc = directory / "proc" / "self"
        self.proc.mkdir(parents=True)
        (self.proc / "status").write_text("Name:\tpython\nPPid:\t0\n")
        for name in ("mountinfo", "cgroup"):
            (self.proc / name).write_text("")

    def version_1(self, name: str, own: str = "/") -> Path:
        top = self.directory / name
        self._mount(f"cgroup cgroup rw,{name}", top, f"9:{name}:{own}")
        return self.cgroup(top)

    def version_2(self, own: str = "/", controllers: str = "cpu memory pids") -> Path:
        top = self.directory / "unified"
        self._mount("cgroup2 cgroup2 rw", top, f"0::{own}")
        return self.cgroup(top, controllers, top=True)

    def cgroup(self, directory: Path, controllers: str | None = None, *, top: bool = False, procs: str = "") -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text(procs)
        if controllers is not None:
            (directory / "cgroup.controllers").write_text(controllers)
            (directory / "cgroup.subtree_control").write_text("")
            if not top:
                (directory / "cgroup.events").write_text("populated 1\n")
        return directory

    def _mount(self, kind: str, point: Path, own: str) -> None:
        with (self.proc / "mountinfo").open("a") as mounts:
            mounts.write(f"30 22 0:30 / {point} rw,relatime - {kind}\n")
        with (self.proc / "cgroup").open("a") as cgroups:
            cgroups.write(f"{own}\n")

    def detect(self) -> CgroupSupport:
        return detect(str(self.proc))


def kernel_makes(directory: Path, *names: str) -> None:
    """Create the files of a cgroup, as the kernel does together with its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("")
