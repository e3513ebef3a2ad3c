"""What `exec` and `attach` ask for, and what they say when it is not to be had."""

import threading

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
    assert "Unable to pass input on - container app has no stdin" in result.output
    assert "Unable to use a TTY - container app did not allocate one" in result.output
