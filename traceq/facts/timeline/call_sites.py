"""Origin of a host call in the program: op, module and Python line.

The line is that of the innermost frame outside libraries that only pass calls on, such as torch: from Python stacks in
the trace, else from the `Call stack` of an op (2021), else from the table that a recording of traceq embeds. Python
stacks tell where a function begins; which line of it made a call they tell since torch 2.14.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import EMPTY, MODULE, matching, unique_names
from traceq.facts.events.nesting import Nest, host_ops, python_frames
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.phases import OTHER, phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.frozen import frozen
from traceq.grouping import Numbers, group, ordinals
from traceq.intervals import sorted_unique
from traceq.model import CallStacks, Category, Trace
from traceq.short_texts import without_module

CLOCK_SKEW_NS = 30_000

_COPY_OP = re.compile(r"^aten::(copy_|_local_scalar_dense|nonzero)$")
_LINE = re.compile(r"^(?P<file>[^ :]+):\d+(?P<function> .+)?$")
_FRAME = re.compile(r"^(?P<path>.*\.py)\((?P<line>\d+)\): (?P<function>.*)$")
_MODULES = (
    "copyreg|operator|random|secrets|statistics|fractions|decimal|_pydecimal|numbers|heapq|bisect|os|posixpath|"
    "genericpath|pathlib|glob|fnmatch|shutil|tempfile|subprocess|socket|selectors|pickle|struct|codecs|base64|hashlib|"
    "uuid|gzip|zipfile|tarfile|csv|datetime|_pydatetime|_strptime|string|textwrap|pprint|reprlib|traceback|linecache|"
    "argparse"
)
"""Modules of Python, which a trace names by file alone, without those whose names a script may well have."""
_STARTS_PROFILER, _DEEPEST = re.compile(r"(^|/)torch/(profiler|autograd)/profiler\.py\(\d+\): "), 1_000
"""Frames of torch's profiler, and how many frames are looked through for the one that starts it."""
INDUCTOR_CODE = r"(^|/)(?P<folder>[a-z2-7]{2})/c(?P=folder)[a-z2-7]{40,}\.py"
"""Path of code that torch.compile generated, in whatever folder."""
_LIBRARY = re.compile(
    r"(^|/)(torch|torch_xla|accelerate|tqdm|numpy|multiprocessing|concurrent|asyncio|importlib|traceq/recorder)/"
    r"|^(collections|json|re|logging|encodings|ctypes|urllib|http|email|pathlib)/"
    r"|(^|/)lib/python3\.\d+/(?!(site|dist)-packages/)"
    r"|(^|/)(threading|contextlib|functools|runpy|typing|weakref|warnings|inspect|abc|enum|dataclasses|copy)\.py\("
    rf"|^({_MODULES})\.py\("
    rf"|{INDUCTOR_CODE}\("
)


def is_at_line(recorded: str, given: str) -> bool:
    """Return whether `train.py:31 main` is the line, the file or the function that is given."""
    place, _, function = recorded.partition(" ")
    name, wanted = PurePath(place).name, PurePath(given.partition(" ")[0]).name
    return ":" in place and (name == wanted or name.rpartition(":")[0] == wanted or function == given)


@frozen(eq=False)
class Origins:
    """Origins of K calls: `op`, `module`, `line` int32[K] into `texts`; "" if the trace does not record it."""

    texts: tuple[str, ...]
    op: NDArray[np.int32]
    module: NDArray[np.int32]
    line: NDArray[np.int32]


