"""A prediction in words, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from traceq.frozen import frozen
from traceq.model import Caveat
from traceq.report import Cell, Table, column
from traceq.units import Unit, format_ends, format_ranks, format_value
from traceq.whatif.limits import GRAIN
from traceq.whatif.predict import Change, Prediction
from traceq.whatif.sentences import MAY_BE_NOTHING, NO_CHANGE, NOISE, OTHER_STEP, PART_UNREPLAYED, TOO_FEW

WHATIF_SCHEMA = "traceq.whatif/1"


@frozen
class ChangeRow:
    """What one change does to the mean step, or all together."""

    option: str = column("what if")
    now_ns: int = column("now", Unit.NS)
    least_ns: int = column("then, from", Unit.NS)
    """Shortest step then, with noise in its favour."""
    most_ns: int = column("to", Unit.NS)
    """Longest step then."""
    saved_ns: int = column("saves", Unit.NS)
    most_saved_ns: int = column("at most", Unit.NS)
    noise_ns: int | None = column("noise", Unit.NS)
    """Two standard errors of the saving."""
    again_ns: int | None = column("again", Unit.NS)
    """As `noise_ns`, against as many other steps with the change."""


class PredictionObject(TypedDict):
    """What is predicted for the mean traced step of some ranks."""

    sentence: str
    ranks: list[int]
    num_steps: int
    step_ns: int
    unreplayed_ns: int
    """Above 5 % nothing is predicted."""
    together: dict[str, Cell]
    each: list[dict[str, Cell]]
    held_fixed: list[str]


class WhatifObject(TypedDict):
    """Whether a change is asked about or not."""

    schema: str
    path: str
    predictions: list[PredictionObject]
    """Of the change asked about, or those that gain most."""
    warnings: list[dict[str, str]]


def first_sentence(prediction: Prediction) -> str:
    """Return `Without the sync at train.py:41 the step would take 41.2 to 42.0 ms instead of 48.9 ms (...)`."""
    change = prediction.together
    step = "the step" if prediction.is_marked else "the trace"
    words = f"{change.words[:1].upper()}{change.words[1:]} {step} would take {_range(change)}"
    now = format_value(change.now_ns, Unit.NS)
    if change.least_ns == change.most_ns == change.now_ns:
        return NO_CHANGE.format(change=f"{change.words[:1].upper()}{change.words[1:]}", step=step, now=now)
    if change.least_ns <= change.now_ns <= change.most_ns:
        is_noise = change.noise_ns and min(abs(change.least_saved_ns), abs(change.most_saved_ns)) <= change.noise_ns
        return f"{words} instead of {now}: {MAY_BE_NOTHING[bool(is_noise)]}."
    return f"{words} instead of {now} ({_percent(change)})."


def held_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Return what predictions for the same steps hold fixed, what they rest on, and how much cannot be replayed."""
    prediction = predictions[0]
    num, together = prediction.num_steps, prediction.together
    what = "traced step" if prediction.is_marked else "trace"
    ranks = f"rank{'s' * (len(prediction.ranks) > 1)} {format_ranks(prediction.ranks)}"
    unreplayed = prediction.unreplayed_ns
    part = PART_UNREPLAYED.format(unreplayed=format_value(unreplayed, Unit.NS)) if unreplayed else ""
    has_noise = together.noise_ns is not None
    noise = NOISE if has_noise else TOO_FEW
    rests = f"Mean of {num} {what}s of {ranks}; {noise}" if num > 1 else f"One {what} of {ranks}: {noise}"
    held = dict.fromkeys(text for each in predictions for text in each.held)
    return [f"Held fixed: {' '.join(held)}", f"{rests}{part}.", *_other_step(prediction)]


def _other_step(prediction: Prediction) -> list[str]:
    """Return how a step is measured, where that makes it another one than the ranks' by themselves in `show`."""
    now = format_value(prediction.now_ns, Unit.NS)
    ends = [format_value(ns, Unit.NS) for ns in (min(prediction.shown_ns), max(prediction.shown_ns))]
    if set(ends) == {now}:
        return []
    return [OTHER_STEP.format(now=now, shown=" to ".join(dict.fromkeys(ends)))]


def change_table(changes: Sequence[Change], title: str = "") -> Table:
    """Return a row for each change, without the noise that its range includes."""
    return _table(changes, title).without("noise_ns")


def _table(changes: Sequence[Change], title: str = "") -> Table:
    rows = [
        ChangeRow(
            each.option,
            each.now_ns,
            each.least_ns,
            each.most_ns,
            each.least_saved_ns,
            each.most_saved_ns,
            each.noise_ns,
            each.again_ns,
        )
        for each in changes
    ]
    return Table.of("whatif", title, ChangeRow, rows)


def to_document(path: str, predictions: Sequence[Prediction], caveats: Sequence[Caveat]) -> WhatifObject:
    """Return the predictions as one JSON object; times in ns."""
    return {
        "schema": WHATIF_SCHEMA,
        "path": path,
        "predictions": [_document(prediction) for prediction in predictions],
        "warnings": [{"code": caveat.code, "text": caveat.text} for caveat in caveats],
    }


def _document(prediction: Prediction) -> PredictionObject:
    return {
        "sentence": first_sentence(prediction),
        "ranks": list(prediction.ranks),
        "num_steps": prediction.num_steps,
        "step_ns": prediction.now_ns,
        "unreplayed_ns": prediction.unreplayed_ns,
        "together": _table([prediction.together]).to_dicts()[0],
        "each": _table(prediction.each).to_dicts(),
        "held_fixed": list(prediction.held),
    }


def _range(change: Change) -> str:
    """Return `41.2 to 42.0 ms`, or one time where the ends are the same to half a percent of the step."""
    if change.most_ns - change.least_ns < GRAIN * change.now_ns:
        return format_value((change.least_ns + change.most_ns) / 2, Unit.NS)
    return format_ends(change.least_ns, change.most_ns, Unit.NS)


def _percent(change: Change) -> str:
    """Return `-16 to -14 %`, or one percentage."""
    shares = [100 * (ns - change.now_ns) / change.now_ns for ns in (change.least_ns, change.most_ns)]
    least, most = (format_value(share, Unit.DELTA_PERCENT) for share in shares)
    if least == most or change.most_ns - change.least_ns < GRAIN * change.now_ns:
        return format_value(sum(shares) / 2, Unit.DELTA_PERCENT)
    return f"{least.removesuffix(' %')} to {most}"
