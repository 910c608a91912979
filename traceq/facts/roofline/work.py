"""What one call of an op has to do: FLOPs of its contractions, and bytes that it must move."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction

from traceq.facts.roofline.op_calls import Tensor
from traceq.frozen import frozen


class Kind(IntEnum):
    """What the model of a call rests on."""

    CONTRACTION = 2
    """FLOPs of a matrix product, convolution or attention; bytes of its operands and results."""
    BYTES = 1
    """Bytes that the op must read and write, each element once."""
    ARGUMENTS = 0
    """Bytes of all arguments of a kernel of which nothing else is known: of a view they are too many."""


@frozen
class Work:
    """Work of one call. FLOPs are those of contractions: 2 per multiplication and addition of two elements.

    `flops` counts masked pairs of an attention, and its scores in the backward pass, which are computed anew:
    `repeated` FLOPs; `unmasked` is the part of the pairs that a causal mask or a window leaves. `bytes` are compulsory:
    every element moved once. `dtype` of the operands. `is_bound`: at most so many FLOPs, as lengths are not recorded.
    """

    kind: Kind
    bytes: int
    dtype: str = ""
    flops: int = 0
    repeated: int = 0
    unmasked: Fraction = Fraction(1)
    is_bound: bool = False

    @property
    def executed(self) -> int:
        """FLOPs that the device executes: without masked pairs."""
        return int(self.flops * self.unmasked)

    @property
    def model(self) -> int:
        """FLOPs that the model needs: without masked pairs and what is computed twice."""
        return int((self.flops - self.repeated) * self.unmasked)


def total_bytes(tensors: Sequence[Tensor | None]) -> int:
    """Return the bytes of these tensors together; None has none."""
    return sum(tensor.bytes for tensor in tensors if tensor is not None)
