"""Import table of the packages, import order of the engine, and the architecture page.

    app -> { engine, sources, runtimes, host, volumes, node, server, apiserver, client, journal }
        -> { rules, ports, streams } -> { model, linux, concurrency }

A new import between packages needs a new entry here and an agreed reason. `docs/architecture.md` shows the same
table, and a test compares the two.
"""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import podkeeper

ROOT = Path(podkeeper.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"

EVERYTHING = frozenset({"*"})
BASE = frozenset({"model", "rules", "ports", "concurrency"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "linux": frozenset(),
    "concurrency": frozenset(),
    "rules": frozenset({"model", "linux"}),  # of linux only `logline`, which is pure
    "ports": frozenset({"model"}),
    "streams": frozenset({"model", "linux", "concurrency"}),  # of linux only `logline`
    "engine": BASE,
    "sources": BASE | {"client"},
    "runtimes": BASE | {"linux", "streams"},
    "host": BASE | {"linux"},
    "volumes": BASE | {"linux"},
    "journal": BASE,
    "client": BASE,
    "node": BASE | {"client"},
    "server": BASE | {"streams"},
    "apiserver": BASE,
    "testing": EVERYTHING,
    "app": EVERYTHING,
}
IMPURE = frozenset({"asyncio", "logging", "os", "random", "socket", "sqlite3", "subprocess", "time"})


class Module(NamedTuple):
    package: str
    name: str  # dotted, inside the package
    imports: tuple[str, ...]  # dotted names
    docstring: str | None


@functools.cache
def modules() -> list[Module]:
    """Return all modules of podkeeper, parsed once for all tests."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        tree = ast.parse(path.read_text())
        package = parts[0] if len(parts) > 1 else ""
        found.append(Module(package, ".".join(parts), tuple(imports(tree)), ast.get_docstring(tree)))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names of all imports of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not supported by this test"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_between_packages() -> Iterator[tuple[str, str, str]]:
    """Yield (module, its package, imported package) for each import between packages."""
    for module in modules():
        for target in module.imports:
            if target.startswith("podkeeper.") and (other := target.split(".")[1]) != module.package:
                yield module.name, module.package, other


def test_every_package_is_in_the_table() -> None:
    assert {module.package for module in modules() if module.package} <= MAY_IMPORT.keys()


def test_imports_follow_the_table() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, package, other in imports_between_packages()
        if package and MAY_IMPORT[package] != EVERYTHING and other not in MAY_IMPORT[package] and other != "__version__"
    ]
    assert wrong == []


def test_model_and_rules_are_pure() -> None:
    wrong = [
        f"{module.name} imports {target}"
        for module in modules()
        if module.package in ("model", "rules")
        for target in module.imports
        if target.split(".")[0] in IMPURE
    ]
    assert wrong == []


def test_model_and_rules_use_only_msgspec_and_the_manifest_reader_yaml() -> None:
    own = sys.stdlib_module_names | {"podkeeper", "msgspec"}
    wrong = [
        f"{module.name} imports {library}"
        for module in modules()
        if module.package in ("model", "rules")
        for library in {target.split(".")[0] for target in module.imports} - own
        if not (library == "yaml" and module.name.startswith("model.manifest"))
    ]
    assert wrong == []


def test_linux_and_concurrency_use_only_the_standard_library() -> None:
    wrong = [
        f"{module.name} imports {target}"
        for module in modules()
        if module.package in ("linux", "concurrency")
        for target in module.imports
        if target.split(".")[0] not in sys.stdlib_module_names and not target.startswith(f"podkeeper.{module.package}")
    ]
    assert wrong == []


def test_rules_and_streams_use_only_the_log_line_format_of_linux() -> None:
    wrong = [
        f"{module.name} imports {target}"
        for module in modules()
        if module.package in ("rules", "streams")
        for target in module.imports
        if target.startswith("podkeeper.linux") and not target.startswith("podkeeper.linux.logline")
    ]
    assert wrong == []


ENGINE_ORDER = (
    # Used by all other modules.
    *("observer", "metrics", "history", "background", "queue", "inbox", "checkpoints", "api_sender", "backoff"),
    # Desired pods, events, the node and the runtime with its limits.
    *("manager", "events", "storage", "bounded_runtime", "runtime_state", "node_info"),
    # Observed state.
    *("cache", "orphans", "pod_facts", "pleg", "status_records", "status", "prober", "probes"),
    # Syncs of single pods.
    *("hooks", "stopper", "image_pull_manager", "pull_secrets", "images", "starter", "executor"),
    *("pod_setup", "mirror_client", "static_conflicts", "syncer", "workers"),
    # Decisions about all pods.
    *("container_deletor", "deadlines", "admission", "preemption", "eviction", "state_gc", "housekeeping"),
    *("handlers", "loop"),
    # Garbage collection and log rotation.
    *("container_gc", "image_gc", "log_symlinks", "log_manager"),
)
"""The modules of the engine. A module imports only modules before it, so there is no cycle."""


def test_every_engine_module_has_a_place_in_the_order() -> None:
    found = {module.name.removeprefix("engine.") for module in modules() if module.package == "engine"}
    assert sorted(ENGINE_ORDER) == sorted(found - {"__init__"})


def test_engine_modules_import_only_modules_before_them() -> None:
    place = {name: number for number, name in enumerate(ENGINE_ORDER)}
    wrong = [
        f"{module.name} imports {target}"
        for module in modules()
        if module.package == "engine"
        for target in module.imports
        if target.startswith("podkeeper.engine.")
        and place[target.split(".")[2]] >= place[module.name.removeprefix("engine.")]
    ]
    assert wrong == []


def test_users_of_the_agent_use_only_its_facade() -> None:
    """The CLI, the local API and the demo query `app.agent.Agent`. Only `Agent` itself uses the modules of `Engine`."""
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for package in ("cli", "local", "demo")
        for path in sorted((ROOT / "app" / package).rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"agent\.engine\b", line)
    ]
    assert wrong == []


def test_an_agent_does_not_load_the_yaml_parser() -> None:
    """Only manifests need it, and it takes a tenth of the time of a start."""
    script = "import sys, podkeeper.app.agent; print([name for name in ('yaml', 'aiohttp') if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded == "[]\n"


def test_every_module_has_a_docstring() -> None:
    assert [module.name for module in modules() if not module.docstring] == []


def test_the_architecture_page_shows_this_table() -> None:
    page = (DOCS / "architecture.md").read_text()
    missing = [
        package
        for package, allowed in MAY_IMPORT.items()
        if f"| `{package}/` | {'everything' if allowed == EVERYTHING else ', '.join(sorted(allowed)) or '-'} |"
        not in page
    ]
    assert missing == []


def section(title: str) -> str:
    """Return one section of the architecture page."""
    return (DOCS / "architecture.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def found(dotted: str) -> tuple[str, object]:
    """Return the module of a dotted name inside the package, and the object."""
    known = {module.name.removesuffix(".__init__") for module in modules()}
    name = max((each for each in known if dotted.startswith(f"{each}.")), key=len)
    attributes = dotted.removeprefix(f"{name}.").split(".")
    return name, functools.reduce(getattr, attributes, importlib.import_module(f"podkeeper.{name}"))


def source_of(module: str) -> Path:
    """Return the source file of a module inside the package."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_the_path_of_a_pod_names_functions_that_exist_and_counts_them() -> None:
    text = section("The path of one pod")
    packages = "|".join(MAY_IMPORT)
    links = re.findall(rf"\[`((?:{packages})\.[\w.]+)`\]\((.*?)\)", text)
    assert len(links) == len(re.findall(rf"`(?:{packages})\.[\w.]+`", text)), "every function has a link"
    assert [name for name, _ in links if not callable(found(name)[1])] == []
    assert [target for name, target in links if (DOCS / target).resolve() != source_of(found(name)[0])] == []
    steps = re.findall(rf"^\| [\w ]*\| \[`((?:{packages})\.[\w.]+)`", text, re.MULTILINE)
    files = {found(name)[0] for name in steps}
    assert f"The path has {len(steps)} calls in {len(files)} files." in text


def test_the_modules_on_the_architecture_page_exist() -> None:
    rows = re.findall(r"^\| (`(?:engine|sources|model)/[^|]*)\|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    known = {module.name for module in modules()} | {module.name.rpartition(".")[0] for module in modules()}
    missing = []
    for row in rows:
        package = ""
        for name in re.findall(r"`([\w/*]+)`", row):
            package = name.partition("/")[0] if "/" in name else package
            dotted = name.replace("/", ".") if "/" in name else f"{package}.{name}"
            if dotted.removesuffix(".*").rstrip(".") not in known | set(MAY_IMPORT):
                missing.append(dotted)
    assert missing == []
