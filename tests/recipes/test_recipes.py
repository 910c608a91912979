"""Each recipe on two CPU ranks shows what it says it shows. `make recipes`; one of them is in `make slow`."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from builder import table
from recording import Started, start

from traceq.analysis.loader import loader_of
from traceq.analysis.registry import analyze
from traceq.compare.diff import diff_run, diff_runs
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track
from traceq.model import BUILT_APART, Category, Run
from traceq.runs.read import read
from traceq.runs.run_folder import read_manifest

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("accelerate", reason="the recipes gather metrics through accelerate")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

PHASES = ("dataload_wait", "forward", "bwd", "unscale_clip", "optim_step", "zero_grad_sched", "sync_gather")
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
LATE_NS = 50_000_000
HOOK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
REGION = "Torch-Compiled Region"
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"


def started(folder: Path, name: str, *options: str) -> Started:
    """A recording of the recipe with the least number of timed steps and two traced ones an arm."""
    return start(folder, "--ranks", "2", "--steps", "2", "--trace-steps", "2", *options, recipe=name)


def recorded(folder: Path, name: str, *options: str, seconds: float = 180) -> Path:
    """The run of such a recording, which takes so long at most: a recipe's own limit, on busy cores, too."""
    done = started(folder, name, *options).finish(seconds)
    assert done.code == 0, done.stderr
    assert facts_without_value(done.out) == []
    return done.out


def facts_without_value(out: Path) -> list[str]:
    """The keys of facts that the recipe declares, and measured of no arm."""
    manifest = read_manifest(out)
    arms = [None, *manifest.arms]
    return [fact.key for fact in manifest.facts if all(manifest.fact(fact.key, arm) is None for arm in arms)]


def profile(run: Run) -> dict[str, Any]:
    """`step_profile` as the JSON has it."""
    profiled = analyze(run, "step_profile").tables[0]
    parts = {part.key: dict(part.rows) for part in profiled.parts}
    return dict(zip((column.key for column in profiled.columns), profiled.rows[0], strict=True)) | parts


def syncs(run: Run, phase: str) -> int:
    """Scalar syncs of rank 0 in a phase of all traced steps."""
    return sum(row["num"] for row in table(run, "syncs") if (row["rank"], row["phase"]) == (0, phase))


def collectives(run: Run, phase: str) -> Counter[str]:
    """Collectives of rank 0 in a phase of all traced steps."""
    rows = [row for row in table(run, "collectives") if (row["rank"], row["phase"]) == (0, phase)]
    return Counter({name: sum(row["num"] for row in rows if row["name"] == name) for name in {r["name"] for r in rows}})


def ops(run: Run, phase: str) -> Counter[str]:
    """Host ops and annotations of rank 0 on the main thread in a phase of all traced steps, those inside others too."""
    (trace,) = [trace for trace in run.traces if trace.rank == 0]
    events = trace.events
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION)
    names = phases(trace).names
    within = phases(trace).main_phase_at(events.ts[rows]) == names.index(phase)
    on_main = tracks(trace)[rows] == main_track(trace)
    return Counter(events.text(row) for row in rows[within & on_main])


def test_metrics_fetched_every_second_step_sync_half_as_often_and_sums_gather_once(tmp_path: Path) -> None:
    out = recorded(tmp_path, "metrics_sync_ab", "--set", "every=2", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("every", "every_kth", "summed")}
    assert {arm: syncs(run, "sync_gather") for arm, run in arms.items()} == {"every": 10, "every_kth": 5, "summed": 0}
    gathers = {arm: collectives(run, "sync_gather") for arm, run in arms.items()}
    assert gathers == {"every": {"all_gather": 10}, "every_kth": {"all_gather": 5}, "summed": {"all_gather": 1}}


