"""Where steps begin is learned from events alone, whatever the loop does around them."""

from __future__ import annotations

from itertools import chain, count, cycle, islice

import pytest

from traceq.recorder.jobs.step_pattern import short_text
from traceq.recorder.jobs.step_tracker import StepTracker


def split(*steps: str, num_events: int = 2_000) -> tuple[StepTracker, list[list[str]]]:
    """Return the tracker of a loop that repeats these steps, and the steps that it saw after it had learned."""
    tracker, seen = StepTracker(), [list[str]()]
    for event in islice(cycle(" ".join(steps).split()), num_events):
        if tracker.add(event):
            seen.append([])
        if tracker.pattern is not None:
            seen[-1].append(event)
    return tracker, seen[1:-1]


@pytest.mark.parametrize(
    ("step", "start", "anchor"),
    [
        ("L F B O0", "L", "O0"),
        ("F B O0", "F", "O0"),
        ("F B F B O0", "F", "O0"),  # accumulation
        ("L L F B F B O0", "L", "O0"),  # the batches of a step are fetched together
        ("L F B F F B O0 F B O1", "L", "O1"),  # two networks
        ("F B F F B O0 F B O1", "F", "O1"),
        ("L F B O0 F B O0 F B O0 F B O1", "L", "O1"),  # the second network steps rarely
        ("L F B O0 O1 O2 O3", "L", "O3"),  # an optimizer for each parameter, in backward
        ("L F B F B F B F B O0", "L", "O0"),  # a closure
        ("L F B O0 f f", "L", "O0"),  # metrics behind the step
        ("L F B O0 F", "L", "O0"),  # the same, with gradients
        ("F L B O0", "F", "O0"),  # the batch is the next step's
        ("F B L O0", "F", "O0"),
        ("F L B F L B O0", "F", "O0"),
        ("F L B O0 F B O1", "F", "O1"),
        ("L B F B O0", "L", "O0"),  # the backward of a penalty
        ("F B O0 f", "F", "O0"),
        ("L F B", "L", "B"),  # the optimizer is compiled, or not one of torch
        ("F B f", "F", "B"),
        ("B O0", "B", "O0"),  # methods of the model are called, never its forward
        ("B O0 f", "B", "O0"),
        ("B B O0 B O1", "B", "O1"),
        ("B O0 f f f", "B", "O0"),  # an adjoint method has no other forward
        ("B", "B", "B"),
    ],
)
def test_every_step_begins_with_its_first_event(step: str, start: str, anchor: str) -> None:
    tracker, steps = split(step)
    assert tracker.pattern is not None
    assert (tracker.pattern.start, tracker.pattern.anchor) == (start, anchor)
    assert tracker.pattern.is_reliable
    assert len(steps) > 50
    assert {" ".join(events) for events in steps} == {step}


@pytest.mark.parametrize("odd", ["L f L f L F B O0", "L F B O0 S", "L F B L F B O0", "L F B"])
def test_steps_with_more_or_less_than_the_usual_events_are_irregular(odd: str) -> None:
    """Evaluation, a checkpoint, accumulation and a scaler that skips the optimizer."""
    tracker = StepTracker()
    regular = [tracker.was_regular() for event in ["L", "F", "B", "O0"] * 40 if tracker.add(event)]
    assert len(regular) > 20
    assert all(regular)
    events = [*odd.split(), *["L", "F", "B", "O0"], "L"]
    regular = [tracker.was_regular() for event in events if tracker.add(event)]
    assert False in regular


@pytest.mark.parametrize("num_first", range(8))
def test_steps_that_take_turns_are_learned_wherever_the_loop_begins(num_first: int) -> None:
    tracker = StepTracker()
    events = ["F", "B", "O0", "F", "B", "O0", "F", "B", "O1", "F", "B", "O1"] * 40
    regular = [tracker.was_regular() for event in events[3 * num_first :] if tracker.add(event)]
    assert tracker.pattern is not None
    assert " ".join(tracker.pattern.events) in ("F B O0 F B O0 F B O1 F B O1", "F B O1 F B O1 F B O0 F B O0")
    assert len(regular) > 25
    assert all(regular)


def test_an_arm_may_have_steps_with_other_events() -> None:
    """Such as one that accumulates two batches."""
    tracker, regular = StepTracker(), []
    for number in range(200):
        arm = "two" if number % 2 else "one"
        for event in ["L", "F", "B"] * (2 if arm == "two" and number > 9 else 1) + ["O0"]:
            if tracker.add(event):
                regular.append(tracker.was_regular())
                tracker.arm = arm
    assert len(regular) > 150
    assert all(regular[-150:])


