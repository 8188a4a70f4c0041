"""The min-heap and the watermarks, by themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.store.claims import EVERYTHING, Span
from fleet.testing import make_context
from supervisor.heap import NEVER, Heap
from supervisor.watermark import LOOK_EVERY, MEMORY, Watermark


def test_r05_the_earliest_is_fetched_first_and_nothing_before_its_time():
    heap: Heap[str] = Heap()
    heap.set("late", 9)
    heap.set("early", 1)
    assert heap.pop(0.5) is None
    assert heap.pop(10) == "early"
    assert heap.pop(10) == "late"
    assert heap.pop(10) is None
    assert heap.next_at == NEVER


def test_r05_lines_that_are_due_take_turns():
    heap: Heap[str] = Heap()
    for name in "abc":
        heap.set(name, 0)
    order = []
    for _ in range(6):
        line = heap.pop(1)
        assert line is not None
        order.append(line)
        heap.set(line, 0)  # a full batch: due now, behind the others
    assert order == list("abcabc")


def test_what_is_said_last_counts():
    heap: Heap[str] = Heap()
    heap.set("a", 1)
    heap.set("a", NEVER)
    assert heap.pop(5) is None
    heap.hasten("a", 3)
    heap.hasten("a", 4)
    assert heap.next_at == 3
    heap.hasten("a", 2)
    assert heap.next_at == 2
    heap.discard("a")
    assert heap.pop(5) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["set", "hasten"]), st.integers(0, 20))
    )
)
def test_each_is_in_it_once_and_they_come_in_order(said):
    heap: Heap[str] = Heap()
    expected: dict[str, float] = {}
    for name, how, at in said:
        getattr(heap, how)(name, at)
        if how == "set" or name not in expected or at < expected[name]:
            expected[name] = at
    came = []
    while (name := heap.pop(100)) is not None:
        came.append(name)
    assert sorted(came) == sorted(expected)
    assert [expected[n] for n in came] == sorted(expected.values())


def claim(rank: int, pos: int):
    return make_context()._claim._replace(rank=rank, pos=pos)


def test_a_full_batch_goes_on_from_the_marks_and_leaves_no_gap():
    mark = Watermark()
    assert mark.spans(0, back=False) == EVERYTHING
    mark.took([claim(1, 10), claim(1, 12), claim(-3, 4)], 0)
    low, high = EVERYTHING[0].rank, EVERYTHING[0].below
    assert mark.spans(0, back=False) == (Span(low, 0, -3), Span(-3, 4, 1), Span(1, 12, high))


def test_a_short_one_goes_back_five_seconds_and_not_to_the_start():
    mark = Watermark()
    mark.looked(EVERYTHING, 100, 0.001)
    mark.took([claim(1, 10)], 100)
    mark.took([claim(1, 20)], 103)
    mark.took([claim(1, 30)], 106)
    now = 106.5
    assert now < 100 + LOOK_EVERY + MEMORY
    mark.looked(EVERYTHING, 106, 0.001)
    assert mark.spans(now, back=True)[-1].pos == 10
    assert mark.spans(now, back=False)[-1].pos == 30
    assert mark.spans(now + 2, back=True)[-1].pos == 20


def test_a_look_from_the_start_comes_no_sooner_than_twenty_times_its_cost():
    mark = Watermark()
    mark.took([claim(1, 10)], 0)
    mark.looked(EVERYTHING, 0, 2.0)
    assert mark.spans(39, back=True) != EVERYTHING
    assert mark.spans(41, back=True) == EVERYTHING


def test_a_boot_that_brings_new_steps_resets_it():
    mark = Watermark()
    mark.took([claim(1, 10)], 0)
    mark.reset()
    assert mark.spans(0, back=False) == EVERYTHING