@pytest.mark.recipes
def test_the_check_is_compared_beside_the_metrics_and_without_them(tmp_path: Path) -> None:
    out = recorded(tmp_path, "outlier_ab", "--set", "batch_size=1", "--set", "check_every=2")
    arms = {arm: read(out / arm) for arm in ("off", "on", "deferred", "off_alone", "on_alone", "deferred_alone")}
    num_syncs = {arm: (syncs(run, "forward"), syncs(run, "sync_gather")) for arm, run in arms.items()}
    beside = {"off": (0, 10), "on": (2, 10), "deferred": (1, 10)}
    assert num_syncs == beside | {f"{arm}_alone": (num, 0) for arm, (num, _) in beside.items()}
    assert {arm: collectives(run, "sync_gather")["all_gather"] for arm, run in arms.items() if "alone" in arm} == {
        "off_alone": 0,
        "on_alone": 0,
        "deferred_alone": 0,
    }
    diffs = diff_run(out)
    assert {diff.b_name: diff.a_name for diff in diffs.diffs} == {
        "on": "off",
        "deferred": "off",
        "off_alone": "off",
        "on_alone": "off_alone",
        "deferred_alone": "off_alone",
    }
    assert [(one.repeats, one.arm) for one in diffs.interactions] == [
        ("on", "on_alone"),
        ("deferred", "deferred_alone"),
    ]
    costs = {diff.b_name: diff.comparison.delta_ns for diff in diffs.diffs if diff.comparison}
    assert diffs.interactions[0].interaction.delta_ns == costs["on_alone"] - costs["on"]


@pytest.mark.recipes
def test_fused_adamw_launches_fewer_ops_and_leaves_the_overflow_flag_on_the_device(tmp_path: Path) -> None:
    out = recorded(tmp_path, "fused_adamw_ab", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("foreach", "fused", "loop")}
    assert {arm: syncs(run, "optim_step") for arm, run in arms.items()} == {"foreach": 2, "fused": 0, "loop": 2}
    fused, foreach, loop = (ops(arms[arm], "optim_step") for arm in ("fused", "foreach", "loop"))
    assert (fused["aten::_fused_adamw_"], foreach["aten::_fused_adamw_"]) == (2, 0)
    assert 3 * fused.total() < min(foreach.total(), loop.total())  # on a CPU foreach falls back to tensor by tensor
    assert [any(name.startswith("aten::_foreach_") for name in names) for names in (foreach, loop)] == [True, False]


@pytest.mark.recipes
def test_checkpointing_keeps_less_and_computes_every_block_again(tmp_path: Path) -> None:
    out = recorded(tmp_path, "checkpoint_ab", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("off", "on", "on_larger")}
    again = {arm: ops(run, "bwd")["aten::gelu"] for arm, run in arms.items()}
    num_blocks = ops(arms["off"], "forward")["aten::gelu"]
    assert again == {"off": 0, "on": num_blocks, "on_larger": num_blocks}
    manifest = arms["off"].manifest
    assert manifest is not None
    assert [arm.samples_per_step for arm in manifest.arms] == [2, 2, 4]
    held = {arm: int(manifest.environment[f"held_bytes.{arm}"]) for arm in arms}
    assert 3 * held["on"] < held["off"]
    assert held["on"] < held["on_larger"] < held["off"]
    compared = diff_runs(arms["off"], arms["on_larger"]).comparison
    assert compared is not None
    assert compared.samples == (2, 4)


@pytest.mark.recipes
def test_unused_parameters_are_listed_by_module_and_searching_reduces_a_map_a_step(tmp_path: Path) -> None:
    done = started(tmp_path, "unused_params", "--set", "batch_size=1").finish()
    assert done.code == 0, done.stderr
    assert facts_without_value(done.out) == []
    lines = [" ".join(line.split()) for line in done.stderr.splitlines()]
    assert lines[1].startswith("UNUSED 2 tensors, 210 parameters: ")
    assert lines[2] == "auxiliary: 2 tensors, 210 parameters: weight [14, 14], bias [14]"
    assert lines[3].startswith("ZERO-GRAD 2 tensors, 210 parameters: ")
    assert lines[4] == "gated: 2 tensors, 210 parameters: weight [14, 14], bias [14]"
    assert lines[5].startswith("FROZEN 33 tensors, ")
    assert any(line.startswith("USED ") for line in lines)
    arms = {arm: read(done.out / arm) for arm in ("off", "on")}
    reduced = {arm: collectives(run, "bwd")["all_reduce"] for arm, run in arms.items()}
    assert reduced["on"] == reduced["off"] + 2
    manifest = arms["on"].manifest
    assert manifest is not None
    assert manifest.environment[BUILT_APART] == "off on"
    searches = {arm: ops(run, "forward")[SEARCH] for arm, run in arms.items()}
    assert searches == {"off": 0, "on": 2}


