"""Links to logs: names, targets, and dangling links."""

from podkeeper.model.log_tree import LogLink
from podkeeper.model.runtime import ContainerRecord, PodRecord, RecordState
from podkeeper.rules.logs.symlinks import dangling_links, link_name, links_of

RUNS = ContainerRecord(id="aaa", name="app", state=RecordState.RUNNING, restart_count=2)
ENDED = ContainerRecord(id="bbb", name="app", state=RecordState.EXITED, restart_count=1)
POD = PodRecord(uid="u-1", name="web", namespace="shop", containers=(RUNS, ENDED))


def test_a_link_has_the_name_that_collectors_expect() -> None:
    assert link_name("web", "shop", "app", "0123abc") == "web_shop_app-0123abc.log"


def test_a_name_that_is_too_long_is_cut_before_its_ending() -> None:
    name = link_name("p" * 253, "n" * 63, "c", "f" * 64)
    assert len(name) == 255
    assert name == "p" * 251 + ".log"


def test_every_container_has_a_link_to_the_log_of_its_attempt() -> None:
    assert links_of([POD], "/var/log/pods") == {
        "web_shop_app-aaa.log": LogLink("web_shop_app-aaa.log", "/var/log/pods/shop_web_u-1/app/2.log", True),
        "web_shop_app-bbb.log": LogLink("web_shop_app-bbb.log", "/var/log/pods/shop_web_u-1/app/1.log", False),
    }


def test_a_dangling_link_is_removed_unless_its_container_runs() -> None:
    wanted = links_of([POD], "/var/log/pods")
    there = {
        "web_shop_app-aaa.log": False,  # its log is just being rotated
        "web_shop_app-bbb.log": False,
        "other_shop_app-ccc.log": False,
        "somebodys_shop_app-ddd.log": True,
    }
    assert dangling_links(there, wanted) == ["other_shop_app-ccc.log", "web_shop_app-bbb.log"]
