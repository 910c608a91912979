"""Copies of memory: from where to where, the kind of the host's memory, and the ops in which the host reads."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import innermost_ops, launched_kernels
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.intervals import sorted_unique
from traceq.model import Trace

DIRECTIONS = ("DtoH", "HtoD", "DtoD", "PtoP")
OVER_LINK = ("DtoH", "HtoD")
COPY_CALL = re.compile("memcpy", re.IGNORECASE)
"""Runtime calls that copy."""
PAGEABLE_COPY = re.compile("pageable", re.IGNORECASE)
TO_HOST, TO_DEVICE = re.compile("Memcpy DtoH|DeviceToHost"), re.compile("Memcpy HtoD|HostToDevice")
WITHIN_DEVICE = re.compile("Memcpy (DtoD|DeviceToDevice)")
_DIRECTION = re.compile(r"^Memcpy (?P<direction>[A-Za-z]+to[A-Za-z]+)")
_MEMORY = re.compile("pageable|pinned", re.IGNORECASE)


class CopyKind(NamedTuple):
    """Direction of a copy, of DIRECTIONS or the whole name, and memory of the host: `pageable`, `pinned` or ""."""

    direction: str
    memory: str

    @property
    def text(self) -> str:
        """`HtoD pinned`, or the direction alone."""
        return " ".join(filter(None, self))


def copy_kind(name: str) -> CopyKind:
    """Return the kind of a copy by the name of its row, `Memcpy DtoH (Device -> Pinned)`."""
    direction, memory = _DIRECTION.match(name), _MEMORY.search(name)
    return CopyKind(direction["direction"] if direction else name, memory[0].lower() if memory else "")


def host_copies(trace: Trace) -> NDArray[np.int64]:
    """Return the copies from host to device and back, as indices into DeviceWork.

    Without copies that are part of the launch of a kernel, which hand it its arguments: those to the device without a
    recorded launch that begin in an op that launches a kernel.
    """
    work = device_work(trace)
    to_device = matching(trace.events, work.rows, TO_DEVICE)
    unlinked = np.flatnonzero(to_device & ~work.linked)
    launching = launched_kernels(trace).op
    is_in_launch = np.isin(_open_ops(trace, work.start[unlinked]), launching[launching >= 0]).any(axis=0)
    to_device[unlinked[is_in_launch]] = False
    return np.sort(np.r_[copies_to_host(trace), np.flatnonzero(to_device)])


def copies_to_host(trace: Trace) -> NDArray[np.int64]:
    """Return the copies from device to host, as indices into DeviceWork."""
    return np.flatnonzero(matching(trace.events, device_work(trace).rows, TO_HOST))


def ops_that_copy_to_host(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the innermost ops that launch a copy to the host.

    Of a copy without a recorded launch: those open when it begins, on the threads that launch work.
    """
    work, copies = device_work(trace), copies_to_host(trace)
    linked = work.linked[copies]
    around = _open_ops(trace, work.start[copies[~linked]])
    ops = sorted_unique(innermost_ops(trace, work.call[copies[linked]]), around.ravel())
    return ops[ops >= 0]


def _open_ops(trace: Trace, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[1 + T, K]: -1, and the row of the innermost op of each thread that launches work, -1 without one."""
    work = device_work(trace)
    launching = sorted_unique(tracks(trace)[work.call[work.linked]]).tolist() if len(instants) else ()
    nests = (host_ops(trace).get(track) for track in launching)
    rows = [np.r_[nest.rows, -1][nest.innermost_at(instants)] for nest in nests if nest is not None]
    return np.vstack([np.full(len(instants), -1), *rows])
