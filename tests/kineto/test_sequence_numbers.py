"""Sequence numbers of collectives that torch writes only among the inputs of `record_param_comms`."""

from __future__ import annotations

from typing import Any

from builder import Event, build, comms

GROUP = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}


def recorded(start: int, number: object, name: str = "all_to_allv", **more: Any) -> Event:
    """A call as torch 2.4 records it: its tensors, its number, its group, the rank, ..."""
    inputs = {"Concrete Inputs": ["", str(number), "", "3", ""], "Input type": ["float", "Scalar", "", "Scalar", ""]}
    return comms(name, start, 5, (8, 8), **inputs | GROUP | more)


def waited(start: int, number: int) -> Event:
    """A wait for the call of that number: no tensors, so the number comes first."""
    inputs = {"Concrete Inputs": [str(number), "", "3", ""], "Input type": ["Scalar", "", "Scalar", ""]}
    return comms("wait", start, 2, **inputs | GROUP | {"Process Group Ranks": "[]"})


def numbers(*events: Event) -> list[int]:
    return build(*events).events.messages.sequence.tolist()


def test_the_number_is_the_first_scalar_behind_the_tensors() -> None:
    backward = recorded(30, 43, tid=2), recorded(40, 44, tid=2)  # in the file before what the main thread issued
    assert numbers(*backward, recorded(0, 41), waited(12, 41), recorded(20, 42)) == [43, 44, 41, -1, 42]


def test_a_wait_alone_has_none() -> None:
    assert numbers(waited(12, 41)) == [-1]


def test_a_barrier_has_no_tensors_and_counts() -> None:
    barrier = {"Concrete Inputs": ["42", "", "3"], "Input type": ["Scalar", "", "Scalar"]}
    assert numbers(recorded(0, 41), recorded(10, 0, "barrier", **barrier), recorded(20, 43)) == [41, 42, 43]


def test_what_does_not_ascend_by_one_is_no_sequence_number() -> None:
    assert numbers(recorded(0, 1), recorded(10, 1)) == [-1, -1]
    assert numbers(recorded(0, 41), recorded(10, 43)) == [-1, -1]


def test_each_group_counts_for_itself() -> None:
    other = {"Process Group Name": "1"}
    events = recorded(0, 41), recorded(5, 7, **other), recorded(10, 42), recorded(15, 9, **other)
    assert numbers(*events) == [41, -1, 42, -1]


def test_messages_between_two_ranks_count_on_these_alone() -> None:
    assert numbers(recorded(0, 41), recorded(10, 42, "send"), recorded(20, 43)) == [-1, -1, -1]


def test_a_number_in_a_tuple_is_not_written_and_the_rank_is_none() -> None:
    in_tuple = {"Concrete Inputs": ["", "", "", "0", ""], "Input type": ["float", "", "", "Scalar", ""]}
    assert numbers(recorded(0, 0, **in_tuple)) == [-1]
    in_tuple = {"Concrete Inputs": ["", "", "0", ""], "Input type": ["", "", "Scalar", ""]}
    assert numbers(recorded(0, 0, "barrier", **in_tuple)) == [-1]


def test_numbers_that_the_trace_names_stay() -> None:
    assert numbers(recorded(0, 41, Seq=5), recorded(10, 42, Seq=6)) == [5, 6]


def test_inputs_that_are_no_list_have_no_number() -> None:
    assert numbers(recorded(0, 41, **{"Concrete Inputs": "41"})) == [-1]
    assert numbers(recorded(0, "inf")) == [-1]
