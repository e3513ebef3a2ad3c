"""Settings and fixtures for all tests: Hypothesis profile, order of slow tests, TLS certificate.

Hypothesis draws the same examples on every machine. At the end of a run, pytest prints the number of interleavings and
injected failures (`podkeeper.testing.operations`).
"""

import gc
import os
import shutil
import ssl
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from podkeeper.testing import operations
from tests.violations import take_violations

# Otherwise gRPC restarts its threads in a child that is forked for a subprocess with `preexec_fn`. When that child
# closes its descriptors, before it executes anything, gRPC aborts it (6 of 300 times).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

settings.register_profile(
    "podkeeper",
    max_examples=50,  # always the same, so more would only cost time
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("podkeeper")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest slow tests first, so that no xdist worker starts one when the others are done."""
    if config.getoption("markexpr") == "slow":  # fast runs keep the order, because `tools.mutants` stops at a failure
        items.sort(key=lambda item: not ("sim" in item.path.parts and item.get_closest_marker("slow")))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage less often, because it costs a tenth of the CPU time of the simulation tests."""
    gc.set_threshold(20_000, 20, 20)
    gc.collect()
    gc.freeze()  # exclude the thousands of collected tests


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of an xdist worker to the controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["operation_runs"] = dict(operations.COUNTS)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add the counts of an xdist worker."""
    operations.COUNTS.update(getattr(node, "workeroutput", {}).get("operation_runs", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if operations.COUNTS:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(operations.COUNTS.items()))
        terminalreporter.write_line(f"operation runs: {counts}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Fail a test in which a check inside a fake failed, though the code under test caught the exception."""
    take_violations()
    try:
        yield
    except BaseException as error:
        for message in take_violations():
            error.add_note(f"a fake reported: {message}")
        raise
    if found := take_violations():
        raise AssertionError("; ".join(found))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLContext]:
    """Return a server-side TLS context with a self-signed certificate for another host name."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("making a certificate needs the openssl command")
    key, made = (str(tmp_path_factory.mktemp("tls") / name) for name in ("key.pem", "certificate.pem"))
    kind = ["-newkey", "rsa:1024", "-nodes", "-subj", "/CN=another-host.invalid", "-days", "1"]
    subprocess.run([openssl, "req", "-x509", *kind, "-keyout", key, "-out", made], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=1")
    context.load_cert_chain(made, key)
    yield context
    Path(key).unlink()
