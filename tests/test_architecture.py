"""The import table of the house, executable: which room may know which.

    app -> { engine, sources, runtimes, host, volumes, node, server, apiserver, client, journal }
        -> { rules, ports } -> model

A new arrow needs a new entry here and a reviewer who agrees. `docs/architecture.md` shows the same table
(and a test keeps the two alike).
"""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import podkeeper

ROOT = Path(podkeeper.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"

EVERYTHING = frozenset({"*"})
BASE = frozenset({"model", "rules", "ports"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "rules": frozenset({"model"}),
    "ports": frozenset({"model"}),
    "engine": BASE,
    "sources": BASE | {"client"},
    "runtimes": BASE,
    "host": BASE,
    "volumes": BASE,
    "journal": BASE,
    "client": BASE,
    "node": BASE | {"client"},
    "server": BASE,
    "apiserver": BASE,
    "testing": EVERYTHING,
    "app": EVERYTHING,
}
IMPURE = frozenset({"asyncio", "logging", "os", "random", "socket", "sqlite3", "subprocess", "time"})


class Module(NamedTuple):
    room: str
    name: str  # dotted, inside the package
    imports: tuple[str, ...]  # dotted names
    docstring: str | None


@functools.cache
def modules() -> list[Module]:
    """Every module of the package, parsed once for all tests."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        tree = ast.parse(path.read_text())
        room = parts[0] if len(parts) > 1 else ""
        found.append(Module(room, ".".join(parts), tuple(imports(tree)), ast.get_docstring(tree)))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of everything a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this table can read them"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows() -> Iterator[tuple[str, str, str]]:
    """(module, its room, room it imports) for every arrow between rooms."""
    for module in modules():
        for target in module.imports:
            if target.startswith("podkeeper.") and (other := target.split(".")[1]) != module.room:
                yield module.name, module.room, other


def test_every_room_is_in_the_table() -> None:
    assert {module.room for module in modules() if module.room} <= MAY_IMPORT.keys()


def test_imports_follow_the_table() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, room, other in arrows()
        if room and MAY_IMPORT[room] != EVERYTHING and other not in MAY_IMPORT[room] and other != "__version__"
    ]
    assert wrong == []


def test_model_and_rules_are_pure() -> None:
    wrong = [
        f"{module.name} imports {target}"
        for module in modules()
        if module.room in ("model", "rules")
        for target in module.imports
        if target.split(".")[0] in IMPURE
    ]
    assert wrong == []


def test_model_and_rules_use_no_library_but_msgspec_and_only_the_manifest_reader_knows_yaml() -> None:
    own = sys.stdlib_module_names | {"podkeeper", "msgspec"}
    wrong = [
        f"{module.name} imports {library}"
        for module in modules()
        if module.room in ("model", "rules")
        for library in {target.split(".")[0] for target in module.imports} - own
        if not (library == "yaml" and module.name.startswith("model.manifest"))
    ]
    assert wrong == []


ENGINE_ORDER = (
    # What every other module may use.
    *("observer", "metrics", "history", "background", "queue", "notebook", "postman", "backoff"),
    # Desired pods, what is published about them, and the runtime behind its limits.
    *("storage", "manager", "events", "guard"),
    # What is observed.
    *("cache", "pleg", "status", "prober", "probes"),
    # What a sync does with one pod.
    *("hooks", "stopper", "image_access", "pull_secrets", "images", "starter", "executor"),
    *("ground", "mirrors", "predecessors", "syncer", "workers"),
    # What the loop does with all pods.
    *("deadlines", "admission", "preemption", "evictor", "orphans", "housekeeping", "handlers", "loop"),
    # Garbage collection and log rotation.
    *("container_care", "image_care", "link_care", "log_care"),
)
"""The modules of the engine. A module imports only modules before it, so there is no cycle."""


def test_every_engine_module_has_a_place_in_the_order() -> None:
    found = {module.name.removeprefix("engine.") for module in modules() if module.room == "engine"}
    assert sorted(ENGINE_ORDER) == sorted(found - {"__init__"})


def test_engine_modules_import_only_modules_before_them() -> None:
    place = {name: number for number, name in enumerate(ENGINE_ORDER)}
    wrong = [
        f"{module.name} imports {target}"
        for module in modules()
        if module.room == "engine"
        for target in module.imports
        if target.startswith("podkeeper.engine.")
        and place[target.split(".")[2]] >= place[module.name.removeprefix("engine.")]
    ]
    assert wrong == []


def test_every_module_says_what_the_room_is_for() -> None:
    assert [module.name for module in modules() if not module.docstring] == []


def test_the_architecture_page_shows_this_table() -> None:
    page = (DOCS / "architecture.md").read_text()
    missing = [
        room
        for room, allowed in MAY_IMPORT.items()
        if f"| `{room}/` | {'everything' if allowed == EVERYTHING else ', '.join(sorted(allowed)) or '-'} |" not in page
    ]
    assert missing == []
