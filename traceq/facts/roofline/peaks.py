"""Peak rates of accelerators by name: dense FLOP/s by dtype and bytes per second of memory, each with its source.

Vendors print rates for sparse matrices in the same cell of a table: all here are dense. Rates are those of the boost
clock, as datasheets give them, so a share of a peak is a share of what the vendor promises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from traceq.errors import UsageFault

__all__ = ["Peaks", "overridden", "peaks_of", "replaced_peaks"]

_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of one device: `flops` FLOP/s by dtype, `bandwidth` bytes per second; `source` of the figures.

    `tf32` is the dtype of float32 operands that the device rounds to TensorFloat-32.
    """

    name: str
    source: str
    bandwidth: float
    flops: Mapping[str, float] = field(default_factory=dict)

    def rate(self, dtype: str) -> float:
        """Return the peak FLOP/s for operands of a dtype, 0.0 where it is not known."""
        return self.flops.get(dtype, 0.0)


def _peaks(name: str, source: str, gbps: float, **tflops: float) -> Peaks:
    """Return the peaks from GB/s and TFLOP/s; `half` stands for float16 and bfloat16."""
    half = tflops.pop("half", 0.0)
    rates = {**tflops, **({"float16": half, "bfloat16": half} if half else {})}
    return Peaks(name, source, gbps * _GIGA, {dtype: tera * _TERA for dtype, tera in rates.items()})


_TABLE: tuple[tuple[str, Peaks], ...] = (
    (
        r"A100.*80 ?GB",
        _peaks("A100 80GB", "NVIDIA A100 datasheet", 2039, half=312, tf32=156, float32=19.5, float64=19.5, int8=624),
    ),
    (
        r"A100|PG509",
        _peaks("A100 40GB", "NVIDIA A100 datasheet", 1555, half=312, tf32=156, float32=19.5, float64=19.5, int8=624),
    ),
    (
        r"GH200",
        _peaks(
            "GH200", "NVIDIA GH200 datasheet", 4000,
            half=989.5, tf32=494.7, float32=67, float64=67, float8=1979, int8=1979,
        ),
    ),
    (
        r"H200",
        _peaks(
            "H200", "NVIDIA H200 datasheet", 4800,
            half=989.5, tf32=494.7, float32=67, float64=67, float8=1979, int8=1979,
        ),
    ),
    (
        r"H100.*PCIe",
        _peaks(
            "H100 PCIe", "NVIDIA H100 datasheet", 2000,
            half=756, tf32=378, float32=51.2, float64=51.2, float8=1513, int8=1513,
        ),
    ),
    (
        r"H100|H800",
        _peaks(
            "H100 SXM", "NVIDIA H100 datasheet", 3350,
            half=989.4, tf32=494.7, float32=67, float64=67, float8=1979, int8=1979,
        ),
    ),
    (
        r"GB200|B200",
        _peaks(
            "B200", "NVIDIA DGX B200 datasheet", 8000,
            half=2250, tf32=1125, float32=80, float64=40, float8=4500, float4=9000, int8=4500,
        ),
    ),
    (r"V100", _peaks("V100 SXM2", "NVIDIA V100 datasheet", 900, float16=125, float32=15.7, float64=7.8)),
    (r"\bT4\b", _peaks("T4", "NVIDIA T4 datasheet", 320, float16=65, float32=8.1, int8=130)),
    (r"A10G", _peaks("A10G", "AWS EC2 G5, NVIDIA A10G", 600, half=70, tf32=35, float32=31.2, int8=140)),
    (r"L40S", _peaks("L40S", "NVIDIA L40S datasheet", 864, half=362, tf32=183, float32=91.6, float8=733, int8=733)),
    (r"\bL4\b", _peaks("L4", "NVIDIA L4 datasheet", 300, half=121, tf32=60, float32=30.3, float8=242, int8=242)),
    (
        r"RTX 4090(?!.*Laptop)",
        _peaks(
            "RTX 4090", "NVIDIA Ada architecture whitepaper", 1008,
            half=165.2, tf32=82.6, float32=82.6, float8=330, int8=661,
        ),
    ),
    (
        r"RTX 5090(?!.*Laptop)",
        _peaks(
            "RTX 5090", "NVIDIA Blackwell RTX whitepaper", 1792,
            half=209.5, tf32=105, float32=105, float8=419, int8=838,
        ),
    ),
    (
        r"MI250",
        _peaks("MI250X, one GCD", "AMD Instinct MI250X datasheet", 1600, half=191.5, float32=23.9, float64=23.9),
    ),
    (
        r"MI325X?",
        _peaks(
            "MI325X", "AMD Instinct MI325X datasheet", 6000,
            half=1307.4, tf32=653.7, float32=163.4, float64=163.4, float8=2614.9, int8=2614.9,
        ),
    ),
    (
        r"MI30[08]X?",
        _peaks(
            "MI300X", "AMD Instinct MI300X datasheet", 5300,
            half=1307.4, tf32=653.7, float32=163.4, float64=163.4, float8=2614.9, int8=2614.9,
        ),
    ),
    (
        r"MI355X?",
        _peaks(
            "MI355X", "AMD Instinct MI355X datasheet", 8000,
            half=2500, float32=157.3, float64=78.6, float8=5000, float4=10000, int8=5000,
        ),
    ),
    (r"TPU ?v4", _peaks("TPU v4", "Google Cloud TPU v4 documentation", 1228, bfloat16=275, int8=275)),
    (r"TPU ?v5 ?lite|TPU ?v5e", _peaks("TPU v5e", "Google Cloud TPU v5e documentation", 819, bfloat16=197, int8=393)),
    (r"TPU ?v5p?", _peaks("TPU v5p", "Google Cloud TPU v5p documentation", 2765, bfloat16=459, int8=918)),
)  # fmt: skip
"""What occurs in the name of a device, and its peaks; the first that occurs is meant."""

_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), peaks) for pattern, peaks in _TABLE)
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


_SETTINGS: ContextVar[tuple[str, ...]] = ContextVar("settings", default=())


def peaks_of(device: str, measured: Mapping[str, str | int | float] | None = None) -> Peaks | None:
    """Return the peaks of a device by the name that traces give it, with those of `replaced_peaks`.

    Of a CPU those that the environment of its recording has `measured`. None for any other device that is not in the
    table, without settings.
    """
    peaks = next((peaks for pattern, peaks in _COMPILED if pattern.search(device)), None)
    if device == "cpu" and measured is not None:
        flops, bandwidth = (measured.get(key) for key in ("cpu_peak_flops", "cpu_peak_bandwidth"))
        if isinstance(flops, int | float) and isinstance(bandwidth, int | float) and flops > 0 and bandwidth > 0:
            peaks = Peaks("this CPU, as measured", "measured by the recording", bandwidth, {"float32": flops})
    return overridden(peaks, _SETTINGS.get(), device)


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
        scale = {"g": _GIGA, "t": _TERA, "p": 1e15}[(value["prefix"] or ("G" if is_memory else "T")).lower()]
        number = float(value["number"]) * scale
        if is_memory:
            bandwidth = number
        else:
            flops[_DTYPES.get(key, key)] = number
    name = peaks.name if peaks else device
    base = peaks or Peaks(name, "", 0.0)
    return replace(base, source=", ".join(filter(None, (base.source, "--peak"))), bandwidth=bandwidth, flops=flops)
