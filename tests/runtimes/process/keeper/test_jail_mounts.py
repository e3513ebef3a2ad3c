"""The probe of what this machine allows, and the removal of trees."""

import os

import pytest

from podkeeper.linux import idmap, libc, mounts
from podkeeper.runtimes.process.keeper.cleanup import remove_trees
from podkeeper.runtimes.process.keeper.isolation import Isolation, probe
from podkeeper.runtimes.process.keeper.jail import NamespaceJail
from tests.runtimes.process.jail_harness import Machine, in_keeper, run, state_directory


@pytest.mark.parametrize("run_as", ["root", "user"])
def test_the_probe_leaves_nothing_behind(run_as: str) -> None:
    if run_as == "root" and os.geteuid() != 0:
        pytest.skip("needs root")

    def action(state: str) -> tuple[Isolation, list[str]]:
        return probe(f"{state}/new"), os.listdir(f"{state}/new")

    with state_directory(run_as) as state:
        found, left = in_keeper(lambda: action(state), run_as)
        assert mounts.mounts_below(os.path.realpath(state)) == []
    assert left == []
    assert found.namespaces in ({"root": ("full", "user", "none"), "user": ("user", "none")}[run_as])
    assert bool(found.warnings) == (not (found.pid and found.overlay and found.upper == "disk"))
    assert Isolation.from_json(found.to_json()) == found
    assert (",userxattr" in found.overlay_options) is (found.namespaces == "user" and bool(found.overlay))
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    assert found.counts is (found.namespaces == "user" and release >= (5, 14))
    assert (found.uids == idmap.NO_IDS) is (found.gids == idmap.NO_IDS)


def test_on_an_overlay_the_probe_chooses_memory() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")

    def action(state: str) -> tuple[Isolation, tuple[int, str]]:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{state}/{name}")
        options = f"lowerdir={state}/lower,upperdir={state}/upper,workdir={state}/work"
        libc.mount("overlay", f"{state}/merged", "overlay", 0, options)
        found = probe(f"{state}/merged/state")
        spec = Machine("root", f"{state}/merged/state", found).spec(
            "echo x > /tmp/podkeeper-test && cat /tmp/podkeeper-test"
        )
        return found, run(NamespaceJail(isolation=found), spec)

    with state_directory("root", "/tmp") as state:
        found, answer = in_keeper(lambda: action(state))
    assert answer == (0, "x\n")
    assert found.upper == "memory"
    assert "stay in memory" in found.warnings[0]


def test_the_probe_gives_advice_if_namespaces_are_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to take the powers of a root away")

    def action(state: str) -> Isolation:
        # Root without capabilities, in a user namespace that allows no further ones, as on a locked-down machine.
        os.setresuid(65534, 65534, 65534)
        libc.prctl(libc.PR_SET_DUMPABLE, 1)
        idmap.enter_user_namespace(idmap.NO_IDS, idmap.NO_IDS)
        with open("/proc/sys/user/max_user_namespaces", "wb", 0) as limit:
            limit.write(b"0")
        with open("/proc/sys/user/max_mnt_namespaces", "wb", 0) as limit:
            limit.write(b"0")
        return probe(state)

    with state_directory("user") as state:
        found = in_keeper(lambda: action(state))
    assert found.namespaces == "none"
    assert "the kernel refuses namespaces" in found.warnings[0]
    assert "user.max_user_namespaces" in found.warnings[0]


def test_remove_trees_follows_no_link_and_ignores_missing_directories() -> None:
    with state_directory("root") as state:
        os.makedirs(f"{state}/keep")
        os.makedirs(f"{state}/tree/locked/deep")
        os.chmod(f"{state}/tree/locked", 0)
        os.symlink(f"{state}/keep", f"{state}/tree/link")
        with open(f"{state}/keep/x", "w", encoding="utf-8"):
            pass
        remove_trees(f"{state}/tree")
        remove_trees(f"{state}/tree")
        remove_trees(f"{state}/never/was")
        assert os.listdir(state) == ["keep"]
        assert os.listdir(f"{state}/keep") == ["x"]
