"""Peak rates of accelerators by name: dense FLOP/s by dtype and bytes per second of memory, each with its source.

Vendors print rates for sparse matrices in the same cell of a table: all here are dense. Rates are those of the boost
clock, as datasheets give them, so a share of a peak is a share of what the vendor promises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace

from traceq.errors import UsageFault
from traceq.facts.sentences import CPU_PEAKS
from traceq.frozen import frozen
from traceq.units import Unit, format_value

_TUNED = 0.7
_TUNED_PRODUCTS = {"MI300A": 0.54, "MI300X": 0.54, "MI325X": 0.54}
"""By AMD's own measurement of what is achievable, 708 of the 1,307 TFLOP/s of an MI300X in bfloat16 (ROCm blogs)."""
_SMALL_FLOPS = 0.01
"""Part of the FLOPs that may have a dtype without a peak."""


@frozen
class Peaks:
    """Peak rates of one device: `flops` FLOP/s by dtype, `bandwidth` bytes per second; `source` of the figures.

    `tf32` is the dtype of float32 operands that the device rounds to TensorFloat-32. `tuned` is the share of its FLOP/s
    that large products of the vendor's own library reach, which a clock limited by power keeps below the peak. `link`
    is what copies to and from the host reach in bytes per second, 0.0 where not known.
    """

    name: str
    source: str
    bandwidth: float
    flops: Mapping[str, float] = field(default_factory=dict)
    tuned: float = _TUNED
    link: float = 0.0

    def reachable(self, roof: str) -> float:
        """Return the share of the roof `compute` or `memory` that well-tuned kernels reach."""
        return self.tuned if roof == "compute" else _TUNED

    def rate(self, dtype: str) -> float:
        """Return the peak FLOP/s for operands of a dtype, 0.0 where it is not known."""
        return self.flops.get(dtype, 0.0)

    def seconds(self, flops: Mapping[str, float]) -> float | None:
        """Return how long FLOPs, by dtype, take at their peaks; None where more than 1 % of them have no peak."""
        unknown = sum(amount for dtype, amount in flops.items() if not self.rate(dtype))
        if unknown > _SMALL_FLOPS * sum(flops.values()):
            return None
        return sum(amount / self.rate(dtype) for dtype, amount in flops.items() if self.rate(dtype))


def _rates(half: float = 0.0, **tflops: float) -> Mapping[str, float]:
    """Return FLOP/s by dtype from TFLOP/s; `half` stands for float16 and bfloat16."""
    halves = {"float16": half, "bfloat16": half} if half else {}
    return {dtype: rate * 1e12 for dtype, rate in {**tflops, **halves}.items()}


_A100 = _rates(half=312, tf32=156, float32=19.5, float64=19.5, int8=624)
_H100_SXM = _rates(half=989.4, tf32=494.7, float32=67, float64=67, float8=1979, int8=1979)
_H100_NVL = _rates(half=835.5, tf32=417.5, float32=60, float64=60, float8=1670.5, int8=1670.5)
_H100_PCIE = _rates(half=756, tf32=378, float32=51.2, float64=51.2, float8=1513, int8=1513)
_H800 = {dtype: rate for dtype, rate in _H100_SXM.items() if dtype != "float64"}  # of which it has 1 TFLOP/s
_H20 = _rates(half=148, tf32=74, float32=44, float8=296, int8=296)
_B200 = _rates(half=2250, tf32=1125, float32=75, float64=37, float8=4500, float4=9000, int8=4500)
_GB200 = _rates(half=2500, tf32=1250, float32=80, float64=40, float8=5000, float4=10000, int8=5000)
_V100_SXM2 = _rates(float16=125, float32=15.7, float64=7.8)
_V100_PCIE = _rates(float16=112, float32=14, float64=7)
_V100S = _rates(float16=130, float32=16.4, float64=8.2)
_T4 = _rates(float16=65, float32=8.1, int8=130)
_A10 = _rates(half=125, tf32=62.5, float32=31.2, int8=250)
_A10G = _rates(half=70, tf32=35, int8=140)
_A30 = _rates(half=165, tf32=82, float32=10.3, float64=10.3, int8=330)
_A40 = _rates(half=149.7, tf32=74.8, float32=37.4, int8=299.3)
_L4 = _rates(half=121, tf32=60, float32=30.3, float8=242, int8=242)
_L40 = _rates(half=181, tf32=90.5, float32=90.5, float8=362, int8=362)
_L40S = _rates(half=362, tf32=183, float32=91.6, float8=733, int8=733)
_RTX_A6000 = _rates(half=154.8, tf32=77.4, float32=38.7, int8=309.7)
_RTX_6000_ADA = _rates(half=364.2, tf32=182.1, float32=91.1, float8=728.5, int8=728.5)
_RTX_4090 = _rates(half=165.2, tf32=82.6, float32=82.6, float8=330, int8=661)
_RTX_5090 = _rates(half=209.5, tf32=105, float32=105, float8=419, int8=838)
_MI250X = _rates(half=191.5, float32=47.85, float64=47.85, int8=191.5)
_MI300A = _rates(half=980.6, tf32=490.3, float32=122.6, float64=122.6, float8=1961.2, int8=1961.2)
_MI300X = _rates(half=1307.4, tf32=653.7, float32=163.4, float64=163.4, float8=2614.9, int8=2614.9)
_MI355X = _rates(half=2500, float32=157.3, float64=78.6, float8=5000, float4=10000, int8=5000)
_TPU_V4 = _rates(bfloat16=275, int8=275)
_TPU_V5E = _rates(bfloat16=197, int8=393)
_TPU_V5P = _rates(bfloat16=459, int8=918)