@pytest.mark.recipes
def test_agreeing_one_by_one_costs_a_sync_and_a_collective_a_question_and_together_one(tmp_path: Path) -> None:
    out = recorded(tmp_path, "branch_sync_ab", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("none", "one_by_one", "together")}
    reduced = {arm: collectives(run, "agree")["all_reduce"] for arm, run in arms.items()}
    assert reduced == {"none": 0, "one_by_one": 10, "together": 2}
    assert {arm: syncs(run, "agree") for arm, run in arms.items()} == {"none": 0, "one_by_one": 10, "together": 0}


@pytest.mark.recipes
def test_ranks_that_branch_apart_end_with_who_issued_what_and_where(tmp_path: Path) -> None:
    done = started(tmp_path, "branch_sync_ab", "--set", "batch_size=1", "--set", "fault=desync").finish(seconds=150)
    assert done.code == 1
    assert done.seconds < 120
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("traceq: ")]
    assert re.search(r"stalled: desync at collective \d+", error)
    assert re.search(r"rank 0: all_reduce float32 x [\d,]+; rank 1: all_gather float32 x \d+; ", error)
    assert re.search(r"rank 0 waits at (rank_agreement|training)\.py:\d+ \w+; ", error)
    assert re.search(r"rank 1 waits at rank_agreement\.py:\d+ gather_alone$", error)


@pytest.mark.recipes
def test_batches_delivered_whole_leave_no_sync_and_a_prefetched_one_no_wait_for_the_loader(tmp_path: Path) -> None:
    out = recorded(tmp_path, "prefetch_ab", "--set", "batch_size=2")
    arms = {arm: read(out / arm) for arm in ("naive", "pinned", "prefetch")}
    assert {arm: syncs(run, "dataload_wait") for arm, run in arms.items()} == {"naive": 2, "pinned": 0, "prefetch": 0}
    stacked = {arm: ops(run, "dataload_wait")["aten::stack"] for arm, run in arms.items()}
    assert stacked == {"naive": 6, "pinned": 0, "prefetch": 0}
    ahead = ("dataload_wait", "dataload_ahead")
    loader_calls = {arm: [ops(run, phase)[LOADER] for phase in ahead] for arm, run in arms.items()}
    assert loader_calls == {"naive": [2, 0], "pinned": [2, 0], "prefetch": [0, 2]}
    manifest = arms["naive"].manifest
    assert manifest is not None
    for arm in arms:
        assert int(manifest.environment[f"rank_peak_bytes.{arm}"]) > 100_000_000  # torch alone takes as much
        assert int(manifest.environment[f"workers_peak_bytes.{arm}"]) > 50_000_000
    assert manifest.environment["shared_batches.prefetch"] >= manifest.environment["shared_batches.naive"]
    skipped = manifest.arm("tuned")
    assert skipped is not None
    assert skipped.failure == "skipped: requires cuda"


@pytest.mark.recipes
def test_a_producer_that_is_faster_stays_as_many_batches_ahead_as_it_may(tmp_path: Path) -> None:
    vary = ("--vary", "prefetch_factor=1,8", "--set", "batch_size=2", "--set", "size=tiny", "--trace-steps", "0")
    out = recorded(tmp_path, "prefetch_ab", *vary)
    manifest = read(out).manifest
    assert manifest is not None
    assert manifest.environment[BUILT_APART] == "prefetch_factor=1 prefetch_factor=8"
    few, many = (float(manifest.environment[f"shared_batches.prefetch_factor={factor}"]) for factor in (1, 8))
    assert few < 4 < 9 <= many <= 13  # of both builds' loaders, while the second is built


@pytest.mark.recipes
def test_masters_keep_small_updates_and_cost_copies_in_the_optimizers_step(tmp_path: Path) -> None:
    out = recorded(tmp_path, "master_weights_ab", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("bf16", "masters", "masters_on_cpu")}
    manifest = arms["bf16"].manifest
    assert manifest is not None
    facts = manifest.environment
    assert facts["state.bf16"].count("bfloat16 on cpu") == 2
    assert facts["state.masters"].count("float32 on cpu") == 2
    assert facts["state.masters_on_cpu"] == facts["state.masters"]
    num_parameters = int(facts["num_parameters"])
    assert (facts["state_bytes.bf16"], facts["state_bytes.masters"]) == (6 * num_parameters, 14 * num_parameters)
    assert facts["loss.masters"] == facts["loss.masters_on_cpu"] != facts["loss.bf16"]
    assert BUILT_APART not in facts
    assert [(one.a_name, one.b_name) for one in diff_run(out).diffs] == [
        ("bf16", "masters"),
        ("masters", "masters_on_cpu"),
    ]
    copies = {arm: ops(run, "optim_step")["aten::copy_"] for arm, run in arms.items()}
    assert copies["masters"] == copies["masters_on_cpu"] > copies["bf16"]


