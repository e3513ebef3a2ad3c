"""The pod cache: newer means that the inspection began later, and every waiter gets an answer."""

import asyncio
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.engine.cache import IncreasingClock, PodCache
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.messages import PodUID
from podkeeper.model.runtime import PodRecord, SandboxRecord
from podkeeper.testing.virtual_time import VirtualClock, simulate

WEB, DB = PodUID("web"), PodUID("db")


def seen(uid: PodUID = WEB, box: str = "box") -> PodRecord:
    return PodRecord(uid=uid, sandboxes=(SandboxRecord(id=box, ready=True),))


NOTHING = PodRecord(uid=WEB)
REFUSED = RuntimeRefused("connection lost")


def connected(inspect: Callable[[PodUID, float], object]) -> PodCache:
    pods = PodCache()
    pods.connect(inspect)
    return pods


def cache() -> tuple[PodCache, list[PodUID]]:
    requests: list[PodUID] = []
    return connected(lambda uid, since: requests.append(uid)), requests


async def answer(pods: PodCache, since: float | None, uid: PodUID = WEB) -> PodRecord | None:
    """Return a record newer than `since` if that needs no wait, else None."""
    task = asyncio.ensure_future(pods.get_newer_than(uid, since))
    await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    return None


def test_an_unknown_pod_is_an_empty_record() -> None:
    assert cache()[0].get(WEB) == NOTHING


def test_a_stored_record_is_not_replaced_by_an_older_inspection() -> None:
    pods, _ = cache()
    pods.set(WEB, seen(box="new"), at=2)
    pods.set(WEB, seen(box="old"), at=1)
    pods.drop(WEB, at=1.5)
    assert pods.get(WEB) == seen(box="new")


def test_newer_is_strictly_later() -> None:
    async def scenario() -> list[PodRecord | None]:
        pods, _ = cache()
        pods.set(WEB, seen(), at=5)
        return [await answer(pods, since) for since in (None, 4.999, 5, 5.001)]

    assert simulate(scenario())[0] == [seen(), seen(), None, None]


def test_a_reader_of_an_old_entry_causes_an_inspection_at_once() -> None:
    async def scenario() -> tuple[list[PodUID], PodRecord]:
        pods, requests = cache()
        pods.set(WEB, seen(box="old"), at=1)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(pods.get_newer_than(WEB, 3))
            await asyncio.sleep(0)
            pods.set(WEB, seen(box="still old"), at=2)
            pods.set(WEB, seen(box="of the same instant"), at=3)
            pods.set(DB, seen(DB), at=9)
            await asyncio.sleep(1)
            assert not waiting.done()
            pods.set(WEB, seen(box="new"), at=4)
        return requests, waiting.result()

    assert simulate(scenario()) == (([WEB], seen(box="new")), 1.0)


def test_an_inspection_that_ends_during_the_request_is_not_lost() -> None:
    async def scenario() -> PodRecord:
        pods = connected(lambda uid, since: pods.set(uid, seen(), at=4))
        return await pods.get_newer_than(WEB, 3)

    assert simulate(scenario())[0] == seen()


def test_before_the_first_listing_every_reader_waits() -> None:
    async def scenario() -> tuple[PodRecord | None, list[PodUID], PodRecord | None]:
        pods, requests = cache()
        early = await answer(pods, None)
        pods.all_seen(1)
        return early, requests, await answer(pods, None)

    assert simulate(scenario())[0] == (None, [WEB], NOTHING)


def test_a_listing_confirms_all_pods_except_those_it_contradicts() -> None:
    async def scenario() -> list[PodRecord | None]:
        pods, _ = cache()
        pods.set(WEB, seen(), at=1)
        pods.set(DB, seen(DB), at=1)
        new = PodUID("new")
        pods.all_seen(5, but=[DB, new])
        return [
            await answer(pods, 4),
            await answer(pods, 4, DB),
            await answer(pods, 0.5, DB),
            await answer(pods, 4, new),
        ]

    assert simulate(scenario())[0] == [seen(), None, seen(DB), None]


def test_a_pod_held_back_keeps_the_age_the_listing_before_gave_it() -> None:
    async def scenario() -> list[PodRecord | None]:
        pods, _ = cache()
        pods.set(WEB, seen(), at=1)
        pods.all_seen(5)
        pods.all_seen(9, but=[WEB])
        held = [await answer(pods, 4), await answer(pods, 6)]
        pods.set(WEB, seen(box="new"), at=10)
        pods.all_seen(12)
        return [*held, await answer(pods, 11)]

    assert simulate(scenario())[0] == [seen(), None, seen(box="new")]


