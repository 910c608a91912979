"""Steps of inference engines, recognised by the annotations that they write: what each computes, for how many requests.

vLLM writes `execute_context_2(900)_generation_30(30)` (in variants), SGLang `step[EXTEND bs=15 toks=15360]`,
TensorRT-LLM `[Executor] _forward_step 7: 2 ctx reqs, 900 ctx tokens, 30 gen reqs`; loops of others `prefill` and
`decode`, often with a number, a batch size or tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import rows_named, unique_names
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.model import Category, Trace

STEP_KINDS = ("prefill", "decode", "mixed", "step")
"""What a step computes: whole prompts, the next token of each request, both, or not known; `InferenceMarks.kind`."""

_PREFILL, _DECODE, _MIXED, _UNKNOWN = range(len(STEP_KINDS))

_BY_REQUESTS = (
    re.compile(
        r"^execute_(?:\d+_)?context_(?P<prefills>\d+)\((?:sq)?(?P<prompt>\d+)[^)]*\)"
        r"_generation_(?P<decodes>\d+)\((?:sq)?(?P<next>\d+)[^)]*\)"
    ),
    re.compile(r"^execute_new_(?P<prefills>\d+)_cached_(?P<decodes>\d+)(?P<prompt>)(?P<next>)$"),
    re.compile(
        r"_forward_step(?: \d+)?: (?P<prefills>\d+) ctx reqs?,(?: (?P<prompt>\d+) ctx tokens,)?"
        r" (?P<decodes>\d+) d?gen reqs?(?P<next>)"
    ),
)
"""Requests of either kind and their new tokens: vLLM's, those of its first version 1, TensorRT-LLM's."""
_SGLANG = re.compile(r"^step\[(?P<mode>[A-Z_]+)")
_MODES = {"EXTEND": _PREFILL, "PREFILL": _PREFILL, "DECODE": _DECODE, "MIXED": _MIXED, "TARGET_VERIFY": _DECODE}
_LOOP = re.compile(
    r"^(?:\w+[./:])?(?P<kind>prefill|decode)(?:[\W\d_]|bs|batch|size|tok|tokens?|step|phase|iter|iteration)*$",
    re.IGNORECASE,
)
_BATCH = re.compile(r"\b(?:bs|batch(?:_size)?)\W{0,2}(\d+)", re.IGNORECASE)
_TOKENS = re.compile(r"\b(?:tok|token)s?\W{0,2}(\d+)", re.IGNORECASE)
_TRAINS = re.compile(r"^autograd::engine|^Optimizer\.step#")
_FEWEST_OF_A_LOOP = 2
_UNCLASSIFIED = re.compile(r"^execute_model$|^(v2_)?gpu_model_runner: forward$")


@frozen
class Requests:
    """One step as its annotation tells it: `kind` into STEP_KINDS, requests and new tokens; -1 = not told.

    `by_engine`: no other program writes such an annotation.
    """

    kind: int
    batch: int = -1
    tokens: int = -1
    by_engine: bool = False


@frozen(eq=False)
class InferenceMarks:
    """K steps of one thread by start, none inside another.

    `rows` int64[K] into Events; `kind` int64[K] into STEP_KINDS; `batch`, `tokens` int64[K], -1 = not told.
    """

    rows: NDArray[np.int64]
    kind: NDArray[np.int64]
    batch: NDArray[np.int64]
    tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classified(self) -> bool:
        """Whether it is known what the steps compute."""
        return len(self) > 0 and bool((self.kind != _UNKNOWN).all())


@once_per_trace
def inference_marks(trace: Trace) -> InferenceMarks:
    """Return the steps of the thread that has most of them; marks that tell what a step computes come before others.

    Names that other programs may use count if they are repeated, in a trace that does not train.
    """
    events = trace.events
    rows = events.rows(Category.ANNOTATION)
    names, inverse = unique_names(events, rows)
    parsed = [parse(events.strings[name]) for name in names.tolist()]
    if not any(each is not None and each.by_engine for each in parsed) and len(
        rows_named(events, _TRAINS, Category.ANNOTATION, Category.CPU_OP)
    ):
        parsed = [None for _ in parsed]
    classified = np.array([each is not None and each.kind != _UNKNOWN for each in parsed], np.bool_)
    is_mark = classified if classified.any() else np.array([each is not None for each in parsed], np.bool_)
    selected = np.flatnonzero(is_mark[inverse]) if len(names) else np.empty(0, np.int64)
    selected = selected[events.dur[rows[selected]] > 0]
    selected = _outermost_of_one_thread(trace, rows, selected)
    of_name = [parsed[name] or Requests(_UNKNOWN) for name in inverse[selected].tolist()]
    if len(selected) < _FEWEST_OF_A_LOOP and not any(each.by_engine for each in of_name):
        selected, of_name = selected[:0], []
    return _marks(rows[selected], of_name)


def _marks(rows: NDArray[np.int64], requests: Sequence[Requests]) -> InferenceMarks:
    columns = ([each.kind, each.batch, each.tokens] for each in requests)
    kind, batch, tokens = np.array(list(columns), np.int64).reshape(-1, 3).T
    return InferenceMarks(rows, kind, batch, tokens)


def _outermost_of_one_thread(trace: Trace, rows: NDArray[np.int64], selected: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the selected indices of the thread with most of them, by start, without those inside another."""
    if len(selected) == 0:
        return selected
    track = tracks(trace)[rows[selected]]
    numbers, counts = np.unique(track, return_counts=True)
    selected = selected[track == numbers[np.argmax(counts)]]
    start, end = trace.events.ts[rows[selected]], trace.events.end[rows[selected]]
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end[order]])[:-1]
    outermost: NDArray[np.int64] = selected[order[start[order] >= reach]]
    return outermost


def parse(name: str) -> Requests | None:
    """Return what an annotation tells of a step of an inference engine, None if it is none."""
    for pattern in _BY_REQUESTS:
        if match := pattern.search(name):
            prefills, decodes = int(match["prefills"]), int(match["decodes"])
            tokens = _new_tokens(prefills, match["prompt"], decodes, match["next"])
            kind = _MIXED if prefills and decodes else _PREFILL if prefills else _DECODE if decodes else _UNKNOWN
            return Requests(kind, prefills + decodes, tokens, by_engine=True)
    if match := _SGLANG.match(name):
        return replace(_by_numbers(_MODES.get(match["mode"], _UNKNOWN), name), by_engine=True)
    if match := _LOOP.match(name):
        return _by_numbers(STEP_KINDS.index(match["kind"].lower()), name)
    return Requests(_UNKNOWN) if _UNCLASSIFIED.match(name) else None


def _new_tokens(prefills: int, prompt: str | None, decodes: int, next_tokens: str | None) -> int:
    """Return the new tokens of a step, -1 if those of its prompts are not told; a decode without a number has one."""
    if prefills and not prompt:
        return -1
    return (int(prompt or 0) if prefills else 0) + (int(next_tokens) if next_tokens else decodes)


def _by_numbers(kind: int, name: str) -> Requests:
    batch, tokens = (int(match[1]) if (match := pattern.search(name)) else -1 for pattern in (_BATCH, _TOKENS))
    return Requests(kind, batch, batch if tokens < 0 and kind == _DECODE else tokens)
