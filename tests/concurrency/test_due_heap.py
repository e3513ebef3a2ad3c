"""A heap of due times behaves like a sorted dictionary, and does not grow with changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeeper.concurrency.due_heap import DueHeap

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("discard"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.just(0)),
    )
)


@given(STEPS)
def test_it_behaves_like_a_sorted_dictionary(steps: list[tuple[str, str, int]]) -> None:
    heap: DueHeap[str, float] = DueHeap()
    model: dict[str, float] = {}
    for step, key, due in steps:
        if step == "set":
            heap.set(key, float(due))
            model[key] = float(due)
        elif step == "discard":
            heap.discard(key)
            model.pop(key, None)
        elif model:
            first = min(model, key=lambda each: (model[each], each))
            assert heap.pop() == first
            del model[first]
        else:
            with pytest.raises(IndexError):
                heap.pop()
        assert heap.next_due() == (min(model.values()) if model else None)
        assert (len(heap), "a" in heap) == (len(model), "a" in model)


def test_postponing_a_key_often_keeps_the_heap_small() -> None:
    heap: DueHeap[str, float] = DueHeap()
    for round_ in range(10_000):
        heap.set("abc"[round_ % 3], float(round_))
    assert len(heap._heap) <= 2 * 3 + 65
    assert [heap.pop() for _ in range(3)] == ["b", "c", "a"]