def test_a_late_inspection_does_not_get_the_age_of_an_earlier_listing() -> None:
    async def scenario() -> list[PodRecord | None]:
        pods, _ = cache()
        pods.all_seen(5)
        pods.set(WEB, seen(), at=4)
        late = [await answer(pods, 3), await answer(pods, 4)]
        pods.all_seen(6)
        return [*late, await answer(pods, 5)]

    assert simulate(scenario())[0] == [seen(), None, seen()]


def test_a_listing_wakes_the_waiters_of_pods_it_confirms() -> None:
    async def scenario() -> list[PodRecord]:
        pods, _ = cache()
        pods.set(DB, seen(DB), at=1)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pods.get_newer_than(uid, 3)) for uid in (WEB, DB)]
            await asyncio.sleep(0)
            pods.all_seen(4)
        return [task.result() for task in tasks]

    assert simulate(scenario())[0] == [NOTHING, seen(DB)]


def test_a_dropped_pod_is_an_empty_record_since_its_drop() -> None:
    async def scenario() -> list[PodRecord | None]:
        pods, _ = cache()
        pods.set(WEB, seen(), at=1)
        pods.drop(WEB, at=3)
        before = [await answer(pods, 2), await answer(pods, 3)]
        pods.all_seen(5)
        pods.all_seen(7, but=[WEB])
        return [*before, await answer(pods, 4), await answer(pods, 6), pods.get(WEB)]

    assert simulate(scenario())[0] == [NOTHING, None, NOTHING, None, NOTHING]


def test_a_failed_inspection_raises_for_its_waiters_and_the_record_stays() -> None:
    async def scenario() -> PodRecord:
        pods, _ = cache()
        pods.set(WEB, seen(), at=1)
        async with asyncio.TaskGroup() as group:
            early = group.create_task(refused(pods, 2))
            late = group.create_task(pods.get_newer_than(WEB, 4))
            await asyncio.sleep(0)
            pods.set_error(WEB, REFUSED, at=3)
            await early
            await refused(pods, 2)
            await refused(pods, None)
            assert pods.get(WEB) == seen()
            assert not late.done()
            pods.set(WEB, seen(box="new"), at=5)
        return late.result()

    async def refused(pods: PodCache, since: float | None) -> None:
        with pytest.raises(RuntimeRefused) as caught:
            await pods.get_newer_than(WEB, since)
        assert caught.value is REFUSED

    assert simulate(scenario())[0] == seen(box="new")


def test_a_cancelled_waiter_affects_no_other() -> None:
    async def scenario() -> PodRecord:
        pods, requests = cache()
        async with asyncio.TaskGroup() as group:
            first, second, third = (group.create_task(pods.get_newer_than(WEB, 1)) for _ in range(3))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.sleep(0)
            pods.set_error(WEB, REFUSED, at=0.5)  # too old for every waiter
            pods.set(WEB, seen(), at=2)
            third.cancel()  # together with its answer
        assert (second.cancelled(), third.cancelled(), len(requests)) == (True, True, 3)
        return first.result()

    assert simulate(scenario())[0] == seen()


STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "error", "drop", "all", "all but"]), st.sampled_from([WEB, DB])), max_size=20
)


@given(STEPS)
def test_each_waiter_gets_a_newer_record(steps: list[tuple[str, PodUID]]) -> None:
    """Compare with a simple model: the instant of the last step about the pod."""

    async def is_newer(pods: PodCache, since: float) -> bool:
        try:
            return await answer(pods, since) is not None
        except RuntimeRefused:
            return True

    async def scenario() -> None:
        pods, _ = cache()
        known = -1
        for at, (step, uid) in enumerate(steps):
            match step:
                case "set":
                    pods.set(uid, seen(uid, str(at)), at)
                case "error":
                    pods.set_error(uid, REFUSED, at)
                case "drop":
                    pods.drop(uid, at)
                case "all":
                    pods.all_seen(at)
                case _:
                    pods.all_seen(at, but=[uid])
            if (uid == WEB) != (step == "all but") or step == "all":
                known = at
            assert not await is_newer(pods, known)
            assert await is_newer(pods, known - 0.5) or known < 0

    simulate(scenario())


