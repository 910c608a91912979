"""The parts that recipes are made of, each on a model of two layers."""

from __future__ import annotations

import mmap
import sys
import time
from collections import Counter
from dataclasses import replace
from importlib import import_module

import pytest

pytest.importorskip("torch", reason="a recipe is a torch program")
pytest.importorskip("accelerate", reason="the recipes gather metrics through accelerate")

import torch
import torch.distributed as dist
from single_rank_group import single_rank_group
from torch import nn

from traceq.errors import RecordingFailed
from traceq.recipes.fused_adamw_ab import check_unscaling
from traceq.recipes.memory.host_memory import host_memory, reset_peaks
from traceq.recipes.memory.limit import Capacity
from traceq.recipes.memory.model_state import held_bytes, state_bytes
from traceq.recipes.sharding_backends.build import check_issued, issued_collectives
from traceq.recipes.sharding_backends.training import ShardedTraining
from traceq.recipes.workload.attention import attention_kernels, eager_attention, error_against_float64
from traceq.recipes.workload.data import PADDING
from traceq.recipes.workload.model import (
    SIZES,
    Attention,
    Block,
    VisionLanguageAction,
    prefix_mask,
    set_options,
    transformer_blocks,
)
from traceq.recipes.workload.parameters import Precision
from traceq.recipes.workload.precision import adamw_with_masters, note_state, note_state_after_step, sized
from traceq.recipes.workload.unused_gradients import Use, parameter_uses, usage_lines
from traceq.recorder.failures.rank_errors import RankFailure
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.recipe import Context


