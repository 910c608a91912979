"""`traceq diff A B` and `traceq diff RUN`: does it matter, and what is it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceq.errors import GateTripped, UsageFault

if TYPE_CHECKING:
    from traceq.compare.result import Diff
    from traceq.model import Caveat

__all__ = ["command"]

_VERDICTS = ("material", "detectable", "inconclusive")


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="The baseline: a trace, a folder, RUN/ARM; or a run alone.")],
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="What is compared with it.")] = None,
    threshold: Annotated[str, typer.Option(help="Difference that matters, in percent of A's step.")] = "0.5%",
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="What one pastes into an issue.")] = False,
    width: Annotated[int | None, typer.Option(min=40, help="Columns of text; else those of the terminal.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A page with pictures, in one file that opens offline.")
    ] = None,
    fail_on: Annotated[
        list[str] | None, typer.Option(metavar="VERDICT", help="Exit 3 on material, detectable or inconclusive.")
    ] = None,
) -> None:
    """Say what a change costs a step: whether that is in the noise, and what it comes from.

    A side can be several recordings, each of its own process: a folder of runs (before/), an arm of each (before/on),
    or a pattern in quotes ('before-*').
    """
    from traceq.engines.process_tuning import tune_process

    tune_process([a, b or ""])
    from traceq.commands._file import write_page
    from traceq.commands._output import print_caveats, stdout
    from traceq.compare.diff import diff, diff_run
    from traceq.compare.result import Diffs
    from traceq.renderers.diff_json import diffs_to_json
    from traceq.renderers.diff_markdown import diffs_to_markdown
    from traceq.renderers.diff_text import print_diffs

    if as_json + as_markdown + (html is not None) > 1:
        raise UsageFault("--json, --markdown and --html: choose one")
    percent = parse_threshold(threshold)
    wanted = _checked(fail_on or [])
    if b is None:
        found = diff_run(a, threshold_pct=percent)
    else:
        one = diff(a, b, threshold_pct=percent)
        found = Diffs(one.a_name, (one,))
    if html is not None:
        from traceq.renderers.html import diffs_to_html  # takes a tenth of the start, and few ask for it

        write_page(html, diffs_to_html(found))
    elif as_json:
        typer.echo(diffs_to_json(found))
    elif as_markdown:
        typer.echo(diffs_to_markdown(found), nl=False)
    else:
        print_diffs(found, stdout(width))
    if not as_json:
        print_caveats(dict.fromkeys(caveat for one in found.diffs for caveat in one.caveats))
    if wanted:
        print_caveats(_without_verdict(found.diffs))
    _gate(found.diffs, wanted)


def parse_threshold(text: str) -> float:
    """`0.5%`, `0.5 %` or `0.5` as percent. Raises UsageFault."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageFault(f"--threshold {text}: no percentage; expected something like 0.5%") from None
    if not 0 <= percent <= 100:
        raise UsageFault(f"--threshold {text}: expected 0 % to 100 %")
    return percent


def _checked(verdicts: list[str]) -> set[str]:
    for verdict in verdicts:
        if verdict not in _VERDICTS:
            raise UsageFault(f"--fail-on {verdict}: no such verdict; choose from {', '.join(_VERDICTS)}")
    return set(verdicts)


def _without_verdict(diffs: tuple[Diff, ...]) -> list[Caveat]:
    """A gate on traced windows alone can never trip on `material`, and would look like one that holds."""
    from traceq.model import Caveat

    if all(found.comparison is None or found.comparison.unprofiled for found in diffs):
        return []
    text = (
        "--fail-on: profiled windows give no verdict; compare a recording (traceq record, or traceq.record(...) around "
        "a loop of your own), or use --fail-on inconclusive"
    )
    return [Caveat("no_verdict", text)]


def _gate(diffs: tuple[Diff, ...], wanted: set[str]) -> None:
    """Trip on a verdict asked for; `detectable` includes material, which is more than that."""
    if "detectable" in wanted:
        wanted = wanted | {"material"}
    tripped = [
        found for found in diffs if (found.comparison.verdict.name if found.comparison else "inconclusive") in wanted
    ]
    if tripped:
        names = ", ".join(
            f"{found.b_name} is {found.comparison.verdict.name if found.comparison else 'inconclusive'}"
            for found in tripped
        )
        raise GateTripped(f"--fail-on: {names}")