_PCIE = {3: 12.5 * 1e9, 4: 25 * 1e9, 5: 52 * 1e9}
"""Bytes per second that large copies from pinned memory reach over 16 lanes: four fifths of what the lanes carry."""

_TABLE = (
    ("A100-SXM4-40GB|A100-PCIE-40GB|A100-PG509-200", "A100 40GB", "NVIDIA A100 datasheet", 1555, 4, _A100),
    ("A100-SXM4-80GB", "A100 80GB", "NVIDIA A100 datasheet", 2039, 4, _A100),
    ("A100 80GB PCIe", "A100 80GB PCIe", "NVIDIA A100 datasheet", 1935, 4, _A100),
    ("H100 80GB HBM3", "H100 SXM", "NVIDIA H100 datasheet", 3350, 5, _H100_SXM),
    ("H100 NVL", "H100 NVL", "NVIDIA H100 datasheet", 3900, 5, _H100_NVL),
    ("H100 PCIe", "H100 PCIe", "NVIDIA H100 datasheet", 2000, 5, _H100_PCIE),
    ("H200", "H200", "NVIDIA H200 datasheet", 4800, 5, _H100_SXM),
    ("H200 NVL", "H200 NVL", "NVIDIA H200 datasheet", 4800, 5, _H100_NVL),
    ("GH200 480GB", "GH200", "NVIDIA GH200 datasheet", 4000, 0, _H100_SXM),  # the 480 GB are the CPU's
    ("H800", "H800 SXM", "NVIDIA H800 datasheet", 3350, 5, _H800),
    ("H20", "H20", "NVIDIA H20 datasheet", 4000, 5, _H20),
    ("B200", "B200", "NVIDIA DGX B200 and HGX B200 datasheets", 8000, 5, _B200),
    ("GB200", "GB200", "NVIDIA GB200 NVL72 datasheet, one GPU", 8000, 0, _GB200),
    ("V100-SXM2-16GB|V100-SXM2-32GB", "V100 SXM2", "NVIDIA V100 datasheet", 900, 3, _V100_SXM2),
    ("V100-PCIE-16GB|V100-PCIE-32GB", "V100 PCIe", "NVIDIA V100 datasheet", 900, 3, _V100_PCIE),
    ("V100S-PCIE-32GB", "V100S", "NVIDIA V100 datasheet", 1134, 3, _V100S),
    ("T4", "T4", "NVIDIA Turing architecture whitepaper", 320, 3, _T4),
    ("A10", "A10", "NVIDIA A10 datasheet", 600, 4, _A10),
    ("A10G", "A10G", "AWS EC2 G5, NVIDIA A10G", 600, 4, _A10G),  # its float32 rate: publications differ
    ("A30", "A30", "NVIDIA A30 datasheet", 933, 4, _A30),
    ("A40", "A40", "NVIDIA A40 datasheet", 696, 4, _A40),
    ("L4", "L4", "NVIDIA L4 datasheet", 300, 4, _L4),
    ("L40", "L40", "NVIDIA L40 datasheet", 864, 4, _L40),
    ("L40S", "L40S", "NVIDIA L40S datasheet", 864, 4, _L40S),
    ("RTX A6000", "RTX A6000", "NVIDIA Ampere GA102 architecture whitepaper", 768, 4, _RTX_A6000),
    ("RTX 6000 Ada Generation", "RTX 6000 Ada", "NVIDIA Ada architecture whitepaper", 960, 4, _RTX_6000_ADA),
    ("RTX 4090", "RTX 4090", "NVIDIA Ada architecture whitepaper", 1008, 4, _RTX_4090),
    ("RTX 5090", "RTX 5090", "NVIDIA Blackwell RTX whitepaper", 1792, 5, _RTX_5090),
    ("MI250X", "MI250X, one GCD", "AMD Instinct MI250X datasheet", 1600, 4, _MI250X),
    ("MI300A", "MI300A", "AMD Instinct MI300A datasheet", 5300, 0, _MI300A),
    ("MI300X", "MI300X", "AMD Instinct MI300X datasheet", 5300, 5, _MI300X),
    ("MI325X", "MI325X", "AMD Instinct MI325X datasheet", 6000, 5, _MI300X),
    ("MI355X", "MI355X", "AMD Instinct MI355X datasheet", 8000, 5, _MI355X),
    ("TPU v4", "TPU v4", "Google Cloud TPU v4 documentation", 1228, 0, _TPU_V4),
    ("TPU v5 lite|TPU v5e", "TPU v5e", "Google Cloud TPU v5e documentation", 819, 0, _TPU_V5E),
    ("TPU v5|TPU v5p", "TPU v5p", "Google Cloud TPU v5p documentation", 2765, 0, _TPU_V5P),
)
"""Names that traces give a device, without its maker; ours; the source; GB/s; generation of PCIe; FLOP/s by dtype.

A generation of 0 stands for another link to the host. Names are matched as a whole: a letter more is another part (RTX
4090 D, H20-3e, MI300A, a MIG slice), with other peaks.
"""

