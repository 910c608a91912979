"""A history for a terminal: what was read, a row per measure with its course, then each event with its cause."""

from __future__ import annotations

from typing import TextIO

from traceq.display import RenderOptions
from traceq.escaped_console import EscapedConsole
from traceq.history.events import Event, History
from traceq.history.tables import event_lines, event_words, history_summary, measures_view, no_events
from traceq.renderers.text import open_console, print_line, print_table, visible_text


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


def _print_event(event: Event, console: EscapedConsole) -> None:
    print_line(visible_text(event_words(event), style="bold"), console)
    for line in event_lines(event):
        print_line(visible_text(f"  {line}"), console)
