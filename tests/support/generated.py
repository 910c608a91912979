"""Traces that hypothesis draws: sound ones in every layout and spelling, and the same with damage."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec
from hypothesis import strategies as st

from traceq.kineto.raw_events import RawArgs

NAMES = ["}, {", '"traceEvents": [', "a\\b", 'say "hi"', "]}", "{", "ü\u2028", "NaN", "\n", "", "dma_request"]
NAMES += [
    "[memory]",
    "aten::add",
    "nccl:all_reduce",
    "c10d::allreduce_",
    "ProfilerStep#3",
    "thread_name",
    "😀",
    "kernel<float>" * 9,
]
CATS = ["cpu_op", "Operator", "user_annotation", "cuda_runtime", "kernel", "Kernel", "gpu_memcpy", "mtia_ccp_events"]
CATS += ["cuda_sync", "python_function", "ac2g", "", "über"]
ARGS = [name for field in msgspec.structs.fields(RawArgs) if (name := field.encode_name)]

JUNK = [b'"', b"}, {", b"NaN", b"-Infinity", b"]", b"}", b"{", b"\\", b"[" * 300, b"\xff", b",", b"\\u00e9", b"\\ud800"]
JUNK += [b"1e5", b"18446744073709551615", b"-1", b"null", b"\x00", b"\x1f", b'"ph":"X",', b'"args":{},', b"0", b"."]
JUNK += [b",,", b'"dur":,', b"},,{", b"} {", b"},]", b"{,", b":,", b",}"]

names = st.sampled_from(NAMES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-2, 9) | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | names | st.integers(-9, 10**19).map(str)
nested = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
grids = st.lists(st.integers(0, 65535), max_size=3)
arguments = st.dictionaries(st.sampled_from(ARGS), st.integers(0, 2**40), max_size=9) | st.dictionaries(
    st.sampled_from(ARGS) | names, nested | grids, max_size=4
)
times = st.integers(0, 2 * 10**15) | st.decimals(0, 10**12, places=3).map(float) | scalars


@st.composite
def event(draw: st.DrawFn) -> dict[str, Any]:
    made = {
        "ph": draw(st.sampled_from(["X", "X", "X", "X", "M", "i", "i"]) | names),
        "cat": draw(st.sampled_from(CATS)),
        "name": draw(names | scalars),
        "pid": draw(st.integers(0, 9) | names),
        "tid": draw(st.integers(0, 9) | scalars),
        "ts": draw(times),
        "dur": draw(st.integers(0, 10**9) | times),
        "args": draw(arguments | st.none()),
        "id": draw(nested),
    }
    kept = draw(st.lists(st.sampled_from(sorted(made)), unique=True, min_size=5))
    return {key: made[key] for key in kept}


LAYOUTS = {
    "minified": lambda value: msgspec.json.encode(value),
    "spaced": lambda value: json.dumps(value).encode(),
    "indented": lambda value: json.dumps(value, indent=4, ensure_ascii=False).encode(),
    "a line each": lambda value: msgspec.json.encode(value).replace(b"},{", b"},\r\n{"),
    "airy": lambda value: json.dumps(value, separators=(" ,\n\t ", " : ")).encode(),
    "ragged": lambda value: _ragged(json.dumps(value, separators=(" \0,\0", "\0:\0"))),
}


def _ragged(text: str) -> bytes:
    """Each blank of another kind than the last: a NUL stands for it, which JSON has nowhere else."""
    dice = random.Random(text)
    return re.sub("\0", lambda _: dice.choice(["", "", " ", "\n  ", "\t"]), text).encode()


@st.composite
def sound(draw: st.DrawFn) -> bytes:
    """A trace that is JSON."""
    events = draw(st.lists(event(), max_size=12)) * draw(st.sampled_from([1, 1, 1, 20]))
    around = draw(st.dictionaries(names, nested, max_size=2))
    value = draw(
        st.sampled_from([events, {"schemaVersion": 1, "traceEvents": events}, {"traceEvents": events} | around])
    )
    return draw(st.sampled_from(sorted(LAYOUTS)).map(LAYOUTS.__getitem__))(value)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A trace with up to three places cut, doubled or overwritten."""
    content = draw(sound())
    for _ in range(draw(st.integers(1, 3))):
        index = int(draw(st.floats(0, 1)) * len(content))
        removed = draw(st.integers(0, 12) | st.just(len(content)))
        inserted = draw(st.just(b"") | st.sampled_from(JUNK) | st.binary(max_size=6))
        content = content[:index] + inserted + content[index + removed :]
    return content