class Gated(nn.Module):
    """One parameter of each use."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(2, 3)
        self.shut = nn.Linear(2, 3, bias=False)
        self.spare = nn.Linear(4, 5)
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self) -> torch.Tensor:
        x = torch.ones(1, 2)
        return (self.used(x) * self.fixed + 0 * self.shut(x)).sum()


def test_each_parameter_is_told_what_becomes_of_it() -> None:
    model = Gated()
    uses = parameter_uses(model, model())
    assert {f"{each.module}.{each.name}": each.use for each in uses} == {
        ".fixed": Use.FROZEN,
        "used.weight": Use.USED,
        "used.bias": Use.USED,
        "shut.weight": Use.ZERO_GRAD,
        "spare.weight": Use.UNUSED,
        "spare.bias": Use.UNUSED,
    }
    assert all(parameter.grad is None for parameter in model.parameters())
    lines = list(usage_lines(uses))
    assert lines[1] == "  spare: 2 tensors, 25 parameters: weight [5, 4], bias [5]"
    assert lines[5].endswith(": 1 tensor, 3 parameters: fixed [3]")
    assert lines[6:] == ["USED      2 tensors, 9 parameters"]


def test_held_is_what_outlives_the_call_and_views_count_once() -> None:
    x, references = torch.ones(10), []

    def forward() -> None:
        references.extend([x.view(2, 5), (x + 1).view(5, 2)])
        references.append(references[1][0])
        (x * 2).sum()

    assert held_bytes(forward) == 10 * 4


@pytest.mark.parametrize(("precision", "dtype"), [("float32_masters", "float32"), ("bfloat16", "bfloat16")])
@pytest.mark.parametrize("size", SIZES)
def test_a_size_has_the_dtypes_of_its_regime(size: str, precision: Precision, dtype: str) -> None:
    """Sizes differ in what they compute in, not in what the optimizer updates."""
    context = Context(0, 0, 1, torch.device("cpu"), Phases(()))
    weights = nn.Linear(2, 2, dtype=sized(size, precision).weights)
    optimizer = torch.optim.AdamW(weights.parameters())
    note_state_after_step(context, optimizer, precision)
    for _ in range(2):
        weights(torch.ones(1, 2, dtype=weights.weight.dtype)).sum().backward()
        optimizer.step()
    assert context.facts.keys() == {"precision", "state"}
    assert context.facts["precision"] == precision
    assert str(context.facts["state"]).count(f" {dtype} on cpu") == 2


def test_a_state_of_another_dtype_is_refused() -> None:
    """As torch's optimizers keep moments in the dtype of the weights, whatever the regime was meant to be."""
    context = Context(0, 0, 1, torch.device("cpu"), Phases(()))
    weights = nn.Linear(2, 2, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(weights.parameters())
    note_state_after_step(context, optimizer, "float32_masters")
    weights(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    with pytest.raises(RecordingFailed, match="the optimizer holds bfloat16; expected float32 alone"):
        optimizer.step()


def test_masters_are_a_state_of_float32() -> None:
    context = Context(0, 0, 1, torch.device("cpu"), Phases(()))
    weights = nn.Linear(2, 2, dtype=torch.bfloat16)
    optimizer = adamw_with_masters(weights.parameters(), torch.device("cpu"))
    weights(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    note_state(context, optimizer, "float32_masters")
    assert str(context.facts["state"]).count(" float32 on cpu") == 2


def test_a_prefix_attends_to_itself_the_state_to_all_and_nothing_to_padding() -> None:
    """Two patches, a prompt of two tokens, one of them padding in the second sample, and the state."""
    mask, of_context = prefix_mask(torch.tensor([[5, 6], [7, PADDING]]), 2)
    prefix, padded = [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]
    assert mask.int().tolist() == [[[*[prefix] * 4, [1] * 5]], [[*[padded] * 4, [1, 1, 1, 0, 1]]]]
    assert of_context.int().tolist() == [[[[1] * 5]], [[[1, 1, 1, 0, 1]]]]


def test_ragged_prompts_are_padded_to_the_longest_of_a_batch() -> None:
    episodes = sized("tiny", prompts="ragged").episodes(seed=0, rank=0)
    lengths = [len(episodes[index].text) for index in range(8)]
    batch = episodes.batch(8)
    assert len(set(lengths)) > 1
    assert max(lengths) <= SIZES["tiny"].text_length
    assert batch.text.shape == (8, max(lengths))
    assert (batch.text != PADDING).sum(dim=1).tolist() == lengths


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_changes_no_other_token(attention: str) -> None:
    """The loss of a prompt is the same whatever it is padded to, under either attention."""
    size = sized("tiny", prompts="ragged", cameras=2)
    torch.manual_seed(0)
    model = VisionLanguageAction(size)
    set_options(model, attention=attention)
    batch = size.episodes(seed=0, rank=0).batch(4)
    assert batch.image.shape[:2] == (4, 2)
    losses = []
    for more in (0, 5):
        torch.manual_seed(1)
        padded = torch.nn.functional.pad(batch.text, (0, more), value=PADDING)
        losses.append(model(batch._replace(text=padded)).item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.manual_seed(1)
    unlike = batch._replace(text=batch.text.clamp(min=0))
    assert model(unlike).item() != pytest.approx(losses[0], rel=1e-5)  # without the padding these are words


def test_both_attentions_agree_under_a_mask() -> None:
    query, key, value = (torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    mask, _ = prefix_mask(torch.tensor([[5, 6], [7, PADDING]]), 2)
    fused = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
    assert torch.allclose(eager_attention(query, key, value, mask), fused, atol=1e-6)
    assert max(error_against_float64(eager_attention, (query, key, value, mask))) < 1e-5


def test_options_reach_every_layer() -> None:
    model = VisionLanguageAction(SIZES["tiny"])
    set_options(model, attention="eager", checkpointing=True)
    assert {block.recomputes for block in transformer_blocks(model)} == {True}
    assert {module.attend for module in model.modules() if isinstance(module, Attention)} == {eager_attention}


@pytest.mark.parametrize("strategy", ["sharding", "batch_probe"])
def test_parameters_of_sharded_recipes_reach_the_model_and_its_batches(strategy: str) -> None:
    """On one rank, where the model is not wrapped: attention, checkpointing, precision, cameras and ragged prompts."""
    recipe = import_module(f"traceq.recipes.{strategy}").recipe
    context = Context(0, 0, 1, torch.device("cpu"), Phases(()))
    changes = {"attention": "eager", "checkpointing": True, "precision": "bfloat16", "cameras": 2, "prompts": "ragged"}
    parameters = replace(recipe.parameters, batch_size=4, num_workers=0, **changes)
    with single_rank_group():
        training = ShardedTraining.build(context, parameters)
    model = training.sharded.model
    assert {block.recomputes for block in transformer_blocks(model)} == {True}
    assert {module.attend for module in model.modules() if isinstance(module, Attention)} == {eager_attention}
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    batch = next(training.batches)
    assert batch.image.shape[:2] == (4, 2)
    assert (batch.text == PADDING).any()


def test_sdpa_takes_a_mask_by_its_fused_kernel() -> None:
    """What attention_ab asks with ragged prompts: the kernel of masked inputs is that of a CPU, not op by op."""
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    mask, _ = prefix_mask(torch.tensor([[5, 6], [7, PADDING]]), 2)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert attention_kernels(sdpa, (query, key, value, mask)) == attention_kernels(sdpa, (query, key, value)) == fused
    assert attention_kernels(eager_attention, (query, key, value, mask)) == "aten::_softmax"


@pytest.mark.slow
def test_a_recomputed_model_has_the_same_gradients() -> None:
    size = SIZES["tiny"]
    model = VisionLanguageAction(size)
    batch = size.episodes(seed=0, rank=0).batch(2)

    def gradients(recomputes: bool) -> list[torch.Tensor]:
        for block in (module for module in model.modules() if isinstance(module, Block)):
            block.recomputes = recomputes
        torch.manual_seed(1)
        model.zero_grad()
        model(batch).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    for plain, again in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(plain, again)


def test_who_asks_twice_for_the_same_batches_is_given_the_same_loader() -> None:
    context = Context(0, 0, 1, torch.device("cpu"), Phases(()))
    episodes = SIZES["tiny"].episodes(seed=0, rank=0)
    loader = context.batches(episodes, 2, num_workers=0)
    assert context.batches(SIZES["tiny"].episodes(seed=0, rank=0), 2, num_workers=0) is loader
    others = (context.batches(episodes, 3, num_workers=0), context.batches(replace(episodes, seed=1), 2, num_workers=0))
    assert all(other is not loader for other in others)
    assert context.batches([1, 2], 1, num_workers=0) is not context.batches([1, 2], 1, num_workers=0)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_the_memory_of_a_rank_its_workers_and_batches_that_wait_is_told() -> None:
    before = host_memory()
    context = Context(0, 0, 1, torch.device("cpu"), Phases(()))
    size = replace(SIZES["tiny"], image_size=256)
    batches = context.batches(size.episodes(seed=0, rank=0), 4, num_workers=1, prefetch_factor=3)
    batch = next(batches)
    one_batch = sum(field.nbytes for field in batch)
    deadline = time.monotonic() + 30
    while host_memory().shared < before.shared + 4 * one_batch and time.monotonic() < deadline:
        time.sleep(0.05)
    after = host_memory()
    assert 4 * one_batch <= after.shared - before.shared <= 5.5 * one_batch  # the one in use, and those ahead
    assert after.workers > before.workers
    assert batch.image.shape == (4, 3, 256, 256)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_peak_that_was_forgotten_is_that_of_what_came_after() -> None:
    with mmap.mmap(-1, 64_000_000) as held:  # not malloc's, which may keep it
        for offset in range(0, len(held), mmap.PAGESIZE):
            held[offset] = 1
        high = host_memory().rank
    reset_peaks()
    assert host_memory().rank < high - 32_000_000


def test_collectives_are_counted_where_they_are_dispatched_those_of_backward_too() -> None:
    with single_rank_group():
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))

        def step() -> None:
            model(torch.ones(1, 2)).sum().backward()
            dist.all_gather([torch.ones(1)], torch.ones(1))

        assert issued_collectives(step) == {"all_reduce": 1, "all_gather": 1}


@pytest.mark.parametrize(
    ("strategy", "seen"),
    [("fsdp2", {"all_reduce": 2}), ("zero3", {"all_gather": 2}), ("ddp", {"all_reduce": 2, "all_gather": 1})],
)
def test_a_strategy_that_issues_what_another_does_is_refused(strategy: str, seen: dict[str, int]) -> None:
    """The first is what accelerate gives on a CPU for FSDP."""
    with pytest.raises(RecordingFailed, match=f"^{strategy}: a step issues"):
        check_issued(strategy, Counter(seen))
    check_issued("fsdp2", Counter(all_gather=3, reduce_scatter=2, all_reduce=1))


@pytest.mark.parametrize(
    "fault",
    ["could not create a primitive", "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"],
)
def test_a_library_that_was_refused_memory_ends_an_arm_as_out_of_memory(fault: str) -> None:
    with pytest.raises(MemoryError) as raised, Capacity.raise_memory_error():
        raise RuntimeError(fault)
    assert RankFailure(0, 1, f"MemoryError: {raised.value}").arm_status[0] == "out of memory"
    with pytest.raises(RuntimeError, match="a fault of another kind"), Capacity.raise_memory_error():
        raise RuntimeError("a fault of another kind")


def test_state_is_weights_and_moments_once_each() -> None:
    model = nn.Linear(3, 2, bias=False)
    tied = nn.Sequential(model, nn.Linear(3, 2, bias=False))
    tied[1].weight = model.weight
    optimizer = torch.optim.AdamW(tied.parameters())
    assert state_bytes(tied, optimizer) == 6 * 4
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert state_bytes(tied, optimizer) == 3 * 6 * 4 + 4  # and the number of steps


def test_a_scaler_that_cannot_unscale_the_weights_type_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = torch.ones(3, dtype=torch.bfloat16)
    check_unscaling(weights)

    def refuses(*_: object) -> None:
        raise NotImplementedError("not implemented for 'BFloat16'")

    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", refuses)
    with pytest.raises(RecordingFailed, match=r"torch\.bfloat16 .* --set scaler=false"):
        check_unscaling(weights)
