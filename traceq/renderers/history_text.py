"""A history for a terminal: what was read, a row per measure with its course, then each event with its cause."""

from __future__ import annotations

from typing import TextIO

from traceq.display import RenderOptions
from traceq.escaped_console import EscapedConsole
from traceq.history.changes import FEWEST_RUNS
from traceq.history.events import Event, History
from traceq.history.tables import event_words, measures_view
from traceq.renderers.text import open_console, print_line, print_table, visible_text

__all__ = ["event_lines", "history_summary", "no_events", "write_history"]


def write_history(history: History, file: TextIO, options: RenderOptions) -> None:
    """Write a history as text."""
    console = open_console(file, options.width)
    print_line(visible_text(history_summary(history), style="bold"), console)
    console.print()
    print_table(measures_view(history).non_empty_columns, console)
    for event in history.events:
        console.print()
        _print_event(event, console)
    if not history.events:
        console.print()
        print_line(visible_text(no_events(history)), console)


def history_summary(history: History) -> str:
    """Return `traceq-history · main · 12 runs, 2026-11-02 to 2026-11-29`."""
    days = [f"{run.row.time:%Y-%m-%d}" for run in history.runs]
    of_days = f", {days[0]} to {days[-1]}" if days else ""
    num = len(history.runs)
    return f"{history.store} · {history.branch or 'all branches'} · {num} run{'s' * (num != 1)}{of_days}"


def no_events(history: History) -> str:
    """Return what is said without an event."""
    return "No measure has changed." if len(history.runs) >= FEWEST_RUNS else f"{FEWEST_RUNS} runs tell what changes."


def event_lines(event: Event) -> list[str]:
    """Return what is told of an event below its first line: why, what else differs, the commits between."""
    lines = [event.cause or f"No cause is told: {event.why_not}"]
    if event.is_of_one_commit:
        lines.append("Both runs are of one commit: the machine or the data changed, not the code.")
    if event.moved:
        lines.append(f"Changed with it: {', '.join(event.moved)}")
    lines += [f"{commit} {subject}" for commit, subject in event.commits]
    return lines


def _print_event(event: Event, console: EscapedConsole) -> None:
    print_line(visible_text(event_words(event), style="bold"), console)
    for line in event_lines(event):
        print_line(visible_text(f"  {line}"), console)
