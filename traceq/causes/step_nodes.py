"""Nodes at which the steps of one recording begin and end, and the host in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.anchors import AnchorKind
from traceq.causes.rank_graph import RankGraph
from traceq.causes.windows import last_ends, opening
from traceq.facts.timeline.steps import steps

__all__ = ["host_nodes", "step_nodes"]


def step_nodes(rank: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K, S] the nodes of which the latest is the begin of each step, the end), -1 for none.

    No step begins before the work of the one before it is done: a host without its waits runs ahead of the device.
    """
    all_steps, (begin, end) = steps(rank.a.trace), _step_anchors(rank)
    on_device = last_ends(rank, end if all_steps.marked else end + 1)
    before = np.concatenate([np.full_like(on_device[:1], -1), on_device[:-1]])
    by_host = np.full(len(all_steps), not all_steps.by_device)
    begin_node = np.where(by_host | all_steps.begins_session, rank.host_node[begin], -1)
    end_node = np.where(by_host | all_steps.is_only, rank.host_node[end], -1)
    return np.column_stack([_opening(rank), begin_node, before]), np.column_stack([end_node, on_device])


def host_nodes(rank: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[K, 2] the nodes of which the latest is the begin of the host in each step, int64[K, 1] its end).

    A step of the host begins where the one before ends, within a session of the profiler.
    """
    begin, end = (rank.host_node[anchor] for anchor in _step_anchors(rank))
    since = np.where(steps(rank.a.trace).begins_session, begin, np.r_[begin[:1], end[:-1]])
    return np.column_stack([_opening(rank), since]), end[:, None]


def _step_anchors(rank: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (the begin of each step of the host, its end): int64[K] anchors."""
    line = rank.a
    if not steps(line.trace).marked:
        return np.zeros(1, np.int64), np.flatnonzero(line.kind == AnchorKind.END)
    begin, end = (np.flatnonzero(line.kind == kind) for kind in (AnchorKind.STEP_BEGIN, AnchorKind.STEP_END))
    begin, end = (anchor[np.argsort(line.ref[anchor], kind="stable")] for anchor in (begin, end))
    return begin, end


def _opening(rank: RankGraph) -> NDArray[np.int64]:
    """Return int64[K]: the node with which the first step begins after unrecorded work, -1 for none."""
    opens = np.full(len(steps(rank.a.trace)), -1)
    opens[: len(opening(rank))] = opening(rank)
    return opens
