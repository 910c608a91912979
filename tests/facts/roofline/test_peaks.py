"""Peaks of accelerators by the names that traces give them."""

from __future__ import annotations

import pytest

from traceq.errors import UsageFault
from traceq.facts.roofline.peaks import overridden, peaks_of


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PG509-200", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X / MI250", "MI250X, one GCD"),
    ],
)
def test_a_device_is_recognised_by_its_name_in_a_trace(device: str, name: str) -> None:
    peaks = peaks_of(device)
    assert peaks is not None
    assert peaks.name == name
    assert peaks.source


@pytest.mark.parametrize(
    "device", ["cpu", "", "rocm", "accelerator", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA T400"]
)
def test_an_unknown_device_has_no_peaks(device: str) -> None:
    assert peaks_of(device) is None


def test_options_replace_single_figures_or_make_peaks_of_an_unknown_device() -> None:
    peaks = overridden(peaks_of("NVIDIA H100 80GB HBM3"), ["bf16=800", "memory=3 TB/s"])
    assert peaks is not None
    assert (peaks.rate("bfloat16"), peaks.rate("float8"), peaks.bandwidth) == (800e12, 1979e12, 3e12)
    alone = overridden(None, ["fp32=2.5", "memory=40"], "cpu")
    assert alone is not None
    assert (alone.name, alone.rate("float32"), alone.rate("tf32"), alone.bandwidth) == ("cpu", 2.5e12, 0.0, 40e9)
    assert overridden(None, []) is None


@pytest.mark.parametrize("setting", ["bf16", "bf17=3", "bf16=-3", "bf16=fast", "=3"])
def test_other_options_are_refused(setting: str) -> None:
    with pytest.raises(UsageFault, match="expected NAME=TFLOP/s"):
        overridden(None, [setting])


def test_a_cpu_has_the_peaks_that_its_recording_measured() -> None:
    peaks = peaks_of("cpu", {"cpu_peak_flops": 10**11, "cpu_peak_bandwidth": 2 * 10**10})
    assert peaks is not None
    assert (peaks.rate("float32"), peaks.rate("bfloat16"), peaks.bandwidth) == (1e11, 0.0, 2e10)
    assert peaks_of("cpu", {}) is None
    assert peaks_of("cpu") is None
