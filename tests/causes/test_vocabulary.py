"""Names that two sides do not share are matched by how they are used."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from builder import Event, build, frame, kernel, launch, op, step

from traceq.causes.vocabulary import NameKind, in_names_of, matched_names
from traceq.model import Trace

LAYERS = ("embed", "norm", "attend", "norm", "mlp", "norm", "attend", "norm", "mlp", "head")
SHAPES = {"embed": 8, "norm": 16, "attend": 32, "mlp": 64, "head": 128}


def model(
    names: Mapping[str, str],
    layers: tuple[str, ...] = LAYERS,
    function: str = "",
    num_steps: int = 1,
    first_step: int = 0,
) -> Trace:
    """Steps of layers, each an op in `aten::layer` that launches a kernel; `names` of ops and kernels are others."""
    rows: list[Event] = []
    for number in range(num_steps):
        begin = 10_000 * number
        rows.append(step(begin, 9_000, first_step + number))
        for nth, layer in enumerate(layers):
            start, call = begin + 100 * nth + 50, 100 * number + nth + 1
            rows += [op(names.get("aten::layer", "aten::layer"), start, 80)]
            rows += [op(names.get(layer, layer), start + 10, 40, **{"Input Dims": [[SHAPES[layer]]]})]
            rows += [launch(start + 20, 5, call), kernel(names.get(f"{layer}_k", f"{layer}_k"), start + 40, 30, call)]
            rows += [frame(f"model.py(7): {function}", start, 90)] if function else []
    return build(*rows)


def texts(a: Trace, b: Trace) -> dict[str, str]:
    return {of_b: of_a for (_, of_b), (_, of_a) in matched_names(a, b).items()}


def test_renamed_ops_and_kernels_are_known_by_shapes_neighbours_and_launches() -> None:
    names = {"aten::layer": "my::block", "norm": "rms", "attend": "flash", "attend_k": "flash_fwd", "mlp_k": "fused"}
    assert texts(model({}), model(names)) == {new: old for old, new in names.items()}
    assert texts(model(names), model({})) == names


def test_nothing_is_matched_where_all_names_are_common_or_only_one_side_has_more() -> None:
    assert texts(model({}), model({})) == {}
    assert texts(model({}), model({}, (*LAYERS, "head", "mlp")[:-1])) == {}


def test_an_op_that_is_used_otherwise_is_another_one() -> None:
    """Called once where the other is called four times, with another shape, at the end."""
    assert "norm" not in texts(model({}), model({"head": "dropout"}, tuple(x for x in LAYERS if x != "norm"))).values()


def test_steps_may_be_more_on_one_side() -> None:
    assert texts(model({}, num_steps=4), model({"norm": "rms"}, num_steps=2)) == {"rms": "norm"}


def test_marks_of_steps_have_numbers_and_no_names() -> None:
    a, b = model({}, num_steps=2), model({}, num_steps=2, first_step=2)
    assert matched_names(a, b) == {}
    assert in_names_of(a, b).trace is b


@pytest.mark.parametrize(("function", "num"), [("forward", 1), ("other", 0)])
def test_ops_of_different_functions_of_the_job_do_not_replace_each_other(function: str, num: int) -> None:
    a, b = model({}, function="forward"), model({"norm": "rms"}, function=function)
    assert len(matched_names(a, b)) == num


def test_what_no_side_tells_of_two_ops_does_not_make_them_alike() -> None:
    """One op is there instead of three: without shapes and known neighbours none of these is known to be it."""

    def rewritten(*names: str) -> Trace:
        rows, between = [step(0, 900)], 600 // len(names)
        calls = [("aten::first", 10, 50), *((name, 100 + n * between, between - 10) for n, name in enumerate(names))]
        for number, (name, start, dur) in enumerate([*calls, ("aten::last", 800, 50)], start=1):
            rows += [op(name, start, dur), launch(start + 5, 5, number), kernel("k", start + 10, 5, number)]
        return build(*rows)

    assert texts(rewritten("clamp", "add", "mul"), rewritten("ext::exchange")) == {}
    assert texts(rewritten("clamp"), rewritten("ext::clamp")) == {"ext::clamp": "clamp"}


def test_a_kernel_never_has_the_name_of_an_op() -> None:
    pairs = matched_names(model({}), model({"norm": "a", "norm_k": "b", "mlp_k": "c"}))
    assert all(of_a[0] == of_b[0] for of_b, of_a in pairs.items())
    assert {kind for kind, _ in pairs} == {NameKind.OP, NameKind.KERNEL}


def test_ops_get_the_names_of_the_other_side_and_kernels_keep_theirs() -> None:
    a, b = model({}), model({"norm": "rms", "norm_k": "rms_k"})
    named = in_names_of(a, b)
    used = {named.trace.events.text(row) for row in range(len(named.trace.events))}
    assert (used & {"norm", "rms"}, used & {"norm_k", "rms_k"}) == ({"norm"}, {"rms_k"})
    assert (named.others, named.kernels) == ({"norm": "rms"}, {"rms_k": "norm_k"})
    assert in_names_of(a, a).trace is a