_PEAKS = {
    device.lower(): Peaks(name, source, gbps * 1e9, rates, _TUNED_PRODUCTS.get(name, _TUNED), _PCIE.get(pcie, 0.0))
    for devices, name, source, gbps, pcie, rates in _TABLE
    for device in devices.split("|")
}
_BESIDE_MODEL = re.compile(r"^((NVIDIA|Tesla|GeForce|AMD|Instinct) )+| VF$", re.IGNORECASE)  # VF: a virtual machine's
_DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "fp4": "float4",
}
_NAMES = (*_DTYPES, "tf32", "int8")
_BANDWIDTH = ("memory", "hbm", "bandwidth")
_VALUE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[GTP])?(?:FLOPS?|OPS?|B)?(?:/s)?", re.IGNORECASE)


_CPU_SPREAD = 1.25
"""Ratio of two measurements of one rate from which neither is a peak."""

_SETTINGS: ContextVar[tuple[str, ...]] = ContextVar("settings", default=())


def peaks_of(device: str, measured: Mapping[str, str | int | float] | None = None) -> Peaks | None:
    """Return the peaks of a device by the name that traces give it, with those of `replaced_peaks`.

    Of a CPU those that the environment of its recording has `measured`, as far as its measurements agree. None for any
    other device that is not in the table, without settings.
    """
    peaks = _PEAKS.get(_BESIDE_MODEL.sub("", device.strip()).lower())
    if device == "cpu" and measured is not None:
        flops, bandwidth = (_measured_peak(measured, key) for key in ("cpu_peak_flops", "cpu_peak_bandwidth"))
        if flops:
            peaks = Peaks(*CPU_PEAKS, bandwidth, {"float32": flops})
    return overridden(peaks, _SETTINGS.get(), device)


def unsure_cpu_peaks(measured: Mapping[str, str | int | float]) -> str:
    """Return `18.2 to 202 GFLOP/s` where measurements of the FLOP/s of a CPU disagree; "" where they do not."""
    least, most = _cpu_peak_range(measured, "cpu_peak_flops")
    if most <= _CPU_SPREAD * least:
        return ""
    return f"{format_value(least / 1e9, Unit.NUMBER)} to {format_value(most / 1e9, Unit.NUMBER)} GFLOP/s"


def _measured_peak(measured: Mapping[str, str | int | float], key: str) -> float:
    """Return the highest measurement of a CPU; 0.0 where it has none, or they disagree."""
    least, most = _cpu_peak_range(measured, key)
    return most if most <= _CPU_SPREAD * least else 0.0


def _cpu_peak_range(measured: Mapping[str, str | int | float], key: str) -> tuple[float, float]:
    """Return the lowest and the highest of several measurements, 0.0 without any; older recordings have one."""
    most = measured.get(key)
    if not isinstance(most, int | float) or most <= 0:
        return 0.0, 0.0
    least = measured.get(f"{key}_least", most)
    return (float(least) if isinstance(least, int | float) else float(most)), float(most)


@contextmanager
def replaced_peaks(settings: Sequence[str]) -> Iterator[None]:
    """Replace figures of the table meanwhile, as `--peak` gives them. Raises UsageFault."""
    overridden(None, settings)
    token = _SETTINGS.set(tuple(settings))
    try:
        yield
    finally:
        _SETTINGS.reset(token)


def overridden(peaks: Peaks | None, settings: Sequence[str], device: str = "") -> Peaks | None:
    """Return the peaks with those of `settings` instead of the table's: `bf16=989.4` TFLOP/s, `memory=3350` GB/s.

    Raises UsageFault for anything else.
    """
    if not settings:
        return peaks
    flops, bandwidth = dict(peaks.flops) if peaks else {}, peaks.bandwidth if peaks else 0.0
    for setting in settings:
        key, _, text = setting.partition("=")
        key, value = key.strip().lower(), _VALUE.fullmatch(text.strip())
        if value is None or (key not in _NAMES and key not in _BANDWIDTH):
            names = ", ".join(_NAMES)
            raise UsageFault(f"--peak {setting}: expected NAME=TFLOP/s or memory=GB/s, with NAME one of {names}")
        is_memory = key in _BANDWIDTH
        scale = {"g": 1e9, "t": 1e12, "p": 1e15}[(value["prefix"] or ("G" if is_memory else "T")).lower()]
        number = float(value["number"]) * scale
        if is_memory:
            bandwidth = number
        else:
            flops[_DTYPES.get(key, key)] = number
    name = peaks.name if peaks else device
    base = peaks or Peaks(name, "", 0.0)
    return replace(base, source=", ".join(filter(None, (base.source, "--peak"))), bandwidth=bandwidth, flops=flops)
