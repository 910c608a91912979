"""Messages between two ranks, matched: the start of the partner by the clock of the rank that waits for it.

The k-th message that rank a sends to b in a step is the k-th that b receives from a in it, if both count as many in
that step, of the same sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.point_to_point import PointToPoint
from traceq.frozen import frozen


@frozen(eq=False)
class MessageTimes:
    """P messages of R ranks, one rank after the other, in ns since the epoch by the clock of the first rank.

    int64[P]: `rank`, `peer` indices into the ranks, `peer` -1 where it is unknown or has no trace; `start`, `end`, -1
    for one that did not run; `partner` index into P, -1 for one without a match. `offset` int64[R]: ns that each
    rank's clock is ahead.
    """

    is_send: NDArray[np.bool_]
    rank: NDArray[np.int64]
    peer: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    partner: NDArray[np.int64]
    offset: NDArray[np.int64]

    @property
    def both_started(self) -> NDArray[np.int64]:
        """int64[P]: when the later of both sides starts, within the message; its end for one without a match."""
        later = np.maximum(self.start, self.start[self.partner])
        return np.where(self.partner >= 0, np.clip(later, self.start, self.end), self.end)

    @property
    def transferred(self) -> NDArray[np.int64]:
        """int64[P]: when the first of both sides ends, not before both have started; its end without a match."""
        first = np.minimum(self.end, self.end[self.partner])
        return np.where(self.partner >= 0, np.maximum(first, self.both_started), self.end)


def match_messages(
    ranks: Sequence[int], messages: Sequence[PointToPoint], base_ns: Sequence[int], ahead: Mapping[int, float]
) -> MessageTimes:
    """Return the matched messages; `base_ns` of each trace, `ahead` ns of clocks as far as collectives tell."""
    rank = np.repeat(np.arange(len(ranks)), np.array([len(part) for part in messages], np.int64))
    columns: dict[str, NDArray[np.int64]] = {
        name: np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in messages)])
        for name in ("peer", "step", "elements", "issued_ns", "start", "end")
    }
    is_send = np.concatenate([np.empty(0, np.bool_), *(part.is_send for part in messages)])
    index_of = {number: index for index, number in enumerate(ranks)}
    numbers, inverse = np.unique(columns["peer"], return_inverse=True)
    peer = np.array([index_of.get(number, -1) for number in numbers.tolist()], np.int64)[inverse.reshape(-1)]
    base, ran = np.array(base_ns, np.int64)[rank], columns["end"] >= 0
    start, end = np.where(ran, columns["start"] + base, -1), np.where(ran, columns["end"] + base, -1)
    partner = _partners(is_send, rank, peer, columns["step"], columns["elements"], ran)
    guess = [ahead.get(number, 0.0) for number in ranks]
    offset = np.round(_offsets(len(ranks), is_send, rank, start, end, partner, guess)).astype(np.int64)
    issued_ns, of_clock = columns["issued_ns"] + base - offset[rank], np.where(ran, offset[rank], 0)
    return MessageTimes(is_send, rank, peer, issued_ns, start - of_clock, end - of_clock, partner, offset)


def _partners(
    is_send: NDArray[np.bool_],
    rank: NDArray[np.int64],
    peer: NDArray[np.int64],
    step: NDArray[np.int64],
    elements: NDArray[np.int64],
    ran: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the index of the other side of each message, -1 where the sides of a step do not correspond."""
    partner = np.full(len(rank), -1)
    chosen = np.flatnonzero((peer >= 0) & (step >= 0))
    if len(chosen) == 0:
        return partner
    source, target = np.where(is_send, rank, peer)[chosen], np.where(is_send, peer, rank)[chosen]
    _, exchange = np.unique(np.column_stack([source, target, step[chosen]]), axis=0, return_inverse=True)
    exchange = exchange.reshape(-1)
    side = 2 * exchange + is_send[chosen]
    order = np.argsort(side, kind="stable")
    position = np.empty(len(chosen), np.int64)
    position[order] = np.arange(len(chosen)) - np.searchsorted(side[order], side[order])
    sorted_pairs = np.lexsort((is_send[chosen], position, exchange))
    key = np.column_stack([exchange, position])[sorted_pairs]
    is_pair = np.flatnonzero((key[1:] == key[:-1]).all(axis=1))
    recv, send = chosen[sorted_pairs[is_pair]], chosen[sorted_pairs[is_pair + 1]]
    fits = (elements[recv] == elements[send]) | (elements[recv] < 0) | (elements[send] < 0)
    num_fitting = np.bincount(exchange[sorted_pairs[is_pair]][fits], minlength=exchange.max() + 1)
    is_whole = 2 * num_fitting == np.bincount(exchange, minlength=len(num_fitting))
    good = is_whole[exchange[sorted_pairs[is_pair]]] & ran[recv] & ran[send]
    partner[recv[good]], partner[send[good]] = send[good], recv[good]
    return partner


def _offsets(
    num_ranks: int,
    is_send: NDArray[np.bool_],
    rank: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    partner: NDArray[np.int64],
    guess: Sequence[float],
) -> NDArray[np.float64]:
    """Return ns that each clock is ahead of that of the first rank of its chain of messages.

    No message arrives before it was sent, which bounds the difference of two clocks from both sides. A guess within the
    bounds is taken, else their middle.
    """
    most = np.full((num_ranks, num_ranks), np.inf)
    sends = np.flatnonzero(is_send & (partner >= 0))
    lead = (end[partner[sends]] - start[sends]).astype(np.float64)
    np.minimum.at(most, (rank[sends], rank[partner[sends]]), lead)
    offset, is_set = np.zeros(num_ranks), np.zeros(num_ranks, np.bool_)
    for first in range(num_ranks):
        pending = [] if is_set[first] else [first]
        is_set[first] = True
        while pending:
            a = pending.pop()
            linked = np.flatnonzero((np.isfinite(most[a]) | np.isfinite(most[:, a])) & ~is_set)
            for b in linked.tolist():
                offset[b] = offset[a] + _within(guess[b] - guess[a], -float(most[b, a]), float(most[a, b]))
            is_set[linked] = True
            pending.extend(linked.tolist())
    return offset


def _within(guess: float, least: float, most: float) -> float:
    """Return the guess if it is between the bounds, else their middle, or the one that is finite."""
    if least <= guess <= most:
        return guess
    if np.isfinite(least) and np.isfinite(most):
        return (least + most) / 2
    return most if np.isfinite(most) else least