def test_steps_that_begin_in_the_closure_of_an_optimizer_are_learned() -> None:
    """As those of LBFGS without a loader: all that is outside of its step is a forward without gradients."""
    tracker, begins = StepTracker(), []
    for number in range(60):
        tracker.is_in_optimizer = True
        begins += [(number, index) for index, event in enumerate(["F", "B"] * 20) if tracker.add(event)]
        assert number or tracker.pattern is None
        tracker.is_in_optimizer = False
        tracker.add("O0")
        tracker.add("f")
    assert tracker.pattern is not None
    assert short_text(tracker.pattern.events) == "(forward, backward)x20, optimizer, no-grad forward"
    assert [index for _, index in begins] == [0] * len(begins)
    assert len(begins) > 45


def test_an_optimizer_that_steps_only_at_the_start_does_not_hold_up_the_others() -> None:
    tracker = StepTracker()
    tracker.add("O0")
    begins = [tracker.add(event) for event in ["L", "F", "B", "O1"] * 400]
    assert tracker.pattern is not None
    assert tracker.pattern.anchor == "O1"
    assert sum(begins) > 50


def test_forwards_of_the_first_steps_alone_do_not_begin_the_others() -> None:
    tracker = StepTracker()
    begins = [tracker.add(event) for event in ["F", "B", "O0"] * 2 + ["B", "O0"] * 100]
    assert tracker.pattern is not None
    assert tracker.pattern.start == "B"
    assert sum(begins) > 50


def test_a_loop_whose_steps_differ_from_each_other_is_not_reliable() -> None:
    tracker, _ = split("L F B O0", "L F B B O0", "L F B O0 S", "L F B L F B O0", "L F B O0 f")
    assert tracker.pattern is not None
    assert not tracker.pattern.is_reliable


@pytest.mark.parametrize(
    ("steps", "begins_with"),
    [
        (["F f F B O0 F f F B O0 F B O1", "F B O1"], 0),  # an agent that updates its actor twice in every second step
        (["F B O0 F B O0 F B O1", "F B O1"], 0),
        (["L F B O0", "L F F B O0"], 1),
    ],
)
def test_two_kinds_of_steps_that_take_turns_are_one_step(steps: list[str], begins_with: int) -> None:
    tracker, seen = split(*steps)
    assert tracker.pattern is not None
    assert tracker.pattern.is_regular
    assert len(seen) > 40
    expected = " ".join(steps[begins_with:] + steps[:begins_with])
    assert {" ".join(events) for events in seen} == {expected}
    assert " ".join(tracker.pattern.events) == expected


def test_a_step_of_parts_begins_with_the_first_of_them_again_after_one_was_skipped() -> None:
    tracker, _ = split("L F B O0", "L F F B O0")
    for event in ["L", "F", "F", "B", "O0"] * 2 + ["L", "F", "B", "O0", "L", "F", "F", "B", "O0"] * 9:
        if tracker.add(event):
            last = (tracker.was_regular(), event)
    assert last == (True, "L")


def with_lengths(step: str, event: str, lengths: list[int]) -> list[str]:
    """Return a step per length, in which the first event is repeated so often."""
    return [step.replace(event, " ".join([event] * length), 1) for length in lengths]


@pytest.mark.parametrize(
    ("step", "repeated", "pattern"),
    [
        ("F B O0", "F", "F* B O0"),  # an episode per step
        ("F f F B O0", "F", "F* B O0"),  # an agent that explores at random
        ("L F F B O0 O1", "F", "L F* B O0 O1"),  # a decoder that is called for each word
    ],
)
def test_forwards_of_a_number_that_varies_count_as_one(step: str, repeated: str, pattern: str) -> None:
    lengths = [3, 14, 15, 9, 2, 6, 5, 35, 8, 97, 93, 23, 84, 62, 64, 33, 83, 27, 95, 28, 41, 97, 16, 93]
    tracker, seen = split(*with_lengths(step, repeated, lengths), num_events=8_000)
    assert tracker.pattern is not None
    assert " ".join(tracker.pattern.events) == pattern
    assert tracker.pattern.is_regular
    assert all(events[0] == step[0] and events.count("B") == 1 for events in seen)
    events = " ".join(with_lengths(step, "F", lengths)).split()
    begins = [tracker.was_regular() for event in events if tracker.add(event)]
    assert len(begins) > 20
    assert all(begins[1:])


@pytest.mark.parametrize("lengths", [[9, 9, 9, 10, 9, 8, 9, 9, 12], [9, 9, 9, 10, 9, 8, 9, 11, 12]])
def test_steps_of_many_lengths_are_joined_even_if_most_have_the_same(lengths: list[int]) -> None:
    """As those of an agent whose first episodes end soon: later ones are longer."""
    tracker, _ = split(*with_lengths("F B O0", "F", lengths))
    assert tracker.pattern is not None
    assert tracker.pattern.text == "forward*, backward, optimizer (6 of 6 alike)"


