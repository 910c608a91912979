"""The model of a call by the op's name: a contraction's FLOPs, else compulsory bytes, else bytes of its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import prod

from traceq.facts.roofline.contractions import ATTENTIONS, CONTRACTIONS, product_template
from traceq.facts.roofline.op_calls import ITEM_BYTES, Kind, OpCall, Tensor, Work, dtype_of_code, promoted, total_bytes

Traffic = Callable[[OpCall], int | None]

_POINTWISE = frozenset([
    "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "asin", "asinh", "atan", "atan2", "atanh",
    "bernoulli", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
    "bitwise_right_shift", "cauchy", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "conj_physical", "copysign",
    "cos", "cosh", "deg2rad", "digamma", "div", "elu", "elu_backward", "erf", "erfc", "erfinv", "exp", "exp2",
    "expm1", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "gelu", "gelu_backward", "glu_backward",
    "hardshrink", "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh",
    "hardtanh_backward", "heaviside", "huber_loss", "hypot", "i0", "leaky_relu", "leaky_relu_backward", "lerp",
    "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp",
    "logaddexp2", "logit", "logit_backward", "masked_fill", "masked_scale", "maximum", "minimum", "mish",
    "mish_backward", "mse_loss", "mse_loss_backward", "mul", "nan_to_num", "native_dropout_backward", "neg",
    "nextafter", "polygamma", "pow", "prelu", "rad2deg", "reciprocal", "relu", "relu6", "remainder", "round",
    "rsqrt", "rsub", "sgn", "sigmoid", "sigmoid_backward", "sign", "silu", "silu_backward", "sin", "sinc", "sinh",
    "smooth_l1_loss", "smooth_l1_loss_backward", "softplus", "softplus_backward", "softshrink", "sqrt", "square",
    "sub", "tan", "tanh", "tanh_backward", "threshold", "threshold_backward", "tril", "triu", "trunc", "where",
    "xlogy", "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "flip",
    "roll", "rot90", "conj", "complex", "polar", "view_as_real",
])  # fmt: skip
"""Ops whose result has the shape to which their inputs broadcast."""
_COMPARISONS = frozenset([
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf",
    "isfinite", "isin", "signbit",
])  # fmt: skip
_FILLS = frozenset([
    "fill", "zero", "normal", "uniform", "random", "exponential", "geometric", "log_normal",
])  # fmt: skip
"""Ops that only write their first input, whose name ends in `_`."""
_REDUCTIONS = frozenset([
    "sum", "nansum", "mean", "nanmean", "amax", "amin", "aminmax", "max", "min", "prod", "any", "all", "norm",
    "linalg_vector_norm", "var", "std", "var_mean", "std_mean", "argmax", "argmin", "count_nonzero", "logsumexp",
    "dist", "trace", "nonzero", "histc", "bincount", "median", "mode", "kthvalue", "unique2", "_unique2",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d",
    "_adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "equal", "is_nonzero",
])  # fmt: skip
"""Ops that read their inputs and write a result of unknown size, which is not larger."""
_SAME_SHAPE = frozenset([
    "_safe_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
    "miopen_batch_norm", "batch_norm", "layer_norm", "group_norm", "native_dropout", "rms_norm", "_fused_rms_norm",
    "_batch_norm_with_update", "renorm", "glu",
])  # fmt: skip
"""Ops that read their inputs and write a result like the first of them."""
_LIKE_FIRST_GRADIENT = frozenset([
    "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward",
    "native_group_norm_backward", "native_batch_norm_backward", "miopen_batch_norm_backward",
    "cudnn_batch_norm_backward", "batch_norm_backward", "_fused_rms_norm_backward",
])  # fmt: skip
"""Ops that read a gradient, a saved tensor of the same shape and small ones, and write a gradient like the first."""
_LIKE_SECOND = frozenset([
    "max_pool2d_with_indices_backward", "avg_pool2d_backward", "adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward", "max_pool3d_with_indices_backward",
])  # fmt: skip
"""Ops that read a gradient and write one like their second input."""


_WRITES_FIRST = frozenset(["_foreach_copy", "_foreach_zero"])
"""Ops on lists that write the first and do not read it."""


def traffic_formula(name: str) -> Traffic | None:
    """Return the formula of the bytes of an op of this name; None if there is none."""
    namespace, _, base = name.rpartition("::")
    if namespace != "aten":
        return None
    in_place = base.endswith("_")
    stem = base.rstrip("_") if in_place else base
    if stem.startswith(("_foreach_", "_fused_", "_amp_foreach_")) and stem not in _SAME_SHAPE | _LIKE_FIRST_GRADIENT:
        return _of_lists(stem, in_place)
    if stem in _BY_NAME:
        return _BY_NAME[stem]
    if stem in _FILLS:
        return lambda call: total_bytes([call.tensor(0)])
    if stem in _POINTWISE or stem in _COMPARISONS:
        return _pointwise(in_place=in_place, is_comparison=stem in _COMPARISONS)
    if stem in _REDUCTIONS:
        return _reduction
    for names, like in ((_SAME_SHAPE, 0), (_LIKE_FIRST_GRADIENT, 0), (_LIKE_SECOND, 1)):
        if stem in names:
            return _reads_and_writes(like, reads_like=like == 0)
    return None


def _pointwise(*, in_place: bool, is_comparison: bool) -> Traffic:
    def traffic(call: OpCall) -> int | None:
        tensors = call.tensors
        if not tensors:
            return None
        if in_place:
            return total_bytes(tensors) + tensors[0].bytes
        sizes = [tensor for tensor in tensors if tensor.shape] or list(tensors)
        shape = _broadcast(sizes)
        dtype = "bool" if is_comparison else promoted([tensor.dtype for tensor in sizes])
        return total_bytes(tensors) + Tensor(shape, dtype).bytes

    return traffic


def _broadcast(tensors: list[Tensor]) -> tuple[int, ...]:
    """Return the shape to which these tensors broadcast, whether they can or not."""
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _reduction(call: OpCall) -> int | None:
    return total_bytes(call.tensors) if call.tensors else None


def _reads_and_writes(like: int, *, reads_like: bool) -> Traffic:
    """Return the formula of all inputs, and a result like one of them (which is read itself only if `reads_like`)."""

    def traffic(call: OpCall) -> int | None:
        result = call.tensor(like)
        if result is None:
            return None
        return total_bytes(call.tensors) + (result.sized(result.numel) if reads_like else 0)

    return traffic


def _copy(call: OpCall) -> int | None:
    """Return the bytes of `copy_(self, source)`: the source is read, self written."""
    target, source = call.tensor(0), call.tensor(1)
    return None if target is None or source is None else total_bytes([target, source])


def _concatenated(call: OpCall) -> int | None:
    parts = call.list_of(0)
    return 2 * sum(part.sized(part.numel) for part in parts) if parts and all(part.dtype for part in parts) else None


def _softmax(call: OpCall) -> int | None:
    """Return the bytes of `_softmax(self, dim, half_to_float)`: self is read, a result like it written, or float32."""
    x = call.tensor(0)
    if x is None:
        return None
    return x.bytes + (Tensor(x.shape, "float32").bytes if call.value(2) is True else x.sized(x.numel))


def _rows_taken(index: int, *, is_whole_row: bool) -> Traffic:
    """Return the formula of a lookup: indices, and what they select, read and written."""

    def traffic(call: OpCall) -> int | None:
        rows, chosen = call.tensor(0), call.tensor(index)
        if rows is None or chosen is None:
            return None
        dim = call.value(1)
        axis = dim if isinstance(dim, int) and -len(rows.shape) <= dim < len(rows.shape) and index == 2 else 0
        per_index = rows.numel // max(rows.shape[axis], 1) if is_whole_row and rows.shape else 1
        return chosen.bytes + 2 * rows.sized(chosen.numel * per_index)

    return traffic


def _picked(scores: int, target: int) -> Traffic:
    """Return the formula of a loss that reads one score of each target, or writes its gradient; others are filled."""

    def traffic(call: OpCall) -> int | None:
        score, chosen = call.tensor(scores), call.tensor(target)
        return None if score is None or chosen is None else chosen.bytes + score.sized(chosen.numel)

    return traffic


def _embedding_gradient(call: OpCall) -> int | None:
    """Return the bytes of embedding_dense_backward(grad, indices, num_weights): read the gradient, write the table."""
    grad, indices, num = call.tensor(0), call.tensor(1), call.value(2)
    if grad is None or indices is None or not grad.shape:
        return None
    return total_bytes([grad, indices]) + (grad.sized(num * grad.shape[-1]) if isinstance(num, int) else 0)


def _put(source: int) -> Traffic:
    """Return the formula of a scattered write of the input at a position: it is read, its elements written."""

    def traffic(call: OpCall) -> int | None:
        values, target = call.tensor(source), call.tensor(0)
        if values is None or target is None:
            return None
        index = call.tensor(2) if source == 3 else None
        return values.bytes + target.sized(values.numel) + total_bytes([index])

    return traffic


def _sorted_with_indices(call: OpCall) -> int | None:
    """Return the bytes of one pass of a sort: values read, values and indices written."""
    x = call.tensor(0)
    return None if x is None else 2 * x.bytes + int(x.numel * ITEM_BYTES["int64"])


def _resized(call: OpCall) -> int | None:
    """Return the bytes of an upsampling: the input, and the result of the recorded size."""
    x, size = call.tensor(0), call.value(1)
    if x is None or not isinstance(size, list) or not all(type(each) is int for each in size):
        return None if x is None else x.bytes
    return x.bytes + x.sized(prod(x.shape[: len(x.shape) - len(size)]) * prod(size))


def _created(call: OpCall) -> int | None:
    """Return the bytes of `arange(start, end, dtype)` or `linspace`, which only write."""
    numbers = [value for value in (call.value(0), call.value(1)) if isinstance(value, int | float)]
    dtype = dtype_of_code(call.value(2)) or "int64"
    if not numbers:
        return total_bytes(call.tensors) or None
    return int(abs(numbers[-1] - (numbers[0] if len(numbers) > 1 else 0)) * ITEM_BYTES[dtype])


def _of_lists(stem: str, in_place: bool) -> Traffic:
    """Return the formula of an op on lists of tensors, as of optimizers: all are read, what changes is written."""
    num_states = 2 if stem.startswith("_fused_adam") else 1 if stem.startswith("_fused_sgd") else 0
    writes = stem not in _WRITES_FIRST and (in_place or not stem.endswith("norm"))

    def traffic(call: OpCall) -> int | None:
        lists = [entry for entry in call.inputs if isinstance(entry, tuple)]
        if not lists or not all(tensor.dtype for entry in lists for tensor in entry):
            return None
        written = [lists[0], *lists[2 : 2 + num_states]]  # parameters, gradients, states; also read
        return sum(map(total_bytes, lists)) + (sum(map(total_bytes, written)) if writes else 0)

    return traffic


_BY_NAME: dict[str, Traffic] = {
    **dict.fromkeys(("copy", "_to_copy"), _copy),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("cat", "stack", "_cat"), _concatenated),
    "index_select": _rows_taken(2, is_whole_row=True),
    "embedding": _rows_taken(1, is_whole_row=True),
    "gather": _rows_taken(2, is_whole_row=False),
    "take": _rows_taken(1, is_whole_row=False),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _picked(0, 1)),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _picked(1, 2)),
    "embedding_dense_backward": _embedding_gradient,
    **dict.fromkeys(("_index_put_impl", "index_put", "masked_scatter"), _put(2)),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"), _put(3)),
    **dict.fromkeys(("sort", "argsort"), _sorted_with_indices),
    "topk": _reduction,
    **dict.fromkeys(
        (f"upsample_{kind}" for kind in ("nearest1d", "linear1d", "nearest2d", "bilinear2d", "bicubic2d")), _resized
    ),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _resized),
    **dict.fromkeys(("arange", "linspace"), _created),
}
USES_VALUES = frozenset(name for name in _BY_NAME if name not in {"copy", "_to_copy", "cat", "stack", "_cat", "sort"})
"""Ops whose bytes depend on inputs that are no tensors."""


_FORMULAS = CONTRACTIONS | ATTENTIONS
_OPAQUE = re.compile(r"^triton_|_kernel_\d+$|^(?!(aten|c10d|prims|record|profiler|autograd|torch)::)\w+::")
"""Ops that wrap kernels of Triton or of another library: all that is known of them is what they are given."""


@cache
def has_formula(name: str) -> bool:
    """Return whether there is a formula for FLOPs or bytes of ops of this name."""
    return name in _FORMULAS or traffic_formula(name) is not None or product_template(name) is not None


@cache
def is_opaque_kernel(name: str) -> bool:
    """Return whether ops of this name are kernels of a library, of which only the arguments are known."""
    return name not in _FORMULAS and _OPAQUE.search(name) is not None


@cache
def needs_values(name: str) -> bool:
    """Return whether the formula for ops of this name depends on inputs that are no tensors."""
    return name in _FORMULAS or name.removeprefix("aten::").rstrip("_") in USES_VALUES


def work_of(call: OpCall) -> Work | None:
    """Return the work of a call; None if there is no model for it, or what it needs was not recorded."""
    if call.name in _FORMULAS:
        return _FORMULAS[call.name](call)
    formula = traffic_formula(call.name)
    if formula is not None:
        moved = formula(call)
        return None if not moved else Work(Kind.BYTES, moved)
    template = product_template(call.name)
    if template is not None and (work := template(call)) is not None:
        return work
    if is_opaque_kernel(call.name) and (moved := total_bytes(call.tensors)):
        return Work(Kind.ARGUMENTS, moved)
    return None