def origins(
    trace: Trace,
    track: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rows: NDArray[np.int64] | None = None,
    copies: NDArray[np.bool_] | None = None,
    innermost: Numbers | None = None,
) -> Origins:
    """Return op, module and line of host calls [start, end) ns on their threads.

    `rows` int64[K] are the calls' rows of Events: an op of the same external id close by made the call (in 2023 those
    ids of ops and of calls are not the same). Otherwise the op is found by time, or is `innermost` ([K], an index
    into the thread's nest of host_ops); that of a call that `copies` (bool[K]) also shortly before or after it.
    """
    op_by_id = None if rows is None else _ops_with_same_id(trace, rows)
    texts: dict[str, int] = {"": 0}
    op, module, line = (np.zeros(len(track), np.int32) for _ in range(3))
    has_lines = len(trace.events.stacks.row) > 0 or trace.lines is not None
    middle = start + (end - start >> 1)
    for ops, calls in host_ops(trace).on(track):
        index = ops.innermost_at(middle[calls]) if innermost is None else innermost[calls].astype(np.int64)
        if op_by_id is not None:
            by_id = ops.index_of(op_by_id[calls])
            index = np.where(by_id >= 0, by_id, index)
        is_copy_op = _copies(trace)[ops.rows]
        copy_op = ops.first_enclosing(index, is_copy_op)
        index = np.where(copy_op >= 0, copy_op, index)
        if copies is not None:
            outside = np.flatnonzero((index < 0) & copies[calls])
            index[outside] = _nearby_op(ops, is_copy_op, start[calls[outside]], end[calls[outside]])
            early = np.flatnonzero(_in_allocating_ops(trace, ops, index) & copies[calls])
            after = ops.first_enclosing(ops.innermost_at(end[calls[early]] + CLOCK_SKEW_NS), is_copy_op)
            index[early] = np.where(after >= 0, after, index[early])
        op[calls] = _op_names(trace, ops, index, texts)
        if has_lines:
            line[calls] = _lines_of_ops(trace, ops, index, texts)
    for frames, calls in python_frames(trace).on(track):
        innermost_frame, num_open = frames.innermost_at(middle[calls]), _num_open(trace, frames)
        line[calls] = _first_known(_user_lines(trace, frames, innermost_frame, num_open, texts), line[calls])
        module[calls] = _modules(trace, frames, innermost_frame, texts)
    return Origins(tuple(texts), op, module, line)


def _source_line(frame: str) -> str:
    """Return `file.py:41 check` for `path/file.py(41): check`; "" for anything but a Python frame."""
    match = _FRAME.match(frame)
    return without_module(f"{match['path'].rpartition('/')[2]}:{match['line']} {match['function']}") if match else ""


def line_function(line: str) -> str:
    """Return `file.py:41 check` as `file.py check`, which stays the same when the function moves within its file."""
    match = _LINE.match(line)
    return f"{match['file']}{match['function'] or ''}" if match else line


