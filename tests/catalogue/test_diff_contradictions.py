"""On every pair of the catalogue and of the fixtures, each statement, table and file of a comparison says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from diff_claims import contradictions_of_diffs
from paths import FIXTURES, TRACES

from traceq.compare.diff import diff, diff_run
from traceq.compare.result import Diffs

LARGE = ("sam-a100-ab", "hta-diff", "owlv2", "resnet50-2021", "ddp-a100", "dlrm-v100-8r", "nanogpt-h100-8r")
REAL = [
    ("ep-moe-b200-ab/ref.json.gz", "ep-moe-b200-ab/syncless.json.gz"),
    ("torchrec-v100-ab/a", "torchrec-v100-ab/b"),
    ("torchrec-v100-ab/a", "torchrec-v100-straggler-4r"),
    ("dlrm-v100-8r/rank0.json.gz", "dlrm-v100-8r/rank5.json.gz"),
    ("nanogpt-h100-8r/rank0.json.gz", "nanogpt-h100-8r/rank3.json.gz"),
    ("ddp-a100/rank0.json.gz", "resnet-ddp-mi300/rank0.json.gz"),
    ("cuda-sync/multi-stream.json.gz", "cuda-sync/alexnet.json.gz"),
    ("gloo-cpu/rank34.json.gz", "hta-groups/no-device-rows.json.gz"),
    ("resnet50-2021/workers0.json.gz", "resnet50-2021/workers4.json.gz"),
    ("sam-a100-ab/compile_false.json.gz", "sam-a100-ab/compile_true.json.gz"),
    ("hta-diff/control-a100-rank3.json.gz", "hta-diff/test-v100-rank1.json.gz"),
    ("owlv2/h100.json.gz", "owlv2/mi300.json.gz"),
]
OURS = [
    ("kinds/inference.json", "kinds/inference_slower.json"),
    ("example/job", "example/uneven"),
    ("strategies/ddp.json.gz", "strategies/fsdp2.json.gz"),
    ("strategies/zero1.json.gz", "strategies/zero3.json.gz"),
]


def walked(a: Path, b: Path) -> list[str]:
    there, back = diff(a, b), diff(b, a)
    return [text for each in (there, back) for text in contradictions_of_diffs(Diffs(each.a_name, (each,)))]


@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, id=" ".join(pair), marks=[pytest.mark.slow] * pair[0].startswith(LARGE)) for pair in REAL],
)
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")
def test_a_comparison_of_real_traces_does_not_contradict_itself(pair: tuple[str, str]) -> None:
    assert walked(*(TRACES / name for name in pair)) == []


@pytest.mark.parametrize("pair", OURS, ids=" ".join)
def test_a_comparison_of_fixtures_does_not_contradict_itself(pair: tuple[str, str]) -> None:
    assert walked(*(FIXTURES / name for name in pair)) == []


@pytest.mark.slow
def test_a_recorded_run_does_not_contradict_itself() -> None:
    assert list(contradictions_of_diffs(diff_run(FIXTURES / "outlier_ab"))) == []


@pytest.mark.slow
@pytest.mark.parametrize("pair", [REAL[0], REAL[1]], ids=" ".join)
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")
def test_a_statement_with_another_number_is_a_contradiction(pair: tuple[str, str]) -> None:
    """Each number of each statement in turn."""
    result = diff(*(TRACES / name for name in pair))
    missed = []
    for index, reason in enumerate(result.reasons):
        for name, value in reason.measures.items():
            if isinstance(value, str):
                continue
            changed = replace(reason, measures={**reason.measures, name: 2 * value + 10})
            reasons = (*result.reasons[:index], changed, *result.reasons[index + 1 :])
            if not list(contradictions_of_diffs(Diffs(result.a_name, (replace(result, reasons=reasons),)))):
                missed.append((reason.code, name))
    assert missed == []
