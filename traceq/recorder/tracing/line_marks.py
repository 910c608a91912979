"""Marks in a profile for the running Python line: Kineto's Python frames hold only the first line of a function.

In a block of `marked_lines` each new line of user code is an empty range `line:3 file.py:41 function`, of a method
`Class.function`, on the main thread, by the profiler's clock; 3 frames of user code are around that of the function. An
op belongs to the last mark before it. Frames of torch and related libraries are skipped.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from traceq import recorder

PREFIX = "line:"

_NAMELESS = re.compile(r"(\.<locals>\.<\w{1,20}>){1,20}$")

_PACKAGES = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
_RELATED = ("torch", "accelerate", "deepspeed", "numpy", "nvtx", "triton", "functorch")
_LIBRARIES = (
    *(f"{folder}/{name}/" for folder in _PACKAGES for name in _RELATED),
    f"{Path(torch.__file__).parent}/",
)
_STANDARD = f"{sysconfig.get_path('stdlib')}/"
_RECORDER = (f"{Path(recorder.__file__).parent}/", f"{Path(recorder.__file__).parents[1]}/pytest_plugin.py")
_ROOTS = tuple(f"{folder}/" for folder in _PACKAGES)


@contextmanager
def marked_lines() -> Iterator[None]:
    """Mark the lines that run in the block, on this thread; a tracer (debugger, coverage) is restored after it."""
    before, tracers = sys.gettrace(), _trace_running_frames()
    sys.settrace(_on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        for frame in frames_from(sys._getframe().f_back):
            if isinstance(frame.f_trace, _LineTracer):
                frame.f_trace = tracers.get(id(frame))


def _trace_running_frames() -> dict[int, Any]:
    """Mark the lines of functions that already run, as a loop does; return their tracers before, by the frame's id.

    A frame itself would keep the loop's iterator, which is to end with the loop.
    """
    running = [frame for frame in frames_from(sys._getframe().f_back) if is_user_code(frame.f_code.co_filename)]
    tracers = {id(frame): frame.f_trace for frame in running}
    for depth, frame in enumerate(reversed(running)):
        frame.f_trace = _LineTracer(depth)
    return tracers


def mark_running_line() -> None:
    """Mark the current line of the nearest user frame: a step that begins inside a loop has no new line yet."""
    _mark_nearest(sys._getframe())


def marked_place(name: str) -> tuple[int, str]:
    """Return the number of frames around, and `file.py:41 function`, of the name of a mark."""
    depth, _, line = name.removeprefix(PREFIX).partition(" ")
    return int(depth), line


@dataclass(frozen=True, slots=True)
class _LineTracer:
    """Marks the lines of a frame that has `depth` frames of user code around it."""

    depth: int

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            _mark(frame.f_code, frame.f_lineno, self.depth)
        elif event == "return":
            _mark_nearest(frame)
        return self


def _on_call(frame: FrameType, event: str, arg: Any) -> Any:
    if not is_user_code(frame.f_code.co_filename):
        return None
    around = (caller.f_trace for caller in frames_from(frame.f_back))
    return _LineTracer(next((tracer.depth + 1 for tracer in around if isinstance(tracer, _LineTracer)), 0))


def _mark_nearest(frame: FrameType) -> None:
    caller = next((caller for caller in frames_from(frame.f_back) if is_user_code(caller.f_code.co_filename)), None)
    if caller is not None:
        tracer = caller.f_trace
        _mark(caller.f_code, caller.f_lineno, tracer.depth if isinstance(tracer, _LineTracer) else 0)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those around it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def is_user_code(filename: str) -> bool:
    """Return True for user code, other libraries included; not for torch, related ones, the stdlib or the recorder."""
    if filename.startswith(("<", *_LIBRARIES, *_RECORDER)):
        return False
    return not filename.startswith(_STANDARD) or filename.startswith(_ROOTS)


@cache
def is_own_code(filename: str) -> bool:
    """Return True for user code that is not in an installed package."""
    return is_user_code(filename) and not filename.startswith(_ROOTS)


def _mark(code: CodeType, line: int, depth: int) -> None:
    with _range(code.co_filename, line, function_name(code), depth):
        pass


@cache
def function_name(code: CodeType) -> str:
    """Return `GPT.forward`: classes of one file have methods of the same name; of a function inside another its own.

    What has no name, as a comprehension, belongs to the function around it.
    """
    return _NAMELESS.sub("", code.co_qualname).rpartition("<locals>.")[2]


@cache
def _range(filename: str, line: int, function: str, depth: int) -> Any:
    name = filename.replace("\\", "/").rpartition("/")[2]  # not by pathlib, which Dynamo would compile
    return torch._C._profiler._RecordFunctionFast(f"{PREFIX}{depth} {name}:{line} {function}")