def user_frames(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the main thread's frames of Python outside of libraries."""
    frames = python_frames(trace).get(main_track(trace))
    return np.empty(0, np.int64) if frames is None else frames.rows[_is_user(trace)[frames.rows]]


def user_line(frames: Sequence[str]) -> str:
    """Return `file.py:41 check` of the first user frame among `path/file.py(41): check`, innermost first, else ""."""
    user_frames = (frame for frame in frames if _FRAME.match(frame) and not _LIBRARY.search(frame))
    return _source_line(next(user_frames, ""))


def _first_known(first: Numbers, second: Numbers) -> Numbers:
    return np.where(first > 0, first, second)


def _number(texts: dict[str, int], text: str) -> int:
    return texts.setdefault(text, len(texts))


def _ops_with_same_id(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the op with the external id of each call, if it is close by in time, else -1."""
    ids, ops = _ops_by_id(trace)
    if len(ids) == 0:
        return np.full(len(rows), -1)
    call_id = trace.events.external_id[rows]
    index = np.minimum(np.searchsorted(ids, call_id), len(ids) - 1)
    call_start, start, end = trace.events.ts[rows], trace.events.ts[ops[index]], trace.events.end[ops[index]]
    is_close = (start - CLOCK_SKEW_NS <= call_start) & (call_start <= end + CLOCK_SKEW_NS)
    return np.where((rows >= 0) & (call_id > 0) & (ids[index] == call_id) & is_close, ops[index], -1)


@once_per_trace
def _copies(trace: Trace) -> NDArray[np.bool_]:
    """Return which events are ops that copy: bool[N]."""
    ops, is_copy = trace.events.rows(Category.CPU_OP), np.zeros(len(trace.events), np.bool_)
    is_copy[ops] = matching(trace.events, ops, _COPY_OP)
    return is_copy


@once_per_trace
def _ops_by_id(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (external ids ascending, rows of the ops that carry them)."""
    ops = trace.events.rows(Category.CPU_OP)
    ops = ops[trace.events.external_id[ops] > 0]
    ops = ops[np.argsort(trace.events.external_id[ops], kind="stable")]
    return trace.events.external_id[ops], ops


def _nearby_op(
    ops: Nest, matches: NDArray[np.bool_], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the index of the op with `matches` (bool[M]) shortly before each call, else shortly after it, else -1."""
    times = start - CLOCK_SKEW_NS, end + CLOCK_SKEW_NS
    before, after = (ops.first_enclosing(ops.innermost_at(each), matches) for each in times)
    return np.where(before >= 0, before, after)


def _in_allocating_ops(trace: Trace, ops: Nest, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[K]: the op is one that allocates, and does nothing else; False for index -1.

    A copy in one is that of the next op, where the clock of the runtime's calls is early.
    """
    return (index >= 0) & matching(trace.events, ops.rows[index], EMPTY)


def _op_names(trace: Trace, ops: Nest, index: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Return the text number of the name of each op; 0 for index -1."""
    by_op = len(index) > len(ops.rows)  # then it is cheaper to number the names of all ops once
    names, inverse = unique_names(trace.events, ops.rows if by_op else ops.rows[index])
    numbers = np.array([_number(texts, trace.events.strings[name]) for name in names.tolist()], np.int32)
    op_name = numbers[inverse][index] if by_op else numbers[inverse]
    return np.where(index >= 0, op_name, 0)


def _user_lines(
    trace: Trace, frames: Nest, innermost: NDArray[np.int64], num_open: int, texts: dict[str, int]
) -> NDArray[np.int64]:
    """Return the line of the innermost user frame from each frame outwards: that of its call, else its first.

    Of the first `num_open` frames without a call the first line is not where they stand.
    """
    strings, name, is_user = trace.events.strings, trace.events.name, _is_user(trace)[frames.rows]
    index = frames.first_enclosing(innermost, is_user)
    is_called = (frames.parent >= 0) & is_user[frames.parent]
    called = frames.first_enclosing(innermost, is_user | is_called)
    caller = np.where(called != index, _callers(trace)[frames.rows[called]], -1)
    is_open = (index < num_open) & (caller < 0)
    groups = group([name[frames.rows[index]], caller, is_open.astype(np.int64)])
    lines = [
        line_function(_source_line(strings[frame]))
        if has_no_line
        else _called_line(strings[frame], strings[line] if line >= 0 else "")
        for frame, line, has_no_line in groups.keys.tolist()
    ]
    numbers = np.array([_number(texts, line) for line in lines], np.int64)
    return np.where(index >= 0, numbers[groups.group_ids], 0)


def _num_open(trace: Trace, frames: Nest) -> int:
    """Return how many of a thread's first frames were open as the profiler was started in them; 0 in other threads.

    Kineto has the line at which each of them stood then, which is not the one where the function begins.
    """
    starts = np.flatnonzero(matching(trace.events, frames.rows[:_DEEPEST], _STARTS_PROFILER))
    first = int(starts[0]) if len(starts) else 0
    return first if (frames.parent[: first + 1] == np.arange(-1, first)).all() else 0


def _called_line(frame: str, caller: str) -> str:
    """Return `file.py:45 check` for `path/file.py(41): check` and `path/file.py:45`, where it makes a call."""
    match, (path, _, number) = _FRAME.match(frame), caller.rpartition(":")
    return _source_line(f"{path}({number}): {match['function']}" if match and match["path"] == path else frame)


@once_per_trace
def _callers(trace: Trace) -> NDArray[np.int64]:
    """Return the string of the line that called each Python frame: int64[N], -1 where the trace does not tell."""
    stacks, caller = trace.events.stacks, np.full(len(trace.events), -1)
    is_frame = trace.events.category[stacks.row] == Category.PYTHON
    caller[stacks.row[is_frame]] = stacks.text[is_frame]
    return caller


@once_per_trace
def _is_user(trace: Trace) -> NDArray[np.bool_]:
    """Return which events are Python frames outside of libraries: bool[N]."""
    frames, is_user = trace.events.rows(Category.PYTHON), np.zeros(len(trace.events), np.bool_)
    is_user[frames] = matching(trace.events, frames, _FRAME) & ~matching(trace.events, frames, _LIBRARY)
    return is_user


def _modules(trace: Trace, frames: Nest, innermost: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Return the innermost nn.Module from each frame outwards."""
    events = trace.events
    index = frames.first_enclosing(innermost, matching(events, frames.rows, MODULE))
    names, inverse = unique_names(events, frames.rows[index])
    numbers = [_number(texts, events.strings[name].removeprefix("nn.Module: ")) for name in names.tolist()]
    return np.where(index >= 0, np.array(numbers, np.int64)[inverse], 0)


def _lines_of_ops(trace: Trace, ops: Nest, index: NDArray[np.int64], texts: dict[str, int]) -> Numbers:
    """Return the line of each op by the call stack of the op or an enclosing one, else by the embedded table."""
    line: Numbers = np.zeros(len(index), np.int32)
    if len(trace.events.stacks.row):
        line = _stack_lines(trace, trace.events.stacks, ops, index, texts)
    if trace.lines is not None and ops is host_ops(trace).get(main_track(trace)):
        line = _first_known(line, _embedded_lines(trace, ops, index, texts))
    return line


def _stack_lines(
    trace: Trace, stacks: CallStacks, ops: Nest, index: NDArray[np.int64], texts: dict[str, int]
) -> NDArray[np.int64]:
    """Return the line of each op by its call stack or that of the nearest enclosing op that has one."""
    is_of_op = trace.events.category[stacks.row] != Category.PYTHON
    row, text = stacks.row[is_of_op], stacks.text[is_of_op]
    if not len(row):
        return np.zeros(len(index), np.int64)
    stack_texts, inverse = np.unique(text, return_inverse=True)
    lines = [_number(texts, user_line(trace.events.strings[text].split(";"))) for text in stack_texts.tolist()]
    row_line = np.zeros(len(trace.events), np.int64)
    row_line[row] = np.array(lines, np.int64)[inverse]
    op_line = row_line[ops.rows]
    enclosing = ops.first_enclosing(index, op_line > 0)
    return np.where(enclosing >= 0, op_line[enclosing], 0)


def _embedded_lines(trace: Trace, ops: Nest, index: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Return the line of the outermost op around each op, as the n-th of its name in its phase and step."""
    assert trace.lines is not None
    top = ops.outermost()[index]
    key, occurrence = _occurrences(trace)
    names = declared_phases(trace)
    numbers = [_number(texts, line) for line in trace.lines.lines]
    line = np.zeros(len(index), np.int64)
    for code in sorted_unique(key[top[index >= 0]]).tolist():
        phase, name = divmod(code, len(trace.events.strings))
        entries = trace.lines.table.get(f"{names[phase]}|{trace.events.strings[name]}", ())
        if not entries:
            continue
        table = np.array([numbers[entry] for entry in entries], np.int64)
        selected = np.flatnonzero((index >= 0) & (key[top] == code))
        nth = occurrence[top[selected]]
        line[selected] = np.where(nth < len(table), table[np.minimum(nth, len(table) - 1)], 0)
    return line


def declared_phases(trace: Trace) -> tuple[str, ...]:
    """Return the phases that the embedded table knows: those that the recording declared, and OTHER."""
    labels = phases(trace)
    return labels.names if labels.rule == "recorded" else (OTHER,)


@once_per_trace
def _occurrences(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for the main thread's ops, (phase and name as one number, ordinal of that key within the step).

    Phases are those of `declared_phases`. Ordinals count outermost ops only, from 0.
    """
    ops = host_ops(trace)[main_track(trace)]
    outermost = np.flatnonzero(ops.parent < 0)
    phase = phases(trace).main_phase_at(ops.start) if len(declared_phases(trace)) > 1 else np.zeros_like(ops.start)
    key = phase * len(trace.events.strings) + trace.events.name[ops.rows]
    step = np.searchsorted(steps(trace).host[:, 0], ops.start, "right")
    occurrence = np.zeros(len(key), np.int64)
    occurrence[outermost] = ordinals([step[outermost], key[outermost]])
    return key, occurrence
