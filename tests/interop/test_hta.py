"""HTA's TraceAnalysis filled by traceq is the one that HTA's parser fills."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builder import kernel, launch, step, text, world
from paths import ROOT, TESTS, TRACES

from traceq.errors import UnreadableInput
from traceq.interop import hta
from traceq.kineto import reader_choice

needs_hta = pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="no hta: pip install traceinsight")
needs_traces = pytest.mark.skipif(not TRACES.exists(), reason=f"no {TRACES}")
needs_native = pytest.mark.skipif(bool(reader_choice.MISSING), reason=f"no native reader: {reader_choice.MISSING}")


def compare(*jobs: dict[int, Path], folder: Path | None = None, **variables: str) -> list[Any]:
    """Both parsers for traces by rank; with a folder to write to, also the results of all methods.

    Strings have one hash: HTA orders columns by sets of names, and its critical path fails by that order.
    """
    words = [json.dumps({rank: str(path) for rank, path in job.items()}) for job in jobs]
    program = [sys.executable, str(TESTS / "support" / "hta_methods.py"), str(folder or "-"), *words]
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "3"} | variables,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


# ---- real traces

JOBS = {
    "cuda-sync/alexnet": 1,
    "dlrm-v100-8r": 8,
    "resnet50-2021/workers0": 1,
    "inference/vllm-piecewise-mi300": 1,
    "nanogpt-h100-8r/rank0": 1,
    "ddp-a100/rank0": 1,
}
"""Traces and jobs, with their ranks."""

NO_STRAGGLERS = {"get_potential_stragglers": "ValueError"}
UNLINKED = {"get_frequent_cuda_kernel_sequences": "ValueError"}
NO_PATH = dict.fromkeys(("critical_path_analysis", "overlay_critical_path_analysis"), "AssertionError")
FAILURES = {
    "cuda-sync/alexnet": NO_STRAGGLERS,
    "dlrm-v100-8r": {},
    "resnet50-2021/workers0": NO_STRAGGLERS | NO_PATH | {"get_frequent_cuda_kernel_sequences": "TypeError"},
    "inference/vllm-piecewise-mi300": NO_STRAGGLERS | UNLINKED | {"get_aten_op_kernels_and_delay": "KeyError"},
    "nanogpt-h100-8r/rank0": NO_STRAGGLERS | UNLINKED | {"get_gpu_kernels_with_user_annotations": "ValueError"},
    "ddp-a100/rank0": NO_STRAGGLERS | UNLINKED,
}
"""What HTA cannot answer for these traces, whoever parsed them, and what it raises."""


@needs_hta
@needs_native
@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_every_public_method_has_the_same_result_as_after_the_parse_of_hta(name: str, tmp_path: Path) -> None:
    files = {rank: TRACES / f"{name}/rank{rank}.json.gz" for rank in range(JOBS[name])}
    files = files if JOBS[name] > 1 else {0: TRACES / f"{name}.json.gz"}
    links = {rank: tmp_path / f"rank{rank}.json.gz" for rank in files}  # HTA writes traces beside those it read
    for rank, link in links.items():
        link.symlink_to(files[rank])
    [result] = compare(links, folder=tmp_path)
    failures = {method: fault.split(":")[0] for method, fault in result["failures"].items()}
    assert (result["differences"], failures) == ({}, FAILURES[name])
    assert (result["left"], result["not_asked"]) == (0, [])


CANNOT_LOAD = {"resnet-ddp-mi300/rank0", "inference/vllm-piecewise-mi300-capture"}
"""pandas refuses to put numbers of rows into HTA's column of correlations, which is int16 there."""


