"""Schedule of a pipeline, recognised by the order in which its ranks compute the passes of microbatches.

An order is a text of the letters of PASS_KINDS. A schedule is recognised only if the orders of all ranks are its
orders; any other is unknown. Weight gradients may be anywhere after their input gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "unknown"

Stages = Sequence[int]


def schedule_of(orders: Sequence[str], stages: Sequence[Stages], *, wraps: bool) -> str:
    """Return GPipe, 1F1B, ZB1P, looped BFS, interleaved 1F1B, interleaved ZB1P, ZBV, DualPipeV, or unknown.

    `orders` of all ranks, from the first stage on; `stages` of each pass, -1 where the trace does not tell them;
    `wraps`: the last rank sends activations to the first, which has several stages. 1F1B and interleaved: arXiv
    2104.04473; ZB1P (ZB-H1): 2401.10241; ZBV: 2405.15362; looped BFS: 2211.05953; DualPipeV:
    github.com/deepseek-ai/DualPipe.
    """
    num_ranks, num = len(orders), _num_forward(orders[0]) if orders else 0
    if num_ranks < 2 or num < 2 or not all(_is_complete(order, num) for order in orders):
        return UNKNOWN
    layout = [sorted({*each}) for each in stages]
    if any(-1 in each for each in layout):
        candidates = [n for n in range(2, num + 1) if num % n == 0] if wraps else [1]
        names = {_looped(orders, num, num_chunks) for num_chunks in candidates} - {UNKNOWN}
        return names.pop() if len(names) == 1 else UNKNOWN
    if layout == [[rank, 2 * num_ranks - 1 - rank] for rank in range(num_ranks)]:
        return _v_shaped(orders, stages, num // 2)
    num_chunks = len(layout[0])
    if num % num_chunks or layout != [[*range(rank, num_ranks * num_chunks, num_ranks)] for rank in range(num_ranks)]:
        return UNKNOWN
    name = _looped(orders, num, num_chunks)
    num_together = num // num_chunks if name == "looped BFS" else _per_round(num // num_chunks, num_ranks)
    return name if all(map(_takes_turns, orders, stages, [num_together] * num_ranks)) else UNKNOWN


def _num_forward(order: str) -> int:
    return order.count("F") + order.count("O")


def _is_complete(order: str, num: int) -> bool:
    """Return whether all forward passes have their backward, and no weight gradient comes before its input gradient."""
    num_split, num_whole = order.count("I"), order.count("B") + order.count("O")
    if not _num_forward(order) == num == num_split + num_whole or order.count("W") != num_split:
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
    if splits == whole or any("O" in order for order in orders):
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


def _v_shaped(orders: Sequence[str], stages: Sequence[Stages], num: int) -> str:
    """Return the schedule of two stages on each rank, the second in reverse order of ranks, of `num` microbatches."""
    num_ranks = len(orders)
    passes = [_chunked(order, each) for order, each in zip(orders, stages, strict=True)]
    if not any("B" in order or "O" in order for order in orders):
        return "ZBV" if passes == [_zbv(rank, num_ranks, num) for rank in range(num_ranks)] else UNKNOWN
    if num >= 2 * num_ranks and passes == [_dual_pipe_v(rank, num_ranks, num) for rank in range(num_ranks)]:
        return "DualPipeV"
    return UNKNOWN


def _chunked(order: str, stages: Stages) -> list[str]:
    """Return forward and backward passes with the rank's stage, 0 or 1: `F0`, `B1`; weight gradients are left out."""
    first, result = min(stages), []
    for kind, stage in zip(order, stages, strict=True):
        chunk = int(stage != first)
        if kind == "O":
            result += [f"F{chunk}", f"B{1 - chunk}"]
        elif kind != "W":
            result.append(f"{kind.replace('I', 'B')}{chunk}")
    return result


def _zbv(rank: int, num_ranks: int, num: int) -> list[str]:
    """Return the passes of a rank in ZBV, as `_chunked`."""
    hops, all_num = num_ranks - rank, max(2 * num_ranks - 1, num)
    passes = ["F0"] * (2 * hops - 1) + ["F1", "F0"] * rank + ["F1", "B1"] * hops
    num_steady = all_num - num_ranks
    num_with_forward = all_num - (2 * hops - 1) - rank
    for index in range(num_steady):
        passes += ["F0"] * (index < num_with_forward) + ["B0", "F1", "B1"]
    passes += ["B0", "B1"] * rank + ["B0"] * hops
    seen = dict.fromkeys(("F0", "F1", "B0", "B1"), 0)
    kept = []
    for each in passes:
        seen[each] += 1
        if seen[each] <= num:
            kept.append(each)
    return kept


def _dual_pipe_v(rank: int, num_ranks: int, num: int) -> list[str]:
    """Return the passes of a rank in DualPipeV, as `_chunked`."""
    hops = num_ranks - rank - 1
    return [
        *["F0"] * (2 * hops),
        *["F0", "F1"] * (rank + 1),
        *["B1", "F1"] * hops,
        *["F0", "B1", "F1", "B0"] * (num - 2 * num_ranks + rank + 1),
        *["B1", "F1", "B0"] * hops,
        *["B1", "B0"] * (rank + 1),
        *["B0"] * hops,
    ]
