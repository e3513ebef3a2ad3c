"""What `exec` and `attach` ask for, and what they say when it is not to be had."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.app.local.house import House, is_open, pod


def test_a_terminal_one_cannot_type_at_is_not_asked_for(it: House) -> None:
    it.write("web.yaml", pod("web", lives={"app": {"exec": [{"output": "hi\n"}]}}))
    it.until(lambda: it.status("web") == "Running")
    result = it.call("exec", "-t", "web", "--", "greet")
    assert (result.exit_code, result.output) == (0, "hi\n")


def test_who_attaches_to_a_container_without_input_and_terminal_is_told_so_and_listens(it: House) -> None:
    it.write("web.yaml", pod("web", policy="Never"))
    it.until(lambda: it.status("web") == "Running")
    log = it.log("web")
    log.touch()

    def live_on() -> None:
        it.until(lambda: is_open(log))
        it.end("web")

    living = threading.Thread(target=live_on)
    living.start()
    result = it.call("attach", "-it", "web")
    living.join()
    assert result.exit_code == 0
    assert "Unable to use stdin - container app has no stdin" in result.output
    assert "Unable to use a TTY - container app did not allocate one" in result.output


@contextmanager
def ctrl_c_unheard(once: Path) -> Iterator[None]:
    """Ctrl-C comes while a file is read, and no wait is interrupted by it: as when it comes a moment before one.

    (The kernel gives it to another thread; Python notes it for the first one.)
    """
    gone, again = threading.Event(), threading.Event()

    def press() -> None:
        while not is_open(once):
            time.sleep(0.01)
        time.sleep(0.2)  # until there is nothing more to be told
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not gone.wait(5):
            again.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored by what was begun with `&`
    pressing.start()
    try:
        yield
    finally:
        gone.set()
        pressing.join()
        signal.signal(signal.SIGINT, before)
    assert not again.is_set(), "heard only when it was pressed again"


@pytest.mark.parametrize("arguments", [("attach", "web"), ("logs", "-f", "web", "app"), ("logs", "-f", "web")])
def test_ctrl_c_is_heard_by_whoever_is_about_to_wait(it: House, arguments: tuple[str, ...]) -> None:
    it.write("web.yaml", pod("web", "app", "side"))
    it.until(lambda: it.status("web") == "Running")
    for container in ("app", "side"):
        it.log("web", container).touch()
    with ctrl_c_unheard(it.log("web")):
        result = it.call(*arguments)
    assert result.exit_code != 0
    assert "Traceback" not in result.output
