"""`exec` and `attach` without a terminal or stdin, and with Ctrl-C."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.app.local.harness import Harness, is_open, manifest


def test_no_tty_is_requested_without_a_local_terminal(it: Harness) -> None:
    it.write("web.yaml", manifest("web", lives={"app": {"exec": [{"output": "hi\n"}]}}))
    it.until(lambda: it.status("web") == "Running")
    result = it.call("exec", "-t", "web", "--", "greet")
    assert (result.exit_code, result.output) == (0, "hi\n")


def test_attach_to_a_container_without_stdin_and_tty_prints_a_message_and_the_output(it: Harness) -> None:
    it.write("web.yaml", manifest("web", policy="Never"))
    it.until(lambda: it.status("web") == "Running")
    log = it.log("web")
    log.touch()

    def write_and_exit() -> None:
        it.until(lambda: is_open(log))
        it.end("web")

    living = threading.Thread(target=write_and_exit)
    living.start()
    result = it.call("attach", "-it", "web")
    living.join()
    assert result.exit_code == 0
    assert "Unable to use stdin - container app has no stdin" in result.output
    assert "Unable to use a TTY - container app did not allocate one" in result.output


@contextmanager
def ctrl_c_without_interrupt(once: Path) -> Iterator[None]:
    """Press Ctrl-C while a file is open, without interrupting a wait, like a Ctrl-C just before the wait.

    (The kernel gives it to another thread; Python notes it for the first one.)
    """
    gone, again = threading.Event(), threading.Event()

    def press() -> None:
        while not is_open(once):
            time.sleep(0.01)
        time.sleep(0.2)  # until all output is printed
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not gone.wait(5):
            again.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes started with `&` ignore it
    pressing.start()
    try:
        yield
    finally:
        gone.set()
        pressing.join()
        signal.signal(signal.SIGINT, before)
    assert not again.is_set(), "Ctrl-C was handled only when it was pressed again"


@pytest.mark.parametrize("arguments", [("attach", "web"), ("logs", "-f", "web", "app"), ("logs", "-f", "web")])
def test_ctrl_c_just_before_a_wait_ends_the_command(it: Harness, arguments: tuple[str, ...]) -> None:
    it.write("web.yaml", manifest("web", "app", "side"))
    it.until(lambda: it.status("web") == "Running")
    for container in ("app", "side"):
        it.log("web", container).touch()
    with ctrl_c_without_interrupt(it.log("web")):
        result = it.call(*arguments)
    assert result.exit_code != 0
    assert "Traceback" not in result.output
