"""Flow control: send windows and window updates."""

from hypothesis import given
from hypothesis import strategies as st

from podkeeper.streams.windows import CONNECTION, INITIAL_BYTES, ReceiveWindows, SendWindows


def windows() -> SendWindows:
    made = SendWindows()
    made.open(1)
    return made


def test_sending_is_not_limited_until_the_peer_uses_windows() -> None:
    made = windows()
    made.take(1, 10 * INITIAL_BYTES)
    assert made.room(1, 5000) == 5000


def test_data_sent_before_counts_once_the_peer_uses_windows() -> None:
    made = windows()
    made.take(1, INITIAL_BYTES)
    made.give(1, 100)
    assert made.room(1, 5000) == 0  # all streams together have no more
    made.give(CONNECTION, 70)
    assert made.room(1, 5000) == 70
    made.give(CONNECTION, 500)
    assert made.room(1, 5000) == 100


def test_a_new_initial_window_applies_to_open_and_new_streams() -> None:
    made = windows()
    made.take(1, 400)
    made.begin_with(1000)
    made.open(3)
    assert (made.room(1, 5000), made.room(3, 5000)) == (600, 1000)
    made.begin_with(100)
    assert (made.room(1, 5000), made.room(3, 5000)) == (0, 100)


def test_updates_of_a_closed_stream_are_ignored() -> None:
    made = windows()
    made.forget(1)
    made.give(1, 100)
    assert made.room(1, 10) == 0


@given(st.lists(st.tuples(st.sampled_from(["send", "give", "give all"]), st.integers(0, 100_000)), max_size=30))
def test_a_sender_never_exceeds_its_windows(history: list[tuple[str, int]]) -> None:
    made = windows()
    made.begin_with(INITIAL_BYTES)
    given_stream = given_all = INITIAL_BYTES
    sent = 0
    for what, count in history:
        match what:
            case "send":
                sent += (room := made.room(1, count))
                made.take(1, room)
            case "give":
                given_stream += count
                made.give(1, count)
            case _:
                given_all += count
                made.give(CONNECTION, count)
        assert sent <= min(given_stream, given_all)
    assert made.room(1, 2**31) == min(given_stream, given_all) - sent


@given(st.lists(st.integers(0, 50_000), max_size=30))
def test_consumed_bytes_are_returned_once_in_half_windows(reads: list[int]) -> None:
    made = ReceiveWindows()
    back = 0
    for count in reads:
        made.add(1, count)
        due = made.due(1)
        assert due == 0 or due >= INITIAL_BYTES // 2
        back += due
    assert 0 <= sum(reads) - back < INITIAL_BYTES // 2
