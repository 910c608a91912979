"""Batches that workers had made before the loop asked for them, and those that it waited for."""

from __future__ import annotations

from types import SimpleNamespace

from traceq.recorder.jobs.loop_hooks import BatchWaits


class Workers:
    """An iterator whose queue is empty, or not, each time that it is asked."""

    def __init__(self, *is_empty: bool) -> None:
        answers = iter(is_empty)
        self._data_queue = SimpleNamespace(empty=lambda: next(answers))


def test_a_batch_is_waited_for_if_any_read_for_it_found_nothing() -> None:
    """The second one is read behind that of another worker; the third was put aside; the fourth was there."""
    waits, workers = BatchWaits(), Workers(True, False, True, False)
    for num_reads in (1, 2, 0, 1):
        for _ in range(num_reads):
            waits.reads(workers)
        waits.received()
    assert waits.counts() == (4, 2)


def test_an_iterator_without_a_queue_is_no_wait() -> None:
    waits = BatchWaits()
    waits.reads(object())
    waits.received()
    assert waits.counts() == (1, 0)
