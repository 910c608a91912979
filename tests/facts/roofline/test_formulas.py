"""FLOPs and bytes of single calls, computed by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from traceq.facts.roofline.contractions import unmasked_pairs
from traceq.facts.roofline.formulas import work_of
from traceq.facts.roofline.op_calls import Kind, Work, parse_call


def work(name: str, shapes: str, types: str, values: str = "", strides: str = "", **more: str) -> Work | None:
    call = parse_call(name, shapes, types, strides, values, **more)
    return None if call is None else work_of(call)


def modelled(name: str, shapes: str, types: str, values: str = "", strides: str = "", **more: str) -> Work:
    result = work(name, shapes, types, values, strides, **more)
    assert result is not None
    return result


BF16, F32, F8 = '"c10::BFloat16"', '"float"', '"c10::Float8_e4m3fn"'


def test_a_product_multiplies_and_adds_each_element_of_a_row_once() -> None:
    result = modelled("aten::mm", "[[8, 16], [16, 4]]", f"[{BF16}, {BF16}]")
    assert (result.flops, result.bytes, result.dtype) == (2 * 8 * 16 * 4, 2 * (8 * 16 + 16 * 4 + 8 * 4), "bfloat16")


def test_a_bias_is_not_counted_and_an_expanded_operand_is_read_once() -> None:
    assert (
        modelled("aten::addmm", "[[4], [8, 16], [16, 4], [], []]", f'[{F32}, {F32}, {F32}, "Scalar", "Scalar"]').flops
        == 1024
    )
    result = modelled("aten::bmm", "[[5, 8, 16], [5, 16, 4]]", f"[{F32}, {F32}]", strides="[[128, 16, 1], [0, 4, 1]]")
    assert result.flops == 5 * 1024
    assert result.bytes == 4 * (5 * 128 + 64 + 5 * 32)


def test_a_quantised_product_writes_the_dtype_it_is_asked_for() -> None:
    types = '["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float", "", "", "Scalar", "Scalar"]'
    values = '["", "", "", "", "", "", "15", "False"]'
    result = modelled("aten::_scaled_mm", "[[8, 16], [16, 4], [], [], [], [], [], []]", types, values)
    assert (result.flops, result.bytes, result.dtype) == (1024, 128 + 64 + 2 * 32, "float8")


def test_blocks_of_scales_change_nothing_of_a_product() -> None:
    """MXFP8: one scale for 32 elements of a row, in a list of tensors."""
    shapes = "[[64, 128], [128, 32], [[64, 4]], [], [], [[32, 4]], [], [], [], [], [], []]"
    types = '["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "TensorList", "", "", "TensorList", "", "", "", "", "", ""]'
    values = '["", "", "", "[3]", "[1]", "", "[3]", "[1]", "", "15", "[]", "False"]'
    result = modelled("aten::_scaled_mm_v2", shapes, types, values)
    assert (result.flops, result.dtype) == (2 * 64 * 128 * 32, "float8")
    assert result.bytes == 64 * 128 + 128 * 32 + 2 * 64 * 32


def test_integers_multiply_as_others_do() -> None:
    result = modelled("aten::_int_mm", "[[64, 128], [128, 32]]", '["signed char", "signed char"]')
    assert (result.flops, result.dtype) == (2 * 64 * 128 * 32, "int8")


@pytest.mark.parametrize("second", ["[16, 4]", "[4, 16]"])
def test_a_template_of_inductor_multiplies_its_first_two_arguments(second: str) -> None:
    shapes = f"[[8, 16], {second}, [4], [8, 4], []]"
    types = f'[{BF16}, {BF16}, {BF16}, {BF16}, "Scalar"]'
    result = modelled("triton_tem_fused_addmm_relu_3", shapes, types)
    assert (result.kind, result.flops, result.dtype) == (Kind.CONTRACTION, 2 * 8 * 16 * 4, "bfloat16")
    assert result.bytes == 2 * (128 + 64 + 4 + 32)


@pytest.mark.parametrize("shapes", ["[[8, 16], [17, 5], [8, 4]]", "[[8, 16], [16, 4]]", "[[8, 16], [16, 4], [9, 4]]"])
def test_where_sizes_are_none_of_a_product_a_template_has_its_arguments_alone(shapes: str) -> None:
    result = modelled("triton_tem_fused_mm_0", shapes, f"[{', '.join([BF16] * shapes.count('], ') + [BF16])}]")
    assert (result.kind, result.flops) == (Kind.ARGUMENTS, 0)


def test_packed_fp4_holds_two_numbers_in_an_element() -> None:
    types = '["c10::Float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2"]'
    assert modelled("aten::_scaled_mm", "[[8, 16], [16, 4]]", types).flops == 2 * 1024


def test_vectors_and_recurrent_layers_have_formulas_that_torch_lacks() -> None:
    assert modelled("aten::mv", "[[8, 16], [16]]", f"[{F32}, {F32}]").flops == 2 * 8 * 16
    assert modelled("aten::dot", "[[16], [16]]", f"[{F32}, {F32}]").flops == 32
    weights = "[[12, 4], [12, 3], [12], [12]]"
    result = modelled("aten::_cudnn_rnn", f"[[7, 2, 4], {weights}]", f'[{F32}, "TensorList"]')
    assert result.flops == 2 * 7 * 2 * (48 + 36)


def test_a_grouped_product_is_at_most_that_of_all_rows() -> None:
    types = f'[{BF16}, {BF16}, "int"]'
    result = modelled("aten::_grouped_mm", "[[10, 16], [3, 16, 4], [3]]", types)
    assert (result.flops, result.is_bound) == (2 * 10 * 16 * 4, True)
    assert work("aten::_grouped_mm", "[[16, 10], [10, 4], [3]]", types) is None


def test_products_scaled_by_blocks_are_products() -> None:
    types = f"[{F8}, {F8}]"
    assert (
        modelled("vllm::w8a8_triton_block_scaled_mm_func", "[[8, 256], [512, 256]]", types).flops == 2 * 8 * 256 * 512
    )
    assert modelled("sgl_kernel::fp8_blockwise_scaled_mm", "[[8, 256], [256, 512]]", types).flops == 2 * 8 * 256 * 512


CONVOLUTION = '["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "{}", "[0, 0]", "{}"]'


def test_a_convolution_slides_over_its_result_and_a_transposed_one_over_its_input() -> None:
    types = f"[{F32}, {F32}]"
    result = modelled("aten::convolution", "[[2, 3, 9, 9], [6, 3, 3, 3]]", types, CONVOLUTION.format(False, 1))
    assert result.flops == 2 * 2 * 5 * 5 * (6 * 3 * 9)
    assert result.bytes == 4 * (2 * 3 * 81 + 6 * 3 * 9 + 2 * 6 * 25)
    grouped = modelled("aten::convolution", "[[2, 4, 9, 9], [6, 2, 3, 3]]", types, CONVOLUTION.format(False, 2))
    assert grouped.flops == 2 * 2 * 25 * (6 * 2 * 9)
    back = modelled("aten::convolution", "[[2, 6, 5, 5], [6, 3, 3, 3]]", types, CONVOLUTION.format(True, 1))
    assert back.flops == 2 * 2 * 25 * (6 * 3 * 9)
    assert back.bytes == 4 * (2 * 6 * 25 + 6 * 3 * 9 + 2 * 3 * 81)


def test_a_convolution_without_stride_takes_the_size_of_its_result_from_its_gradient() -> None:
    shapes, types = "[[2, 3, 9, 9], [6, 3, 3, 3]]", f"[{F32}, {F32}]"
    assert work("aten::cudnn_convolution", shapes, types) is None
    result = modelled("aten::cudnn_convolution", shapes, types, partner="[[2, 3, 9, 9], [2, 6, 5, 5], [6, 3, 3, 3]]")
    assert result.flops == 2 * 2 * 25 * (6 * 3 * 9)


@pytest.mark.parametrize(
    ("mask", "times"), [("[True, True, True]", 2), ("[False, True, False]", 1), ("[False, False, True]", 0)]
)
def test_a_convolution_backward_computes_the_gradients_it_is_asked_for(mask: str, times: int) -> None:
    shapes, types = "[[2, 6, 5, 5], [2, 3, 9, 9], [6, 3, 3, 3]]", f"[{F32}, {F32}, {F32}]"
    values = f'["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "{mask}"]'
    assert modelled("aten::convolution_backward", shapes, types, values).flops == times * 2 * 2 * 25 * 162


def test_attention_counts_query_heads_and_tells_what_is_masked_and_computed_twice() -> None:
    shapes, types = "[[2, 8, 4, 16], [2, 2, 6, 16], [2, 2, 6, 16]]", f"[{BF16}, {BF16}, {BF16}]"
    values = '["", "", "", "0.", "{}"]'
    name = "aten::_scaled_dot_product_flash_attention"
    full = modelled(name, shapes, types, values.format(False))
    assert full.flops == full.executed == full.model == 2 * 2 * 8 * 4 * 6 * 32
    causal = modelled(name, shapes, types, values.format(True))
    assert (causal.flops, causal.unmasked) == (full.flops, Fraction(1 + 2 + 3 + 4, 24))
    assert causal.executed == full.flops * 10 // 24
    backward = modelled(f"{name}_backward", f"[[2, 8, 4, 16], {shapes[1:]}", f"[{BF16}, {types[1:]}")
    assert backward.flops == 2 * 2 * 8 * 4 * 6 * (3 * 16 + 2 * 16)
    assert backward.flops - backward.repeated == 2 * 2 * 8 * 4 * 6 * (2 * 16 + 2 * 16)
    assert backward.is_bound  # whether it is causal was not recorded


def test_packed_sequences_of_one_length_are_exact_and_others_a_bound() -> None:
    types = f'[{BF16}, {BF16}, {BF16}, "int", "int", "Scalar", "Scalar", "Scalar", "Scalar", "Scalar"]'
    values = '["", "", "", "", "", "{0}", "{0}", "0.", "0.1", "False"]'
    shapes = "[[24, 4, 8], [24, 4, 8], [24, 4, 8], [4], [4], [], [], [], [], []]"
    name = "flash_attn::_flash_attn_varlen_forward"
    exact = modelled(name, shapes, types, values.format(8))
    assert (exact.flops, exact.is_bound) == (2 * 3 * 4 * 8 * 8 * 16, False)
    bound = modelled(name, shapes, types, values.format(12))
    assert (bound.flops, bound.is_bound) == (2 * 2 * 4 * 12 * 12 * 16, True)


@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0), (1, 1), (-1, 2)])
@pytest.mark.parametrize(("s", "t"), [(5, 5), (3, 7), (6, 2)])
def test_unmasked_pairs_are_those_of_a_mask_drawn_in_full(
    s: int, t: int, window: tuple[int, int], bottom_right: bool
) -> None:
    for is_causal in (False, True):
        left, right = window
        shift = t - s if bottom_right else 0
        num = 0
        for query in range(s):
            for key in range(t):
                distance = key - (query + shift)
                num += (
                    (left < 0 or -distance <= left)
                    and (right < 0 or distance <= right)
                    and not (is_causal and distance > 0)
                )
        result = unmasked_pairs(s, t, is_causal=is_causal, window=window, bottom_right=bottom_right)
        assert result == Fraction(num, s * t)


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "expected"),
    [
        ("aten::add", "[[8, 4], [4], []]", f'[{F32}, {F32}, "Scalar"]', "", 4 * (32 + 4 + 32)),
        ("aten::add", "[[8, 1], [1, 4], []]", f'[{BF16}, {F32}, "Scalar"]', "", 2 * 8 + 4 * 4 + 4 * 32),
        ("aten::mul_", "[[8, 4], [8, 4]]", f"[{F32}, {F32}]", "", 4 * 32 * 3),
        ("aten::eq", "[[8, 4], []]", f'[{F32}, "Scalar"]', "", 5 * 32),
        ("aten::copy_", "[[8, 4], [8, 4], []]", f'[{F32}, {BF16}, "Scalar"]', "", 6 * 32),
        ("aten::fill_", "[[8, 4], []]", f'[{F32}, "Scalar"]', "", 4 * 32),
        ("aten::sum", "[[8, 4]]", f"[{F32}]", "", 4 * 32),
        ("aten::_softmax", "[[8, 4], [], []]", f'[{BF16}, "Scalar", "Scalar"]', "", 2 * 32 * 2),
        ("aten::_softmax", "[[8, 4], [], []]", f'[{BF16}, "Scalar", "Scalar"]', '["", "1", "True"]', (2 + 4) * 32),
        ("aten::_softmax_backward_data", "[[8, 4], [8, 4], [], []]", f'[{F32}, {F32}, "Scalar", "Scalar"]', "", 4 * 96),
        ("aten::native_layer_norm", "[[8, 4], [], [4], [4]]", f'[{F32}, "", {F32}, {F32}]', "", 4 * (64 + 8)),
        ("aten::nll_loss_forward", "[[8, 1000], [8]]", f'[{F32}, "long int"]', "", 8 * (8 + 4)),  # one score a target
        ("aten::nll_loss_backward", "[[], [8, 1000], [8]]", f'[{F32}, {F32}, "long int"]', "", 8 * (8 + 4)),
        ("aten::embedding", "[[100, 16], [3, 5]]", f'[{F32}, "long int"]', "", 8 * 15 + 2 * 4 * 15 * 16),
        ("aten::index_select", "[[9, 100], [], [5]]", f'[{F32}, "Scalar", "long int"]', '["", "1", ""]', 40 + 8 * 45),
        (
            "aten::embedding_dense_backward",
            "[[15, 16], [15], []]",
            f'[{F32}, "long int", "Scalar"]',
            '["", "", "100"]',
            4 * 240 + 8 * 15 + 4 * 1600,
        ),
        ("aten::_index_put_impl_", "[[9, 16], [], [5, 16]]", f'[{F32}, "", {F32}]', "", 2 * 4 * 80),
        ("aten::upsample_bilinear2d", "[[1, 3, 4, 4], []]", f'[{F32}, "ScalarList"]', '["", "[8, 8]"]', 12 * 80),
        ("triton_poi_fused_0", "[[8, 4], [8, 4], []]", f'[{F32}, {F32}, "Scalar"]', "", 4 * 64),
    ],
)  # fmt: skip
def test_bytes_are_every_element_read_or_written_once(
    name: str, shapes: str, types: str, values: str, expected: int
) -> None:
    assert modelled(name, shapes, types, values).bytes == expected


def test_lists_have_the_dtype_that_their_kernel_shows() -> None:
    lists = "[[8, 4], [4]]"
    types = '["TensorList", "TensorList", "Scalar"]'
    assert work("aten::_foreach_add_", f"[{lists}, {lists}, []]", types) is None
    assert modelled("aten::_foreach_add_", f"[{lists}, {lists}, []]", types, dtype="float32").bytes == 4 * 36 * 3
    assert modelled("aten::_foreach_copy_", f"[{lists}, {lists}, []]", types, dtype="float32").bytes == 4 * 36 * 2
    adam = f"[{', '.join([lists] * 4)}]"
    kinds = '["TensorList", "TensorList", "TensorList", "TensorList"]'
    assert modelled("aten::_fused_adamw_", adam, kinds, dtype="bfloat16").bytes == 2 * 36 * 7
    assert (
        modelled("aten::cat", "[[[8, 4], [8, 4]], []]", '["TensorList", "Scalar"]', dtype="int16").bytes == 2 * 2 * 64
    )


@pytest.mark.parametrize(
    "shapes", ["", "null", "[[8, -1], [4, 4]]", "[[1e99], 3]", "{}", "[[8, 16], [17, 4]]", "[[8], [8, 4]]"]
)
def test_shapes_that_make_no_sense_have_no_work(shapes: str) -> None:
    assert work("aten::mm", shapes, f"[{F32}, {F32}]") is None


def test_ops_that_no_formula_knows_have_no_work() -> None:
    assert work("aten::unheard_of", "[[8, 4]]", f"[{F32}]") is None
    assert modelled("mylib::anything", "[[8, 4]]", f"[{F32}]").kind is Kind.ARGUMENTS
