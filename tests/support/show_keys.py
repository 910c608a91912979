"""Every key that the JSON of `show` promises, with its type."""

from __future__ import annotations

from typing import Any

__all__ = ["INT_OR_NONE", "NUMBER", "NUMBER_OR_NONE", "SHOW", "TEXT_OR_NONE"]


NUMBER, TEXT_OR_NONE, INT_OR_NONE, NUMBER_OR_NONE = (
    (int, float),
    (str, type(None)),
    (int, type(None)),
    (int, float, type(None)),
)


SHOW: dict[str, Any] = {
    "schema": str,
    "source": {
        "path": str,
        "num_events": int,
        "ranks": list,
        "world_size": int,
        "device": TEXT_OR_NONE,
        "torch": TEXT_OR_NONE,
    },
    "steps": [
        {
            "rank": int,
            "step": int,
            "name": str,
            "dur_ns": int,
            "window": str,
            "window_ns": int,
            "partial": bool,
            "lag_ns": int,
        }
    ],
    "inference": list,
    "experts": list,
    "pipeline": list,
    "pipeline_messages": list,
    "memcpy": [{"rank": int, "kind": str, "num": int, "bytes": INT_OR_NONE, "gpu_ns": int}],
    "syncs": [
        {
            "key": str,
            "rank": int,
            "kind": str,
            "op": str,
            "call": str,
            "phase": str,
            "line": str,
            "module": str,
            "num": int,
            "bytes": INT_OR_NONE,
            "blocked_ns": int,
            "wait_ns": int,
            "starved_ns": int,
            "cost_ns": int,
            "step_blocked_ns": int,
            "step_unrecorded_ns": int,
            "replay_ns": INT_OR_NONE,
            "label": str,
        }
    ],
    "collectives": [
        {
            "key": str,
            "rank": int,
            "name": str,
            "group": str,
            "group_size": INT_OR_NONE,
            "dtype": str,
            "num": int,
            "num_kernels": int,
            "bytes": INT_OR_NONE,
            "gpu_ns": int,
            "exposed_ns": int,
            "algbw_gbps": NUMBER_OR_NONE,
            "busbw_gbps": NUMBER_OR_NONE,
            "phase": str,
        }
    ],
    "phases": [
        {
            "rank": int,
            "name": str,
            "rule": str,
            "cpu_ns": int,
            "gpu_busy_ns": int,
            "gpu_sum_ns": int,
            "num_kernels": int,
            "num_gpu_ops": int,
        }
    ],
    "partition": [{"rank": int, "step": int, "phase": str, "category": str, "dur_ns": int}],
    "compiling": [
        {"rank": int, "step": int, "function": str, "compile_id": str, "pass": str, "shapes": str, "dur_ns": int}
    ],
    "kernels": [{"key": str, "rank": int, "phase": str, "name": str, "num": int, "gpu_ns": int}],
    "coverage": {"num_gpu_events": int, "unattributed_ns": int, "before_window_ns": int, "dropped_events": int},
    "findings": [{"code": str, "severity": str, "text": str, "ns": int, "key": str}],
    "warnings": [{"code": str, "text": str}],
}