def test_a_listed_pod_that_was_never_inspected_is_not_sure() -> None:
    cache = connected(lambda uid, since: None)
    uid, other = PodUID("a"), PodUID("b")
    assert cache.get_if_sure(uid) is None  # nothing was inspected yet
    cache.all_seen(1.0, but=[uid])
    assert cache.get_if_sure(uid) is None  # the pod exists in an unknown state
    assert cache.get_if_sure(other) == PodRecord(uid=other)  # the pod does not exist
    cache.set(uid, PodRecord(uid=uid, name="web"), 2.0)
    assert cache.get_if_sure(uid) == PodRecord(uid=uid, name="web")


def test_a_pod_whose_only_inspection_failed_is_not_sure() -> None:
    cache = connected(lambda uid, since: None)
    cache.all_seen(1.0, but=[WEB])
    cache.set_error(WEB, REFUSED, 2.0)
    assert cache.get_if_sure(WEB) is None  # a listing showed the pod; nothing is known about its containers
    cache.set(WEB, seen(), 3.0)
    cache.set_error(WEB, REFUSED, 4.0)
    assert cache.get_if_sure(WEB) == seen()  # inspected once: this is the last known state


def test_the_cache_returns_whether_it_stored_an_inspection() -> None:
    cache = connected(lambda uid, since: None)
    assert cache.set(WEB, seen(), 1.0)
    cache.all_seen(3.0)
    cache.all_seen(4.0, but=[WEB])
    assert not cache.set(WEB, seen(box="other"), 2.0)  # the listing at 3 confirmed a newer state
    assert not cache.drop(WEB, 2.5)
    assert cache.get(WEB) == seen()
    assert cache.drop(WEB, 5.0)


def test_a_refresh_gets_the_pod_and_the_instant_it_must_begin_after() -> None:
    async def scenario() -> list[tuple[PodUID, float]]:
        requests: list[tuple[PodUID, float]] = []
        pods = connected(lambda uid, since: requests.append((uid, since)))
        for uid, since in ((WEB, 3.0), (DB, None), (WEB, 4.0)):
            await answer(pods, since, uid)
        pods.set(WEB, seen(), 5)
        await answer(pods, 4.5)
        return requests

    assert simulate(scenario())[0] == [(WEB, 3.0), (DB, float("-inf")), (WEB, 4.0)]


@pytest.mark.parametrize("at, expected", [(8, None), (9, None), (9.5, seen(box="new"))])
def test_a_pod_that_a_listing_contradicts_is_sure_again_once_an_inspection_began_after_it(
    at: float, expected: PodRecord | None
) -> None:
    pods, _ = cache()
    pods.set(WEB, seen(), 1)
    pods.all_seen(5)
    assert pods.get_if_sure(WEB) == seen()
    pods.all_seen(9, but=[WEB])
    assert pods.get_if_sure(WEB) is None
    assert pods.set(WEB, seen(box="new"), at)
    assert pods.get_if_sure(WEB) == expected
    pods.all_seen(10)
    assert pods.get_if_sure(WEB) == seen(box="new")


def test_a_failed_inspection_does_not_change_whether_a_record_is_sure() -> None:
    pods, _ = cache()
    pods.set_error(WEB, REFUSED, 1)
    assert pods.get_if_sure(WEB) is None  # nothing was ever listed
    pods.all_seen(2)
    assert pods.get_if_sure(WEB) == NOTHING  # the listing agrees with what is here
    pods.set_error(DB, REFUSED, 3)
    assert pods.get_if_sure(DB) == PodRecord(uid=DB)  # the listing did not show this pod
    pods.all_seen(4, but=[DB])
    pods.set_error(DB, REFUSED, 5)
    assert pods.get_if_sure(DB) is None


def test_a_late_inspection_is_not_sure_until_the_next_listing() -> None:
    pods, _ = cache()
    pods.all_seen(5)
    pods.set(WEB, seen(), 4)
    assert pods.get_if_sure(WEB) is None
    pods.set(DB, seen(DB), 5)
    assert pods.get_if_sure(DB) == seen(DB)
    pods.all_seen(6)
    assert pods.get_if_sure(WEB) == seen()


def test_a_late_listing_makes_no_record_older() -> None:
    async def scenario() -> list[PodRecord | None]:
        pods, _ = cache()
        pods.all_seen(5)
        pods.all_seen(3)
        return [await answer(pods, since) for since in (4, 4.9, 5)]

    assert simulate(scenario())[0] == [NOTHING, NOTHING, None]


