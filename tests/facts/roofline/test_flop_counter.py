"""FLOPs of recorded CPU models against torch.utils.flop_counter, which counts ops as they run.

Where flop_counter is known to be wrong, that is imitated: it counts fused attention on a CPU as 0, so its own formulas
are given to it; it ignores the groups of a weight's gradient, so grouped convolutions run forward only. It has no
formula for a matrix times a vector, a recurrent layer or a grouped product; tests/facts/roofline/test_formulas.py
has those by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from traceq.facts.roofline.modelled_ops import modelled_ops
from traceq.kineto.read import read_trace
from traceq.model import Trace

pytestmark = pytest.mark.slow


def _record(step: object, path: Path) -> Trace:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step().backward()  # type: ignore[operator]
    profiler.export_chrome_trace(str(path))
    return read_trace(path)


def _flops(trace: Trace, *, repeated: bool = True) -> int:
    ops = modelled_ops(trace)
    counted = ops.work if repeated else ops.work[~ops.repeats]
    return sum(ops.works[index].flops for index in counted.tolist())


def _counted(step: object) -> int:
    import torch
    from torch.utils import flop_counter

    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    formulas = {
        attention: lambda *shapes, **_: flop_counter.sdpa_flop_count(*shapes[:3]),
        gradient: lambda *shapes, **_: flop_counter.sdpa_backward_flop_count(*shapes[:4]),
    }
    with flop_counter.FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        step().backward()  # type: ignore[operator]
    return counter.get_total_flops()


def test_flops_of_recorded_models_equal_those_that_torch_counts_while_they_run(tmp_path: Path) -> None:
    import torch
    from cpu_models import MODELS
    from torch.utils.checkpoint import set_checkpoint_early_stop

    assert len(MODELS) >= 30
    differ = {}
    with set_checkpoint_early_stop(False):
        for name, build in MODELS.items():
            torch.manual_seed(0)
            step = build()
            result, expected = _flops(_record(step, tmp_path / "trace.json")), _counted(step)
            if result != expected or not result:
                differ[name] = (result, expected)
    assert differ == {}


@pytest.mark.parametrize("kind", ["GPT with checkpoints", "GPT with reentrant checkpoints"])
def test_recomputed_flops_are_told_apart(kind: str, tmp_path: Path) -> None:
    import torch
    from cpu_models import MODELS
    from torch.utils.checkpoint import set_checkpoint_early_stop

    with set_checkpoint_early_stop(False):
        trace = _record(MODELS[kind](), tmp_path / "trace.json")
    torch.manual_seed(0)
    assert _flops(trace, repeated=False) == _counted(MODELS["GPT"]())
    assert _flops(trace) > _flops(trace, repeated=False)