def test_steps_of_two_lengths_without_order_are_joined() -> None:
    """As those of a solver that chooses its steps."""
    tracker, _ = split(*with_lengths("F B O0", "F", [20, 20, 20, 26, 26, 20, 26, 26, 20, 20]))
    assert tracker.pattern is not None
    assert tracker.pattern.text == "forward*, backward, optimizer (6 of 6 alike)"


def test_an_evaluation_is_no_step_with_more_forwards() -> None:
    """It follows a step; its forwards are in another place than the step's."""
    tracker, _ = split(*["F B O0"] * 4, "F B O0 f", "F B O0 f f", "F B O0")
    assert tracker.pattern is not None
    assert tracker.pattern.text == "forward, backward, optimizer (4 of 6 alike)"


def test_repeated_events_are_shown_once() -> None:
    assert short_text(["L", "F", "B", "F", "B", "F", "B", "O0"]) == "batch, (forward, backward)x3, optimizer"
    assert short_text(["O0", "O1", "O2"]) == "optimizer, optimizer 1, optimizer 2"
    assert short_text(["L", "F", "B", "O0"]) == "batch, forward, backward, optimizer"


def test_steps_that_accumulate_more_and_more_batches_are_learned_as_one_kind() -> None:
    events = " ".join("L F B " * num + "O0" for num in (1, 1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7)).split()
    tracker = StepTracker()
    begins = [tracker.was_regular() for event in [*events, "L"] if tracker.add(event)]
    assert tracker.pattern is not None
    assert " ".join(tracker.pattern.events) == "(L F B)* O0"
    assert "warm-up only" in tracker.pattern.warm_up_note
    assert all(begins)


def test_a_pattern_that_the_last_steps_do_not_have_may_be_that_of_a_warm_up() -> None:
    tracker = StepTracker()
    for event in ["L", "F", "B", "O0"] * 6 + ["L", "F", "B", "F", "B", "O0"] * 2 + ["L"]:
        tracker.add(event)
    assert tracker.pattern is not None
    assert " batch, forward, backward, forward, backward, optimizer: " in tracker.pattern.warm_up_note


def test_a_stage_with_another_optimizer_is_learned_after_ten_seconds() -> None:
    """The anchor of the first one steps no more, so that no step would ever end."""
    notes: list[str] = []
    seconds = count()
    tracker = StepTracker(say=notes.append, clock=lambda: float(next(seconds)))
    for event in ["L", "F", "B", "O0"] * 20:
        tracker.add(event)
    begins = [tracker.was_regular() for event in ["L", "F", "F", "B", "O1"] * 400 if tracker.add(event)]
    assert begins.count(True) > 100
    assert begins[-100:] == [True] * 100
    assert any("batch, forward, forward, backward, optimizer 1 (" in text for text in notes)


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ("L F B O0 S", ("checkpoint",)),
        ("L F B O0 L f L f", ("evaluation",)),
        ("L F B O0 f f f", ("rollout",)),
        ("L E L F B O0", ("epoch",)),
        ("L E L f L f L S E L F B O0", ("evaluation", "checkpoint", "epoch")),
        ("L F B L F B O0", ("other",)),
    ],
)
def test_what_an_irregular_step_does_is_known_by_its_events(odd: str, kind: tuple[str, ...]) -> None:
    tracker = StepTracker()
    begun = sum(tracker.add(event) for event in ["L", "F", "B", "O0"] * 20)
    assert begun > 5
    for event in [*odd.split(), "L", "F", "B", "O0", "L"] if odd[0] == "L" else []:
        if tracker.add(event) and not tracker.was_regular():
            assert tracker.kind_of_step() == kind
            break
    else:
        raise AssertionError("no irregular step")


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ("L F B L f L f S L F B O0", ("evaluation", "checkpoint")),
        ("L f L f E L F B L F B O0", ("evaluation", "epoch")),
        ("L F B E L F B O0", ("epoch",)),
        ("L F B L F B O0 S", ("checkpoint",)),
    ],
)
def test_what_an_irregular_step_does_is_known_where_numbers_of_batches_vary(odd: str, kind: tuple[str, ...]) -> None:
    tracker = StepTracker()
    usual = [["L", "F", "B"] * (2 + number % 3) + ["O0"] for number in range(20)]
    kinds = [
        tracker.kind_of_step()
        for event in [*chain.from_iterable(usual), *odd.split(), *usual[0], "L"]
        if tracker.add(event) and not tracker.was_regular()
    ]
    assert kind in kinds
    assert not any(len(each) > len(kind) for each in kinds)
