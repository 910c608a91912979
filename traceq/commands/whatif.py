"""`traceq whatif PATH --without syncs`: what a step would be under a change that was not made, over all ranks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Annotated

import typer

from traceq.commands._options import CLUSTER, MEMORY, PATH, RANKS, engine_for
from traceq.commands._output import print_caveats, print_table, shown_work
from traceq.engines.played_ranks import answers
from traceq.runs.read import parse_ranks
from traceq.whatif import interventions
from traceq.whatif.answers import change_table, first_sentence, held_lines, to_document
from traceq.whatif.intervention import Intervention
from traceq.whatif.predict import Prediction
from traceq.whatif.sentences import NOTHING_GAINS

_STRAGGLER = "--without-straggler"

MAY_BE_BARE = (_STRAGGLER,)
"""Options with a value after `=`, or none."""


def command(
    path: Annotated[str, PATH],
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="syncs, sync:FILE:LINE or loader: the host waits for none; repeatable."),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FACTOR", help="Kernels, ops or phases take FACTOR of their time; repeatable."),
    ] = None,
    hide_comm: Annotated[
        bool, typer.Option("--hide-comm", help="Transfers of collectives run beside computation.")
    ] = False,
    without_straggler: Annotated[
        str | None,
        typer.Option(_STRAGGLER, metavar="[=RANK]", help="No rank waits for RANK (or 0,6), or for the straggler."),
    ] = None,
    no_launch_latency: Annotated[
        bool, typer.Option("--no-launch-latency", help="Launches take no time, as in a CUDA graph.")
    ] = False,
    comm_bandwidth: Annotated[
        str | None, typer.Option(metavar="2x", help="Collectives transfer at a multiple of the bandwidth.")
    ] = None,
    balance_loader: Annotated[
        bool, typer.Option("--balance-loader", help="Every rank waits equally long for its data loader.")
    ] = False,
    ranks: Annotated[str | None, RANKS] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cluster: Annotated[str | None, CLUSTER] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON; times in ns.")] = False,
) -> None:
    """Say what a step would be without its waits, or with faster parts: by replay of all ranks, each answer a range.

    Changes can be combined. Without any, at most three that gain most. Of one rank, `saves` is what `show` says that
    removing it saves. Exit code 1 where more than 5 % of the step cannot be replayed.
    """
    chosen: list[Intervention] = [*interventions.without(without or ()), *interventions.scaled(scale or ())]
    chosen += [interventions.HiddenComm()] if hide_comm else []
    chosen += [interventions.straggler(without_straggler)] if without_straggler is not None else []
    chosen += [interventions.NoLaunchLatency()] if no_launch_latency else []
    chosen += [interventions.bandwidth(comm_bandwidth)] if comm_bandwidth is not None else []
    chosen += [interventions.BalancedLoader()] if balance_loader else []
    engine = engine_for(memory, cluster)
    with ExitStack() as stack:
        on_progress = stack.enter_context(shown_work("replaying"))
        answered = answers(
            engine.path(path),
            chosen,
            start=lambda: stack.enter_context(engine.start()),
            small=engine.small,
            ranks=parse_ranks(ranks),
            on_progress=on_progress,
        )
    if as_json:
        typer.echo(json.dumps(to_document(path, answered.predictions, answered.run.caveats), indent=1))
        return
    _print(answered.predictions)
    print_caveats(answered.run.caveats)


def _print(predictions: tuple[Prediction, ...]) -> None:
    if not predictions:
        typer.echo(NOTHING_GAINS)
        return
    for prediction in predictions:
        typer.echo(first_sentence(prediction))
    each = [change for prediction in predictions for change in prediction.each]
    combined = [predictions[0].together] if len(predictions[0].each) > 1 else []
    print_table(change_table([*each, *combined]))
    for line in held_lines(predictions):
        typer.echo(line)