@pytest.mark.slow
@needs_hta
@needs_native
@needs_traces
@pytest.mark.parametrize("folder", sorted(path.name for path in TRACES.glob("*/")))
def test_what_is_loaded_of_real_traces_is_what_hta_loads(folder: str) -> None:
    """Frames with all columns, types and numbers of rows, symbols, metadata; of ranks that are alike the first one."""
    files = [path for path in sorted((TRACES / folder).rglob("*.json.gz")) if not re.match(r"rank[1-7]\.", path.name)]
    names = [path.relative_to(TRACES).as_posix().removesuffix(".json.gz") for path in files]
    for name, result in zip(names, compare(*({0: file} for file in files)), strict=True):
        is_array = name == "resnet50-2021/bare-array"  # HTA wants an object
        assert result["differences"] == ({"load": "HTA cannot, traceq can"} if name in CANNOT_LOAD else {}), name
        assert ("load" in result["failures"], result["left"]) == (is_array or name in CANNOT_LOAD, is_array), name


# ---- made traces

NAMES = [
    "aten::mm",
    "gemm<4>",
    "ünï→code",
    'a "quote" \\ and\ttab',
    "ProfilerStep#3",
    "ProfilerStep#4",
    "Event Sync",
    "",
]
CATEGORIES = ["cpu_op", "kernel", "cuda_runtime", "user_annotation", "Trace"]
NUMBERS = [0, 7, -1, 2**31, 10**17, 2**63, 2**64 - 1, 0.5, 1e-7, 1e300, -0.0]
VALUES = [*NUMBERS, True, None, "8", "text", [], [1, [2, "x"]], {"k": 1}]
ARGUMENTS = ("External id", "bytes", "memory bandwidth (GB/s)", "Input Dims", "Input type", "Python id", "dtype")


def made_trace(dice: random.Random) -> bytes:
    """A trace of any values that JSON has, under the keys that HTA reads; times are written in one of several ways."""
    rare, odd = dice.choice([0, 0.02]), dice.choice([0, 0.3])
    origin, unit = dice.choice([0, 4458677009853, 1700000000000000]), dice.choice([1, 0.001, 0.125, 0.0001])

    def event(number: int) -> dict[str, Any]:
        result = {"ph": dice.choice("XXXMfi"), "name": dice.choice(NAMES), "pid": dice.choice([0, 40]), "tid": 7}
        result["ts"] = origin + dice.randrange(1000) * unit
        if result["ph"] == "X":
            result |= {"cat": dice.choice(CATEGORIES), "dur": dice.randrange(90) * unit}
        if dice.random() < odd:
            result[dice.choice(["pid", "tid"])] = dice.choice([None, "stream 7", 5, 1.5])
        if dice.random() < rare:
            result[dice.choice(["ts", "dur", "cat", "name", "pid", "extra"])] = dice.choice(VALUES)
        args = {key: dice.choice(VALUES) for key in ARGUMENTS if dice.random() < odd}
        args |= {"correlation": number // 2, "stream": dice.choice([0, 7])} if dice.random() < 0.6 else {}
        if dice.random() < rare:
            args["stream"] = dice.choice(VALUES)
        return result | dice.choice([{"args": args}] * 9 + [{}, {"args": None}])

    events = [event(number) for number in range(dice.randrange(1, 40))]
    whole = {"distributedInfo": {"rank": 0, "backend": "nccl"}, "traceEvents": events, "traceName": "é"}
    return json.dumps(whole, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, 2])).encode()


@needs_hta
@needs_native
@pytest.mark.slow
def test_any_values_are_loaded_as_hta_loads_them(tmp_path: Path) -> None:
    files = [tmp_path / f"{seed}.json" for seed in range(200)]
    for seed, file in enumerate(files):
        file.write_bytes(made_trace(random.Random(seed)))
    results = compare(*({0: file} for file in files))
    assert {seed: result["differences"] for seed, result in enumerate(results) if result["differences"]} == {}
    assert sum(not result["left"] and not result["failures"] for result in results) > 150


STEPS = [step(100 * number, 90, number) for number in range(3)]
LAUNCHES = [launch(100 * number + 5, 2, corr=number + 1) for number in range(3)]
KERNELS = [kernel("gemm", 100 * number + 40, 30, corr=number + 1) for number in range(3)]
WHOLE = text(*STEPS, *LAUNCHES, *KERNELS, **world(0, 2))


