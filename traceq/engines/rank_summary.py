"""Work of one worker process: read a rank and summarise it as bytes, or answer queries about it.

Typed values are packed without pickle, as cache files are in folders that others may write to.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec
import numpy as np

from traceq.analysis.registry import analysis
from traceq.errors import UnreadableInput
from traceq.facts.comm.rank_collectives import rank_calls
from traceq.facts.ranks.job import step_totals
from traceq.facts.ranks.rank_outline import head, outline
from traceq.facts.timeline.single_step import cut_to_step, step_numbers
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.locations import Place
from traceq.model import Trace
from traceq.runs.read import read_one

T = TypeVar("T")
_NUMBERS = "biuf"


class Damaged(Exception):
    """Bytes that `pack` did not write, or not of this type."""


STEP_TOTALS = "step totals"
"""Name of the one part of a summary that is no analysis."""

A = TypeVar("A")


@frozen
class RankSummary:
    """Summary of one trace, each piece as bytes.

    `head`: the trace without events; `outline`, `calls`: the data that ranks are compared by; `parts`: (name of the
    analysis or STEP_TOTALS, its summary); `whole`: the trace, b"" where it is dearer to keep than to read again.
    """

    head: bytes
    outline: bytes
    calls: bytes
    parts: tuple[tuple[str, bytes], ...]
    whole: bytes = b""

    @property
    def names(self) -> frozenset[str]:
        """Names of the analyses in it."""
        return frozenset(name for name, _ in self.parts)

    def part(self, name: str) -> bytes:
        """Return the summary of one analysis."""
        return next(part for analysis_name, part in self.parts if analysis_name == name)


def summarize(
    path: Place, names: Sequence[str], strict: bool, step: int | None, left_out: Collection[str], most_kept: int = 0
) -> RankSummary | UnreadableInput:
    """Read one trace and return its summary, or the error if it cannot be read.

    A trace without the requested step is not cut; only its outline is used. One of up to `most_kept` events is in its
    summary as a whole.
    """
    try:
        trace = read_as(path, strict, step, left_out)
        return RankSummary(
            head=pack(head(trace)),
            outline=pack(outline(trace)),
            calls=pack(rank_calls(trace)),
            parts=tuple((name, pack(_summarizer(name)(trace))) for name in names),
            whole=pack(trace) if len(trace.events) <= most_kept else b"",
        )
    except UnreadableInput as fault:
        return fault
    except MemoryError:
        return UnreadableInput(str(path), "too little memory to read it")


def answer_queries(
    path: Place,
    strict: bool,
    step: int | None,
    left_out: Collection[str],
    question: Callable[[Trace, A], T],
    arguments: Sequence[A],
) -> list[T]:
    """Read one trace again and return `question(trace, argument)` for each argument. Raises UnreadableInput."""
    trace = read_as(path, strict, step, left_out)
    return [question(trace, argument) for argument in arguments]


def read_as(path: Place, strict: bool, step: int | None, left_out: Collection[str]) -> Trace:
    """Return a trace, cut to the step if it has it. Raises UnreadableInput."""
    trace = read_one(path, strict=strict)
    if left_out:
        trace = replace(trace, left_out=frozenset(left_out))
    return trace if step is None or step not in step_numbers(steps(trace)) else cut_to_step(trace, step)


@cache
def part_type(name: str) -> Any:
    """Return the type of an analysis' summary of a rank."""
    return get_type_hints(_summarizer(name))["return"]


def _summarizer(name: str) -> Callable[[Trace], Any]:
    return step_totals if name == STEP_TOTALS else analysis(name).summarize


def pack(value: object) -> bytes:
    """Return as bytes a dataclass, or any other type that msgspec supports, with numpy arrays in it."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_encode_numpy), 1)


def unpack(data: bytes, type_: type[T]) -> T:
    """Return the value that `pack` was called with. Raises Damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=type_, dec_hook=_decode_array)
    except (zlib.error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as fault:
        raise Damaged(str(fault)) from fault


def _encode_numpy(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value).__name__)


def _decode_array(type_: type, encoded: Any) -> object:
    if get_origin(type_) is not np.ndarray:
        raise NotImplementedError(str(type_))
    dtype, shape, data = encoded
    if np.dtype(dtype).kind not in _NUMBERS:
        raise ValueError(f"no numeric dtype: {dtype}")
    return np.frombuffer(data, dtype).reshape(shape).copy()