def test_a_second_inspection_of_the_same_instant_is_refused() -> None:
    pods, _ = cache()
    assert pods.set(WEB, seen(), 1)
    assert not pods.set(WEB, seen(box="other"), 1)
    assert not pods.drop(WEB, 1)
    pods.set_error(WEB, REFUSED, 1)
    assert (pods.get(WEB), pods.get_if_sure(WEB)) == (seen(), seen())


def test_a_pod_that_comes_back_after_it_was_dropped_stays() -> None:
    pods, _ = cache()
    pods.drop(WEB, 1)
    pods.set(WEB, seen(), 2)
    pods.all_seen(3)
    assert pods.get(WEB) == seen()
    assert not pods.drop(WEB, 1.5)
    for at in (4, 5):
        pods.all_seen(at)
    assert pods.get(WEB) == seen()


@pytest.mark.parametrize(
    "dropped, but, answered",
    [(3, (), [2, 3, 4]), (3, (WEB,), [2]), (5, (), [2, 3, 4]), (6, (), [2, 3, 4, 5])],
    ids=["confirmed by the listing", "there again", "at the same instant", "after the listing"],
)
def test_the_age_of_a_dropped_pod_after_a_listing_at_5(
    dropped: float, but: tuple[PodUID, ...], answered: list[int]
) -> None:
    async def scenario() -> list[int]:
        pods, _ = cache()
        pods.set(WEB, seen(), 1)
        pods.drop(WEB, dropped)
        pods.all_seen(5, but=but)
        return [since for since in range(2, 7) if await answer(pods, since) == NOTHING]

    assert simulate(scenario())[0] == answered


def test_two_inspections_in_a_row_wake_a_waiter_once() -> None:
    async def scenario() -> PodRecord:
        pods, _ = cache()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(pods.get_newer_than(WEB, 3))
            await asyncio.sleep(0)
            pods.set(WEB, seen(box="new"), 4)
            pods.set(WEB, seen(box="newer"), 5)
        return waiting.result()

    assert simulate(scenario())[0] == seen(box="newer")


def test_an_error_raised_many_times_keeps_no_former_tracebacks() -> None:
    async def scenario() -> list[int]:
        pods, _ = cache()
        pods.set_error(WEB, REFUSED, 1)
        lengths = []
        for _ in range(3):
            with pytest.raises(RuntimeRefused) as caught:
                await pods.get_newer_than(WEB, 0)
            lengths.append(len(caught.traceback))
        return lengths

    lengths = simulate(scenario())[0]
    assert lengths == [lengths[0]] * 3


class TracedUID(str):
    """A UID that supports weak references, which a plain `str` does not."""


def test_nothing_is_kept_of_removed_pods_and_their_waiters() -> None:
    async def scenario() -> list[bool]:
        pods, requests = cache()
        watched = []
        for number in range(2):
            uid = PodUID(TracedUID(f"pod-{number}"))
            watched.append(weakref.ref(uid))
            for _ in range(2):
                assert await answer(pods, 9, uid) is None  # gives up
            if number:
                pods.set(uid, seen(uid), 1)
                pods.drop(uid, 2)
                pods.all_seen(3)
                pods.all_seen(4)
        del uid
        requests.clear()
        await asyncio.sleep(0)
        return [reference() is None for reference in watched]

    assert simulate(scenario())[0] == [True, True]


def test_a_requested_inspection_must_begin_after_the_request() -> None:
    requests: list[tuple[PodUID, float]] = []
    connected(lambda uid, since: requests.append((uid, since))).request(WEB)
    assert requests == [(WEB, float("inf"))]


def test_a_cache_without_inspections_waits_for_a_listing() -> None:
    async def scenario() -> PodRecord:
        pods = PodCache()
        asyncio.get_running_loop().call_later(3, pods.all_seen, 1.0)
        return await pods.get_newer_than(WEB, None)

    assert simulate(scenario()) == (NOTHING, 3)


def test_moments_follow_the_clock_and_never_repeat() -> None:
    async def scenario() -> list[float]:
        moment = IncreasingClock(VirtualClock())
        first = [moment(), moment(), moment()]
        await asyncio.sleep(2)
        return [*first, moment()]

    first, second, third, last = simulate(scenario())[0]
    assert first < second < third < 1e-6
    assert (first, last) == (0, 2)
