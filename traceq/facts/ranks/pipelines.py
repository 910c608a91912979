"""Pipelines of a job: which ranks are their stages, in which order, by which schedule, and how ranks spend steps.

An order of passes is a text of the letters of PASS_KINDS. A schedule is recognised only if the orders of all ranks are
its orders; any other is unknown. Weight gradients may be anywhere after their input gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.microbatches import FORWARD_KINDS, PASS_KINDS, WEIGHT_GRADIENT, Passes
from traceq.facts.ranks.message_matching import MessageTimes
from traceq.facts.ranks.rank_outline import Outline
from traceq.frozen import frozen
from traceq.intervals import Spans, intersect, measure_within, sorted_unique, span_index, spans, subtract, union

_OVERLAPPED = PASS_KINDS.index("O")


@frozen(eq=False)
class Pipeline:
    """Stages that exchange messages: `ranks` are indices into the job's, the first stage first.

    `schedule`: its name, or `unknown`; `stages` of each rank, as they are named, else by position, () where a rank has
    several without names; `num_microbatches` in a step, 0 if unknown; `is_ordered`: the first stage is known.
    """

    ranks: tuple[int, ...]
    schedule: str
    stages: tuple[tuple[int, ...], ...]
    num_microbatches: int
    is_ordered: bool


@frozen(eq=False)
class StageTimes:
    """Counted steps of one rank, int64[K] ns each: passes + warmup + steady + cooldown + transfer + other = window.

    `passes`: computing microbatches; `warmup`, `steady`, `cooldown`: computing nothing, while some stage computes or
    this rank waits for a message, before the first backward, between, and after the last forward of this rank; `wait`:
    part of these in which it waits for the other side of a message to start; `transfer`: nothing but messages move,
    both sides of which have started; `other`: the rest.
    """

    window: NDArray[np.int64]
    passes: NDArray[np.int64]
    warmup: NDArray[np.int64]
    steady: NDArray[np.int64]
    cooldown: NDArray[np.int64]
    wait: NDArray[np.int64]
    transfer: NDArray[np.int64]
    other: NDArray[np.int64]

    @property
    def bubble(self) -> NDArray[np.int64]:
        """int64[K] ns: warmup + steady + cooldown."""
        return self.warmup + self.steady + self.cooldown


def pipelines(outlines: Sequence[Outline], parts: Sequence[Passes], times: MessageTimes) -> tuple[Pipeline, ...]:
    """Return the pipelines of a job.

    Ranks that exchange messages without named passes are a pipeline if activations flow from one of them to another
    one, and gradients back: in a ring, as of context parallelism, each rank sends as many as it receives.
    """
    forward, backward = _sent_messages(parts, times, [outline.base_time_ns for outline in outlines])
    result = []
    for group in _connected(len(parts), times):
        members = [index for index in group if len(parts[index])]
        named = bool(members) and all(parts[index].named for index in members)
        order = _by_stage(parts, members) if named else None
        order = order or _by_flow(forward, backward, members)
        if named or order is not None:
            result.append(_pipeline(outlines, parts, order or members, forward, is_ordered=order is not None))
    return tuple(result)


def stage_times(
    outlines: Sequence[Outline], parts: Sequence[Passes], pipeline: Pipeline, times: MessageTimes
) -> dict[int, StageTimes]:
    """Return how each rank of a pipeline spends its counted steps, by its index in the job."""
    shift = {index: outlines[index].base_time_ns - int(times.offset[index]) for index in pipeline.ranks}
    active = _active(parts, pipeline, shift)
    return {index: _stage_times(outlines[index], parts[index], index, shift[index], active, times) for index in shift}


def _connected(num_ranks: int, times: MessageTimes) -> list[list[int]]:
    """Return the groups of ranks that messages connect; one of all ranks where no message tells its other side."""
    if len(times.peer) and (times.peer < 0).all():
        return [[*range(num_ranks)]]
    label = np.arange(num_ranks)
    ends = np.unique(np.column_stack([times.rank, times.peer])[times.peer >= 0], axis=0)
    while True:
        least = label.copy()
        for here, there in ((0, 1), (1, 0)):
            np.minimum.at(least, ends[:, here], label[ends[:, there]])
        least = least[least]
        if (least == label).all():
            return [np.flatnonzero(label == number).tolist() for number in sorted_unique(label).tolist()]
        label = least


def _sent_messages(parts: Sequence[Passes], times: MessageTimes, base_ns: Sequence[int]) -> NDArray[np.int64]:
    """Return int64[2, R, R]: messages that each rank sends to each other one after a forward pass, and after others."""
    num = np.zeros((2, len(parts), len(parts)), np.int64)
    for index, passes in enumerate(parts):
        chosen = passes.kind != WEIGHT_GRADIENT
        issued, kind = passes.issued_ns[chosen] + base_ns[index] - times.offset[index], passes.kind[chosen]
        sent = np.flatnonzero(times.is_send & (times.rank == index) & (times.peer >= 0))
        before = np.searchsorted(issued, times.issued_ns[sent], "right") - 1
        is_backward = (before < 0) | (np.r_[kind, -1][before] != PASS_KINDS.index("F"))
        for way, selected in enumerate((~is_backward, is_backward)):
            num[way, index] = np.bincount(times.peer[sent[selected]], minlength=len(parts))
    return num


def _by_stage(parts: Sequence[Passes], members: list[int]) -> list[int] | None:
    """Return the ranks by their first stage; None where stages are not named, or by several ranks."""
    first = [int(parts[index].stage.min()) for index in members]
    if min(first) < 0 or len({*first}) < len(first):
        return None
    return [index for _, index in sorted(zip(first, members, strict=True))]


def _by_flow(forward: NDArray[np.int64], backward: NDArray[np.int64], members: list[int]) -> list[int] | None:
    """Return the ranks as activations flow, from the only one that sends more than it receives.

    None without such, or where nothing comes back.
    """
    among = forward[np.ix_(members, members)]
    surplus = among.sum(axis=1) - among.sum(axis=0)
    if len(members) < 2 or (surplus > 0).sum() != 1 or (surplus < 0).sum() != 1:
        return None
    order = [int(surplus.argmax())]
    while len(order) < len(members):
        following = int(among[order[-1]].argmax())
        if following in order or not backward[members[following], members[order[-1]]]:
            return None
        order.append(following)
    return [members[number] for number in order] if surplus[order[-1]] < 0 else None


def _pipeline(
    outlines: Sequence[Outline],
    parts: Sequence[Passes],
    order: list[int],
    forward: NDArray[np.int64],
    *,
    is_ordered: bool,
) -> Pipeline:
    """Return the pipeline of ranks in order of their stages; its schedule has to be the same in all counted steps."""
    passes = [parts[index] for index in order]
    numbers = set.intersection(*({*outlines[i].steps.number[outlines[i].steps.counted].tolist()} for i in order))
    seen = {tuple(_in_step(each, number) for each in passes) for number in numbers}
    schedule, num, wraps = UNKNOWN, 0, bool(forward[order[-1], order[0]])
    if len(seen) == 1 and is_ordered:
        orders, stages = zip(*seen.pop(), strict=True)
        schedule = schedule_of(orders, stages, wraps=wraps)
        counts = {text.count("F") + text.count("O") for text in orders}
        num_chunks = 0 if -1 in stages[0] and wraps else len({*stages[0]})
        num = counts.pop() // num_chunks if len(counts) == 1 and num_chunks else 0
    numbered = [tuple(sorted({*each.stage.tolist()})) for each in passes]
    by_position = [(place,) if is_ordered and not wraps else () for place in range(len(order))]
    stages_of_ranks = tuple(by_position[place] if -1 in each else each for place, each in enumerate(numbered))
    return Pipeline(tuple(order), schedule, stages_of_ranks, num, is_ordered)


def _in_step(passes: Passes, number: int) -> tuple[str, tuple[int, ...]]:
    """Return (letters, stages) of the passes in a step."""
    chosen = passes.step == number
    return "".join(PASS_KINDS[kind] for kind in passes.kind[chosen].tolist()), tuple(passes.stage[chosen].tolist())


def _active(parts: Sequence[Passes], pipeline: Pipeline, shift: Mapping[int, int]) -> Spans:
    """Return from the first to the last pass of any stage in each step, by the common clock."""
    passes = [parts[index] for index in pipeline.ranks]
    step = np.concatenate([each.step for each in passes])
    start = np.concatenate([each.start + shift[i] for i, each in zip(pipeline.ranks, passes, strict=True)])
    end = np.concatenate([each.end + shift[i] for i, each in zip(pipeline.ranks, passes, strict=True)])
    numbers, index = np.unique(step, return_inverse=True)
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.zeros(len(numbers), np.int64)
    np.minimum.at(first, index.reshape(-1), start)
    np.maximum.at(last, index.reshape(-1), end)
    return spans(first[numbers >= 0], last[numbers >= 0])


def _stage_times(
    outline: Outline, passes: Passes, index: int, shift: int, active: Spans, times: MessageTimes
) -> StageTimes:
    """Return how a rank spends its counted steps; `shift` takes times of its trace to the common clock of `active`."""
    steps = outline.steps
    window = steps.window[steps.counted] + shift
    selected = np.flatnonzero((times.rank == index) & (times.end >= 0))
    end = times.end[selected]
    busy = _busy(passes, shift, end[~times.is_send[selected]])
    whole = spans(window[:, 0], window[:, 1])
    gaps = subtract(whole, union(busy, passes.computing + shift))
    gap = span_index(gaps, end - 1)
    ends_gap = (gap >= 0) & (times.partner[selected] >= 0)
    chosen = selected[ends_gap]
    begin = np.maximum(times.start[chosen], gaps[gap[ends_gap], 0])
    both, done = times.both_started[chosen], times.transferred[chosen]
    waiting = spans(begin, both)
    transfer = intersect(gaps, subtract(spans(np.maximum(begin, both), done), waiting))
    bubble = subtract(intersect(gaps, union(active, waiting)), transfer)
    warm, cool = _warm_and_cool(passes, shift, steps.number[steps.counted], window)
    in_warm, in_cool = intersect(bubble, warm), intersect(bubble, cool)

    def within(a: Spans) -> NDArray[np.int64]:
        return measure_within(a, window[:, 0], window[:, 1])

    length, in_passes, moved = window[:, 1] - window[:, 0], within(busy), within(transfer)
    warmup, steady, cooldown = within(in_warm), within(subtract(bubble, union(warm, cool))), within(in_cool)
    return StageTimes(
        window=length,
        passes=in_passes,
        warmup=warmup,
        steady=steady,
        cooldown=cooldown,
        wait=within(intersect(bubble, waiting)),
        transfer=moved,
        other=length - in_passes - warmup - steady - cooldown - moved,
    )


def _busy(passes: Passes, shift: int, received: NDArray[np.int64]) -> Spans:
    """Return when passes are computed, by the common clock.

    A forward with a backward pass waits for a message between them, where nothing is computed until one is `received`.
    """
    start, end = passes.start + shift, passes.end + shift
    double = passes.kind == _OVERLAPPED
    idle = subtract(spans(start[double], end[double]), passes.computing + shift)
    index = span_index(idle, received - 1)
    return subtract(spans(start, end), idle[sorted_unique(index[index >= 0])])


def _warm_and_cool(
    passes: Passes, shift: int, numbers: NDArray[np.int64], window: NDArray[np.int64]
) -> tuple[Spans, Spans]:
    """Return (before the first backward, after the last forward and not before) in each window."""
    is_forward, is_weight = np.isin(passes.kind, FORWARD_KINDS), passes.kind == WEIGHT_GRADIENT
    first, last = window[:, 1].copy(), window[:, 0].copy()
    order = np.argsort(numbers)
    index = np.r_[order, -1][np.searchsorted(numbers[order], passes.step)]
    index = np.where((index >= 0) & (numbers[index] == passes.step), index, -1)
    is_backward = ~is_weight & (passes.kind != PASS_KINDS.index("F")) & (index >= 0)
    np.minimum.at(first, index[is_backward], passes.start[is_backward] + shift)
    forward = is_forward & (index >= 0)
    np.maximum.at(last, index[forward], passes.end[forward] + shift)
    return spans(window[:, 0], first), spans(np.maximum(first, last), window[:, 1])


UNKNOWN = "unknown"

Stages = Sequence[int]


def schedule_of(orders: Sequence[str], stages: Sequence[Stages], *, wraps: bool) -> str:
    """Return GPipe, 1F1B, ZB1P, looped BFS, interleaved 1F1B, interleaved ZB1P, or unknown.

    `orders` of all ranks, from the first stage on; `stages` of each pass, -1 where the trace does not tell them;
    `wraps`: the last rank sends activations to the first, which has several stages. 1F1B and interleaved: arXiv
    2104.04473; ZB1P (ZB-H1): 2401.10241; looped BFS: 2211.05953.
    """
    num_ranks, num = len(orders), orders[0].count("F") if orders else 0
    if num_ranks < 2 or num < 2 or not all(_is_complete(order, num) for order in orders):
        return UNKNOWN
    layout = [sorted({*each}) for each in stages]
    if any(-1 in each for each in layout):
        candidates = [n for n in range(2, num + 1) if num % n == 0] if wraps else [1]
        names = {_looped(orders, num, num_chunks) for num_chunks in candidates} - {UNKNOWN}
        return names.pop() if len(names) == 1 else UNKNOWN
    num_chunks = len(layout[0])
    if num % num_chunks or layout != [[*range(rank, num_ranks * num_chunks, num_ranks)] for rank in range(num_ranks)]:
        return UNKNOWN
    name = _looped(orders, num, num_chunks)
    num_together = num // num_chunks if name == "looped BFS" else _per_round(num // num_chunks, num_ranks)
    return name if all(map(_takes_turns, orders, stages, [num_together] * num_ranks)) else UNKNOWN


def _is_complete(order: str, num: int) -> bool:
    """Return whether all forward passes have their backward, and no weight gradient comes before its input gradient."""
    num_split, num_whole = order.count("I"), order.count("B")
    if not order.count("F") == num == num_split + num_whole or order.count("W") != num_split:
        return False
    return all(order[:end].count("W") <= order[:end].count("I") for end in range(len(order) + 1))


def _per_round(num_microbatches: int, num_ranks: int) -> int:
    """Return microbatches that one stage computes before the rank's next stage does."""
    return num_microbatches // max(1, num_microbatches // num_ranks)