@pytest.mark.slow
@needs_hta
@pytest.mark.parametrize(
    "content",
    [
        WHOLE.replace(b'"gemm"', b"NaN", 1),  # no JSON, but Python reads it
        WHOLE.replace(b'"stream":7', b'"stream":1e1', 1),
        WHOLE.replace(b'"ts"', b'"t\\u0073"', 1),
        WHOLE[:-20],
        b'{"traceEvents":[]}',
        b'{"displayTimeUnit":"ms"}',
    ],
    ids=["NaN", "exponent", "escaped key", "cut off", "no events", "no list"],
)
def test_what_traceq_does_not_read_in_the_way_of_hta_hta_reads(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    [result] = compare({0: file})
    assert result["differences"] == {}


@pytest.mark.slow
@needs_hta
def test_without_the_native_reader_hta_parses(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(WHOLE)
    [result] = compare({0: file}, TRACEQ_READER="python")
    assert (result["differences"], result["left"]) == ({}, 1)


EXAMPLES = r"""
import doctest, pathlib, re, sys, warnings
warnings.simplefilter("ignore")
blocks = re.findall(r"```pycon\n(.*?)```", pathlib.Path("docs/hta.md").read_text(), flags=re.DOTALL)
test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "hta.md", "hta.md", 0)
sys.exit(doctest.DocTestRunner().run(test).failed or not test.examples)
"""


@pytest.mark.slow
@needs_hta
def test_the_example_of_the_page_prints_what_it_says() -> None:
    done = subprocess.run([sys.executable, "-c", EXAMPLES], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


OTHER_VERSION = """
import logging
import sys
import warnings
from traceq.interop.hta import analysis, loading
logging.disable(50)
loading.version = lambda _: "0.7.0"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    kind = type(analysis(sys.argv[1]).t).__name__
print(kind, [str(each.message) for each in caught if "HTA" in str(each.message)])
"""


@pytest.mark.slow
@needs_hta
def test_a_version_that_was_not_compared_parses_by_itself(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(WHOLE)
    program = f"import sys; sys.argv[1:] = [{str(tmp_path / 'trace.json')!r}]\n{OTHER_VERSION}"
    done = python(program)
    assert re.search(r"^Trace \['HTA 0\.7\.0 .* 0\.6\.\*'\]\n\Z", done.stdout, re.MULTILINE), done.stderr


# ---- paths

RANKS = (
    "import logging; logging.disable(50); from traceq.interop.hta import analysis; print(list(analysis({!r}).t.traces))"
)


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=path)


@pytest.mark.slow
@needs_hta
def test_ranks_of_a_folder_are_those_of_the_metadata_or_of_the_names(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(text(*STEPS, *LAUNCHES, *KERNELS, **world(1, 3)))
    (tmp_path / "rank2.json.gz").write_bytes(gzip.compress(text(*STEPS, *LAUNCHES, *KERNELS)))
    done = python(RANKS.format(str(tmp_path)))
    assert done.stdout.splitlines()[-1] == "[1, 2]", done.stderr


@needs_hta
@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ((), r"no trace files; .* \*\.json\.gz"),
        (("a.json", "b.json"), r"b\.json: .* rank 0, like a\.json; "),
        (("a.json.zst",), r"a\.json\.zst: HTA .* \*\.json\.gz"),
    ],
)
def test_a_folder_that_is_no_job_is_refused(files: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(WHOLE)
    with pytest.raises(UnreadableInput, match=fault):
        hta.files_by_rank(tmp_path)


@pytest.mark.slow
def test_without_hta_it_says_what_to_install_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "hta").mkdir()
    (tmp_path / "hta" / "__init__.py").write_text("raise ImportError('a broken install')")
    program = "import sys; from traceq.interop.hta import analysis; assert not {'pandas', 'hta'} & set(sys.modules); "
    done = python(f"{program} analysis('trace.json')", PYTHONPATH=f"{tmp_path}:{ROOT}")
    fault = done.stderr.splitlines()[-1]
    assert fault.startswith("traceq.errors.TraceqError: ")
    assert fault.endswith("broken install): pip install 'traceq-torch[hta]'")
