"""Events of containers."""

from podkeeper.rules.container.events import EventReason, normal
from podkeeper.testing.build import pod


def test_events_never_contain_a_container_id() -> None:
    event = normal(pod("web", uid="uid-1"), "app", EventReason.KILLING, "cannot stop c0ffee", "c0ffee")
    assert (event.message, event.container_path, event.uid) == ("cannot stop app", "spec.containers{app}", "uid-1")
