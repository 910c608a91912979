"""Peaks of accelerators by the names that traces give them."""

from __future__ import annotations

import pytest

from traceq.errors import UsageFault
from traceq.facts.roofline.peaks import overridden, peaks_of, unsure_cpu_peaks

DEVICES = [
    ("NVIDIA A100-SXM4-40GB", "A100 40GB", 312, 1555),
    ("A100-SXM4-40GB", "A100 40GB", 312, 1555),  # of drivers before 2021
    ("NVIDIA A100-PCIE-40GB", "A100 40GB", 312, 1555),
    ("NVIDIA A100-PG509-200", "A100 40GB", 312, 1555),
    ("NVIDIA A100-SXM4-80GB", "A100 80GB", 312, 2039),
    ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe", 312, 1935),
    ("NVIDIA A10", "A10", 125, 600),
    ("NVIDIA A10G", "A10G", 70, 600),
    ("NVIDIA A30", "A30", 165, 933),
    ("NVIDIA A40", "A40", 149.7, 696),
    ("NVIDIA L4", "L4", 121, 300),
    ("NVIDIA L40", "L40", 181, 864),
    ("NVIDIA L40S", "L40S", 362, 864),
    ("NVIDIA H100 80GB HBM3", "H100 SXM", 989.4, 3350),
    ("NVIDIA H100 PCIe", "H100 PCIe", 756, 2000),
    ("NVIDIA H100 NVL", "H100 NVL", 835.5, 3900),
    ("NVIDIA H200", "H200", 989.4, 4800),
    ("NVIDIA H200 NVL", "H200 NVL", 835.5, 4800),
    ("NVIDIA GH200 480GB", "GH200", 989.4, 4000),
    ("NVIDIA H20", "H20", 148, 4000),
    ("NVIDIA H800", "H800 SXM", 989.4, 3350),
    ("NVIDIA B200", "B200", 2250, 8000),
    ("NVIDIA GB200", "GB200", 2500, 8000),
    ("Tesla V100-SXM2-16GB", "V100 SXM2", 0, 900),
    ("Tesla V100-SXM2-32GB", "V100 SXM2", 0, 900),
    ("Tesla V100-PCIE-16GB", "V100 PCIe", 0, 900),
    ("Tesla V100S-PCIE-32GB", "V100S", 0, 1134),
    ("Tesla T4", "T4", 0, 320),
    ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2, 1008),
    ("NVIDIA GeForce RTX 5090", "RTX 5090", 209.5, 1792),
    ("NVIDIA RTX A6000", "RTX A6000", 154.8, 768),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 364.2, 960),
    ("AMD Instinct MI250X", "MI250X, one GCD", 191.5, 1600),
    ("AMD Instinct MI300A", "MI300A", 980.6, 5300),
    ("AMD Instinct MI300X", "MI300X", 1307.4, 5300),
    ("AMD Instinct MI300X VF", "MI300X", 1307.4, 5300),
    ("AMD Instinct MI325X", "MI325X", 1307.4, 6000),
    ("AMD Instinct MI355X", "MI355X", 2500, 8000),
]


@pytest.mark.parametrize(("device", "name", "bf16", "gbps"), DEVICES)
def test_a_device_has_the_peaks_of_its_own_model(device: str, name: str, bf16: float, gbps: float) -> None:
    peaks = peaks_of(device)
    assert peaks is not None
    assert (peaks.name, peaks.rate("bfloat16"), peaks.bandwidth) == (name, pytest.approx(bf16 * 1e12), gbps * 1e9)
    assert peaks.source


@pytest.mark.parametrize(
    "device",
    [
        *("cpu", "", "rocm", "accelerator", "NVIDIA Graphics Device"),
        *("NVIDIA A100", "NVIDIA H100"),  # of which memory, and in which form?
        *("NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "GRID A100-40C", "NVIDIA A100X", "NVIDIA A800"),
        *("NVIDIA H100 80GB HBM2e", "NVIDIA H800 PCIe", "NVIDIA H20-3e", "NVIDIA GH200 144G HBM3e", "NVIDIA B300"),
        *("Tesla V100-SXM3-32GB", "Tesla V100-DGXS-32GB", "Tesla V100-FHHL-16GB", "NVIDIA T400", "NVIDIA L20"),
        *("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA RTX A6000 Laptop GPU"),
        *("AMD Instinct MI250X / MI250", "AMD Instinct MI250", "AMD Instinct MI308X", "AMD Instinct MI350X"),
    ],
)
def test_a_device_that_only_resembles_a_known_one_has_no_peaks(device: str) -> None:
    assert peaks_of(device) is None


@pytest.mark.parametrize("device", [row[0] for row in DEVICES])
def test_fewer_bits_are_never_slower(device: str) -> None:
    peaks = peaks_of(device)
    assert peaks is not None
    rates = [peaks.rate(dtype) for dtype in ("float64", "float32", "tf32", "float16", "float8", "float4")]
    published = [rate for rate in rates if rate]
    assert len(published) >= 2
    assert published == sorted(published)


def test_the_flops_of_an_mi300_are_as_far_from_reach_as_amd_measured() -> None:
    peaks = peaks_of("AMD Instinct MI300X")
    assert peaks is not None
    assert peaks.reachable("compute") * peaks.rate("bfloat16") == pytest.approx(708e12, rel=0.01)
    assert peaks.reachable("memory") == 0.7


def test_flops_of_several_dtypes_take_the_sum_of_their_times() -> None:
    peaks = overridden(None, ["bf16=2", "fp32=1"])
    assert peaks is not None
    assert peaks.seconds({"bfloat16": 4e12, "float32": 3e12}) == 5
    assert peaks.seconds({"bfloat16": 199e10, "float8": 1e10}) == 0.995  # a two-hundredth of them without a peak
    assert peaks.seconds({"bfloat16": 2e12, "float8": 1e12}) is None
    assert peaks.seconds({}) == 0


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


def test_a_cpu_whose_measurements_disagree_has_no_peak() -> None:
    measured = {"cpu_peak_flops": 202 * 10**9, "cpu_peak_flops_least": 18 * 10**9, "cpu_peak_bandwidth": 2 * 10**10}
    assert peaks_of("cpu", measured) is None
    assert unsure_cpu_peaks(measured) == "18 to 202 GFLOP/s"
    agreeing = peaks_of("cpu", {**measured, "cpu_peak_flops_least": 180 * 10**9, "cpu_peak_bandwidth_least": 10**10})
    assert agreeing is not None
    assert (agreeing.rate("float32"), agreeing.bandwidth) == (202e9, 0.0)