@pytest.mark.recipes
def test_a_step_of_four_batches_trains_on_four_times_the_samples_and_exchanges_gradients_once(tmp_path: Path) -> None:
    options = ("--steps", "8", "--set", "batch_size=2", "--set", "grad_accum=4", "--set", "load_us=3000")
    done = started(tmp_path, "step_profile", *options).finish(seconds=150)
    assert done.code == 0, done.stderr
    run = read(done.out)
    values = profile(run)
    assert (values["warmup"], values["measured"], values["num_processes"]) == (8, 8, 2)
    assert (values["grad_accum"], values["samples_per_step"]) == (4, 2 * 4 * 2)
    assert values["distributed_type"] == "DistributedDataParallel"
    assert values["global_samples_per_sec"] == pytest.approx(16 / values["global_step_time_s"])
    assert values["phase_means_s"].keys() == {*PHASES, "other", "backward_step"}
    accumulated, once = (ops(run, phase) for phase in ("forward", "optim_step"))
    assert accumulated["DistributedDataParallel.forward"] == 4 * 2
    assert once["Optimizer.step#AdamW.step"] == 2
    assert collectives(run, "bwd")["all_reduce"] == 2 * 2  # two buckets, after the last batch of either step
    assert accumulated["aten::scaled_dot_product_attention"] > 0 == accumulated[SEARCH]
    assert once["aten::_foreach_lerp_"] > 0 == ops(run, "bwd")["aten::gelu"]
    # each of the eight samples of a rank's step sleeps 3 ms in the one worker: a step cannot be shorter
    assert values["global_step_time_s"] > 8 * 0.003
    (forecast,) = [line for line in done.stderr.splitlines() if line.startswith("a trace of 2 steps takes about ")]
    expected = float(re.findall(r"about ([\d.]+) MiB per rank", forecast)[0]) * 2**20
    assert len(gzip.decompress((done.out / "run" / "rank0.json.gz").read_bytes())) == pytest.approx(expected, rel=0.3)
    lines = done.stdout.splitlines()
    assert "(mean of 2 ranks, 8 steps)" in lines[0]
    rows = [line.split() for line in lines[2 : lines.index("")] if "%" in line]
    shares = [float(words[words.index("%") - 1]) for words in rows]
    assert (rows[-1][0], shares[-1]) == ("total", 100.0)
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.3)
    assert lines[-2:] == [f"traceq show {done.out}/run", f"traceq open {done.out}/run"]


@pytest.mark.recipes
def test_any_two_values_of_a_parameter_are_compared_and_without_an_optimizer_there_is_no_update(tmp_path: Path) -> None:
    out = recorded(tmp_path, "step_profile", "--set", "batch_size=1", "--vary", "no_optim=false,true", seconds=150)
    arms = {arm: read(out / arm) for arm in ("no_optim=false", "no_optim=true")}
    steps = {arm: ops(run, "optim_step")["Optimizer.step#AdamW.step"] for arm, run in arms.items()}
    assert steps == {"no_optim=false": 2, "no_optim=true": 0}
    update = {arm: profile(run)["phase_means_s"]["optim_step"] for arm, run in arms.items()}
    assert update["no_optim=false"] > update["no_optim=true"] == 0
    assert diff_runs(*arms.values()).comparison is not None


@pytest.mark.recipes
def test_what_a_step_is_made_with_is_what_it_runs(tmp_path: Path) -> None:
    changes = ("find_unused=true", "optimizer=fused", "attention=eager", "checkpointing=true", "batch_size=1")
    run = read(
        recorded(tmp_path, "step_profile", *(word for change in changes for word in ("--set", change)), seconds=150)
    )
    forward = ops(run, "forward")
    assert forward[SEARCH] == 2
    assert forward["aten::scaled_dot_product_attention"] == 0 < forward["aten::softmax"]
    assert ops(run, "bwd")["aten::gelu"] == forward["aten::gelu"] > 0
    assert ops(run, "optim_step")["aten::_fused_adamw_"] == 2


