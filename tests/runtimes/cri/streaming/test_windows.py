"""Windows: what may be sent, and what is given back."""

from hypothesis import given
from hypothesis import strategies as st

from podkeeper.runtimes.cri.streaming.windows import CONNECTION, INITIAL_BYTES, ReceiveWindows, SendWindows


def windows() -> SendWindows:
    made = SendWindows()
    made.open(1)
    return made


def test_before_the_other_side_speaks_of_windows_everything_may_go() -> None:
    made = windows()
    made.take(1, 10 * INITIAL_BYTES)
    assert made.room(1, 5000) == 5000


def test_once_it_does_what_was_sent_before_counts() -> None:
    made = windows()
    made.take(1, INITIAL_BYTES)
    made.give(1, 100)
    assert made.room(1, 5000) == 0  # all streams together have no more
    made.give(CONNECTION, 70)
    assert made.room(1, 5000) == 70
    made.give(CONNECTION, 500)
    assert made.room(1, 5000) == 100


def test_another_size_to_begin_with_changes_streams_that_are_open_and_those_to_come() -> None:
    made = windows()
    made.take(1, 400)
    made.begin_with(1000)
    made.open(3)
    assert (made.room(1, 5000), made.room(3, 5000)) == (600, 1000)
    made.begin_with(100)
    assert (made.room(1, 5000), made.room(3, 5000)) == (0, 100)


def test_a_stream_that_is_over_has_no_room_and_news_of_it_are_no_trouble() -> None:
    made = windows()
    made.forget(1)
    made.give(1, 100)
    assert made.room(1, 10) == 0


@given(st.lists(st.tuples(st.sampled_from(["send", "give", "give all"]), st.integers(0, 100_000)), max_size=30))
def test_who_keeps_to_the_room_never_sends_more_than_was_given(history: list[tuple[str, int]]) -> None:
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
def test_what_was_read_is_given_back_in_pieces_worth_a_frame_and_never_twice(reads: list[int]) -> None:
    made = ReceiveWindows()
    back = 0
    for count in reads:
        made.add(1, count)
        due = made.due(1)
        assert due == 0 or due >= INITIAL_BYTES // 2
        back += due
    assert 0 <= sum(reads) - back < INITIAL_BYTES // 2
