"""The imports of keepers: few and small."""

import ast
import subprocess
import sys
from pathlib import Path

import podkeeper

PACKAGE = Path(podkeeper.__file__).parent / "runtimes" / "process" / "keeper"
OWN = "podkeeper.runtimes.process.keeper"
LINUX = "podkeeper.linux"
HEAVY = (
    "asyncio",
    "dataclasses_json",
    "email",
    "http",
    "logging",
    "msgspec",
    "subprocess",
    "typing_extensions",
    "yaml",
)


def test_keepers_import_only_the_standard_library_linux_and_each_other() -> None:
    wrong = []
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [
                f"{path.name} imports {name}"
                for name in names
                if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith((OWN, LINUX))
            ]
    assert wrong == []


def test_the_fork_server_imports_no_heavy_module() -> None:
    source = Path(podkeeper.__file__).parent.parent
    script = f"import sys; sys.path.insert(0, {str(source)!r}); import {OWN}.fork_server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    assert f"{OWN}.keeper" in modules
    assert modules.isdisjoint(HEAVY)
    assert {name for name in modules if name.startswith("podkeeper.") and not name.startswith((OWN, LINUX))} == {
        "podkeeper.runtimes",
        "podkeeper.runtimes.process",
    }
