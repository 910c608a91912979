"""`traceq crosscheck TRACE`: the same numbers from traceq, HTA and Perfetto, and why they differ where they do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from traceq.commands._output import print_caveats, print_table
from traceq.crosscheck.compare import Answer, Crosscheck, Quantity, crosscheck
from traceq.errors import GateTripped
from traceq.kineto.read import read_trace
from traceq.report import Column, Table
from traceq.units import Unit


def command(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, plain or gzip.")],
    trace_processor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Perfetto's trace_processor_shell; its package downloads it unless given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All numbers, times in ns.")] = False,
) -> None:
    """Compare with HTA and Perfetto: the same numbers from three readers; exit 3 if a disagreement is not explained.

    A disagreement is explained only by a rule that predicts the other tool's number: traceq counts again by that rule,
    and has to come to it. Times agree within 2 us, as HTA counts in floating-point microseconds. HTA is the package
    traceinsight (pip install traceinsight). Both tools read the file again in their own way, which takes far longer.
    """
    ours = read_trace(trace)
    print_caveats(ours.caveats)
    result = crosscheck(ours, trace, trace_processor)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=1))
    else:
        _print(result)
    if result.unexplained:
        raise GateTripped(f"{len(result.unexplained)} disagreements are not explained: {', '.join(result.unexplained)}")


def _print(result: Crosscheck) -> None:
    headings = ("quantity", "traceq", *result.tools)
    rows = [
        (
            row.quantity.title,
            _number(row.quantity, row.ours),
            _answer(row.quantity, row.hta),
            _answer(row.quantity, row.perfetto),
        )
        for row in result.rows
    ]
    columns = tuple(
        Column(key, heading) for key, heading in zip(("of", "ours", "hta", "perfetto"), headings, strict=True)
    )
    print_table(Table("crosscheck", "", columns, rows))
    for number, reason in enumerate(result.reasons, 1):
        typer.echo(f"({number}) {reason}.")
    for failure in result.failed:
        typer.echo(f"{failure}.")
    typer.echo(result.summary)


def _answer(quantity: Quantity, answer: Answer) -> str:
    if answer.number is None:
        return "-"
    text = _number(quantity, answer.number)
    if answer.agrees:
        return text
    return f"{text} (?)" if answer.reasons is None else f"{text} {''.join(f'({n + 1})' for n in answer.reasons)}"


def _number(quantity: Quantity, value: float) -> str:
    """Return a number to the digit, where `show` rounds: tools are compared."""
    if math.isnan(value):
        return "-"
    return {Unit.NS: f"{value / 1000:,.1f} us", Unit.PERCENT: f"{value:.2f} %"}.get(quantity.unit, f"{value:,.0f}")