def _looped(orders: Sequence[str], num: int, num_chunks: int) -> str:
    """Return the schedule of `num` forward passes through `num_chunks` stages on each rank."""
    num_ranks = len(orders)
    if all(order == "F" * num + "B" * num for order in orders):
        return "GPipe" if num_chunks == 1 else "looped BFS"
    splits, whole = ("I" in "".join(orders)), ("B" in "".join(orders))
    if splits == whole:
        return UNKNOWN
    plain = [order.replace("W", "").replace("I", "B") for order in orders]
    last = (num_chunks - 1) * _per_round(num // num_chunks, num_ranks)
    for per_hop in (1,) if num_chunks == 1 else (1, 2) if splits else (2,):
        warmup = [min(num, last + per_hop * (num_ranks - 1 - rank)) for rank in range(num_ranks)]
        if plain == ["F" * n + "FB" * (num - n) + "B" * n for n in warmup]:
            name = "ZB1P" if splits else "1F1B"
            return name if num_chunks == 1 else f"interleaved {name}"
    return UNKNOWN


def _takes_turns(order: str, stages: Stages, num_together: int) -> bool:
    """Return whether passes take the rank's stages in turn, backward in reverse, so many microbatches together."""
    chunks = sorted({*stages})
    taken = {
        kinds: [chunks.index(s) for kind, s in zip(order, stages, strict=True) if kind in kinds]
        for kinds in ("F", "BI")
    }
    turns = [index // num_together % len(chunks) for index in range(len(taken["F"]))]
    return taken["F"] == turns and taken["BI"] == [len(chunks) - 1 - turn for turn in turns]