@pytest.mark.recipes
def test_a_known_sleep_of_the_loader_starves_the_steps(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    slow = ("--set", "load_us=200000", "--set", "batch_size=2", "--steps", "8")
    done = started(tmp_path, "dataloader", *slow).finish(seconds=150)
    assert done.code == 0, done.stderr
    assert "(batches per rank: 8)" in done.stdout.splitlines()[0]
    loader = read(done.out)
    assert table(loader, "collectives") == []
    rates = loader_of(loader.manifest, loader.arm, loader.timings)
    assert rates is not None
    assert rates.batch_ns > 2 * 200_000_000  # its one worker sleeps over either sample
    assert rates.ceiling == pytest.approx(4 * rates.rates.min())
    starved = diff_runs(
        loader, read(recorded(tmp_path_factory.mktemp("steps"), "step_profile", *slow, seconds=150))
    ).feeding
    assert starved is not None
    assert starved.is_starved
    assert starved.wait_ns is not None
    assert starved.wait_ns > 0


@pytest.mark.recipes
def test_four_workers_make_batches_four_at_a_time(tmp_path: Path) -> None:
    options = ("--set", "load_us=50000", "--set", "batch_size=2", "--set", "num_workers=4", "--steps", "40")
    run = read(recorded(tmp_path, "dataloader", *options, seconds=150))
    rates = loader_of(run.manifest, run.arm, run.timings)
    assert rates is not None
    assert rates.fetch_ns.shape == (2, 40 - (8 - 2))  # what the workers had in hand when it began settled first
    assert 100_000_000 / 4 < rates.batch_ns < 100_000_000


def buckets(size: str) -> int:
    """How many reductions DDP makes of a model's gradients: torch says itself."""
    import torch
    import torch.distributed as dist

    from traceq.recipes.workload.model import SIZES, VisionLanguageAction

    with torch.device("meta"):
        parameters = list(VisionLanguageAction(SIZES[size]).parameters())
    assignment, _ = dist._compute_bucket_assignment_by_size(
        parameters[::-1], [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    )
    return len(assignment)


@pytest.mark.recipes
def test_each_strategy_issues_what_it_predicts_and_all_learn_the_same(tmp_path: Path) -> None:
    out = recorded(tmp_path, "sharding", "--set", "batch_size=1", seconds=550)
    manifest = read(out / "ddp").manifest
    assert manifest is not None
    arms = {arm.name: arm for arm in manifest.arms}
    skipped = {name for name, arm in arms.items() if arm.status == "skipped"}
    assert skipped == (set() if find_spec("deepspeed") else {"zero2", "zero3", "zero3_checkpointed"})
    assert all("needs DeepSpeed" in arms[name].fault for name in skipped)
    ran = {name: arm for name, arm in arms.items() if name not in skipped}
    num, units = int(arms["ddp"].facts["num_parameters"]), 8  # seven blocks and the root
    assert {
        name: arm.facts["wrapper_units"] for name, arm in ran.items() if name.startswith(("f", "shard"))
    } == dict.fromkeys(("full_shard", "shard_grad_op", "fsdp2", "fsdp2_checkpointed", "fsdp2_bfloat16"), units)
    dtypes = {name: "bfloat16" if name.endswith("bfloat16") else "float32" for name in ran}
    for name, arm in ran.items():
        assert arm.facts["state"].count(f" {dtypes[name]} on cpu") == 2
        of_regime = arms["ddp_bfloat16" if name.endswith("bfloat16") else "ddp"]
        assert float(arm.facts["loss"]) == pytest.approx(
            of_regime.facts["loss"], rel=1e-6 if dtypes[name] == "float32" else 1e-2
        )
    of_element = {name: 2 if dtype == "bfloat16" else 4 for name, dtype in dtypes.items()}
    weights_and_moments = {name: int(arm.facts["state_bytes"]) / (of_element[name] * num) for name, arm in ran.items()}
    shares = {"ddp": 3, "full_shard": 1.5, "shard_grad_op": 1.5, "fsdp2": 1.5, "zero2": 1 + 1.5, "zero3": 1.5}
    assert weights_and_moments == pytest.approx(
        {name: shares[re.sub("_(checkpointed|bfloat16)$", "", name)] for name in ran}, rel=0.01
    )
    gathered = {"parameter_gather_forward": units, "gradient_reduction": units}
    again = gathered | {"parameter_gather_backward": units - 1}
    expected = {
        "ddp": {"gradient_reduction": buckets("tiny")},
        "full_shard": again,
        "shard_grad_op": gathered,
        "fsdp2": again,
        "fsdp2_checkpointed": again,
        "fsdp2_bfloat16": again,
        "zero2": {"gradient_reduction": 1, "parameter_gather_step": 1},
    }
    for name in expected.keys() & ran.keys():
        checks = analyze(read(out / name, ranks=[0]), "strategy").tables[1]
        rows = [dict(zip((column.key for column in checks.columns), row, strict=True)) for row in checks.rows]
        exact = {row["role"]: row for row in rows if row["expected_num"] is not None}
        assert {role: row["num"] // 2 for role, row in exact.items()} == expected[name], name
        assert all((row["num"], row["verdict"]) == (row["expected_num"], "exact") for row in exact.values()), name
        reduced = exact["gradient_reduction"]["elements"] // 2
        assert 0 <= reduced - num <= (2000 if name.startswith("fsdp2") else 0)  # of parts of one row padded to two
    diffs = diff_run(out)
    assert {one.arm: one.verdict for one in diffs.exchanges} == dict.fromkeys(ran, "exact")
    (to_full_shard,) = [diff for diff in diffs.diffs if diff.b_name == "full_shard"]
    came = {cause.name: cause.delta_num for cause in to_full_shard.causes if cause.kind == "collective"}
    assert came["all_gather for parameter gather forward"] == units
    assert came["all_gather for parameter gather backward"] == units - 1


@pytest.mark.recipes
@pytest.mark.parametrize("backends", ["ddp", "ddp,fsdp2"])
def test_the_largest_batch_is_walked_to_and_the_next_one_is_refused(
    tmp_path: Path, backends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch of 8 takes 59 MiB on one rank and 70 on two, as they reduce gradients: 96 leave room for more.

    21 of them are float32 weights, gradients and moments. Each further thread of a rank takes 17 to 22 MiB (87 on one
    rank with two), and a rank alone has as many as the machine has cores: so one.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    is_alone, limit = "fsdp2" in backends, 96  # fsdp2 takes two ranks
    options = [f"--set={change}" for change in (f"backends={backends}", "batch_size=8", f"memory_limit={limit}")]
    options += ["--ranks", "1"] if is_alone else []
    done = started(tmp_path, "batch_probe", "--trace-steps", "0", *options).finish(seconds=400)
    assert done.code == 0, done.stderr
    manifest = read(done.out).manifest
    assert manifest is not None
    skipped = [arm for arm in manifest.arms if arm.status == "skipped"]
    assert [arm.varied["strategy"] for arm in skipped] == ["fsdp2"] * is_alone
    tried = [arm for arm in manifest.arms if arm not in skipped]
    fits = {int(arm.varied.get("batch_size", 8)): not arm.status for arm in tried}
    largest = max(size for size, does in fits.items() if does)
    refused = min(size for size, does in fits.items() if not does)
    assert largest < refused <= largest + max(1, largest // 8)
    assert {arm.status for arm in tried} == {"", "out of memory"}
    for facts in (arm.facts for arm in manifest.arms if not arm.status):
        allocated, reserved, left = (int(facts[f"{what}_bytes"]) for what in ("allocated", "reserved", "head_room"))
        assert 0 < allocated <= reserved
        assert 0 <= left < limit * 2**20
    matrix, summary = analyze(read(done.out), "batches").views
    assert {row[0]: row[1] != "out of memory" for row in matrix.rows} == fits
    assert summary.rows[0][:3] == ("ddp", largest, refused)
    assert matrix.title in done.stdout.splitlines()


@pytest.mark.recipes
def test_compiled_blocks_are_one_op_each_and_a_check_breaks_every_graph_at_its_line(tmp_path: Path) -> None:
    options = ("--set", "batch_size=1", "--set", "backend=aot_eager", "--set", "check=true")
    done = started(tmp_path, "compile_ab", *options).finish(seconds=240)
    assert done.code == 0, done.stderr
    assert facts_without_value(done.out) == []
    off, on = read(done.out / "off"), read(done.out / "on")
    num_blocks = ops(off, "forward")["aten::gelu"] // 2
    assert on.manifest is not None
    facts = on.manifest.facts_for("on")
    assert facts["graph_breaks"] == num_blocks
    assert re.fullmatch(r"compile_ab\.py:\d+ _check", str(facts["graph_breaks_at"]))
    assert "tensor 'x' size mismatch at index 1" in str(facts["recompile_reasons"])
    assert float(facts["compile_s"]) > 0
    assert any(line.startswith(f"{num_blocks} graph breaks, ") for line in done.stderr.splitlines())
    forward = {run.arm: ops(run, "forward") for run in (off, on)}
    regions = {
        arm: sum(num for name, num in counts.items() if name.startswith(REGION)) for arm, counts in forward.items()
    }
    assert regions["off"] == 0
    assert regions["on"] >= 2 * num_blocks
    compared = diff_runs(off, on).comparison
    assert compared is not None
    assert (compared.num_pairs, compared.num_a, compared.num_b, compared.verdict.name) == (0, 1, 1, "inconclusive")


@pytest.mark.recipes
def test_each_attention_says_its_kernel_what_it_keeps_and_how_far_it_is_from_float64(tmp_path: Path) -> None:
    options = ("--set", "batch_size=2", "--set", "backend=aot_eager")
    done = started(tmp_path, "attention_ab", *options).finish(seconds=300)
    assert done.code == 0, done.stderr
    arms = {arm: read(done.out / arm) for arm in ("eager", "sdpa", "compiled")}
    manifest = arms["eager"].manifest
    assert manifest is not None
    facts = {arm: manifest.facts_for(arm) for arm in arms}
    kernels = {arm: str(values["attention"]) for arm, values in facts.items()}
    assert kernels["eager"] == "aten::_softmax"
    assert kernels["sdpa"] == "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert "Torch-Compiled Region" in kernels["compiled"]
    assert int(facts["sdpa"]["saved_bytes"]) < int(facts["eager"]["saved_bytes"])
    errors = [float(values[key]) for values in facts.values() for key in ("error", "error_of_gradients")]
    assert all(0 < error < 1e-5 for error in errors)
    losses = [float(values["loss"]) for values in facts.values()]
    assert max(losses) - min(losses) < 1e-4
    softmax = {arm: ops(run, "forward")["aten::_softmax"] for arm, run in arms.items()}
    flash = {arm: ops(run, "forward")[kernels["sdpa"]] for arm, run in arms.items()}
    assert softmax["sdpa"] == flash["eager"] == 0
    assert flash["sdpa"] == softmax["eager"] > 0


@pytest.mark.recipes
def test_two_ranks_reduce_gradients_that_one_keeps_and_are_compared_by_the_sample(tmp_path: Path) -> None:
    out = recorded(tmp_path, "scaling_ab", "--set", "batch_size=1", "--set", "late_us=50000", seconds=240)
    one, both = read(out / "one"), read(out / "all")
    assert (one.ranks, both.ranks) == ((0,), (0, 1))
    assert collectives(one, "bwd") == Counter()
    assert collectives(both, "bwd")["all_reduce"] > 0
    copies = {run.arm: ops(run, "bwd")[HOOK] for run in (one, both)}
    assert copies["one"] == 0 < copies["all"]
    diff = diff_runs(one, both)
    assert (diff.comparable.ok, diff.comparison is not None) == (True, True)
    assert diff.comparison.samples == (1, 2)
    hooks = [cause for cause in diff.causes if cause.name == HOOK]
    assert [(cause.phase, cause.delta_num, cause.delta_ns > 0) for cause in hooks] == [("bwd", copies["all"] / 2, True)]
    assert any(cause.kind == "collective" and cause.name.startswith("all_reduce") for cause in diff.causes)
    skew = {row["rank"]: (row["wait_ns"] // row["num_steps"], row["transfer_ns"]) for row in table(both, "ranks")}
    assert skew[0][0] > LATE_NS > skew[1][0]
    assert min(transfer for _, transfer in skew.values()) > 0
