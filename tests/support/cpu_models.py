"""Small models with every kind of contraction, each a training step on the CPU that torch can run at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["MODELS"]

Step = Callable[[], Tensor]
"""Computes a loss, whose backward pass is part of the step."""


def _module(module: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> Step:
    x = torch.randn(*shape, dtype=dtype).requires_grad_()
    module = module.to(dtype)
    return lambda: module(x).sum()


def _function(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Step:
    inputs = [torch.randn(*shape).requires_grad_() for shape in shapes]
    return lambda: function(*inputs).sum()


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.causal = heads, groups, causal
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width // heads * groups)

    def forward(self, x: Tensor) -> Tensor:
        b, s, width = x.shape
        q = self.q(x).view(b, s, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, s, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        each = self.heads // self.groups
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, s, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, *, causal: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = _Attention(width, heads, groups, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class _Transformer(nn.Module):
    def __init__(self, *, causal: bool, groups: int = 4, checkpoints: str = "") -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.blocks = nn.ModuleList(_Block(32, 4, groups, causal=causal) for _ in range(2))
        self.checkpoints = checkpoints

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            reentrant = self.checkpoints == "reentrant"
            x = checkpoint(block, x, use_reentrant=reentrant) if self.checkpoints else block(x)
        return self.head(x)


def _transformer(**options: object) -> Step:
    model, tokens = _Transformer(**options), torch.randint(0, 50, (2, 12))  # type: ignore[arg-type]
    return lambda: functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 6, 4, 2, 1), nn.ConvTranspose2d(6, 3, 4, 2, 1)
        self.middle = nn.Conv2d(6, 6, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(functional.relu(self.middle(self.down(x)))) + x


def _checkpointed_mlp(*, reentrant: bool) -> Step:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(3))
    x = torch.randn(5, 16).requires_grad_()

    def step() -> Tensor:
        y = x
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=reentrant)
        return y.sum()

    return step


def _mixture_of_experts() -> Step:
    router, experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    x = torch.randn(11, 8)

    def step() -> Tensor:
        chosen = router(x).argmax(1)
        return sum((expert(x[chosen == index]).sum() for index, expert in enumerate(experts)), x.new_zeros(()))

    return step


def _autocast() -> Step:
    mlp, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(6, 16)

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return mlp(x).float().sum()

    return step


MODELS: dict[str, Callable[[], Step]] = {
    "linear": lambda: _module(nn.Linear(7, 5), 3, 7),
    "linear of three dimensions": lambda: _module(nn.Linear(7, 5, bias=False), 2, 3, 7),
    "mlp": lambda: _module(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), 6, 8),
    "mlp in bfloat16": lambda: _module(
        nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), 6, 8, dtype=torch.bfloat16
    ),
    "mlp under autocast": _autocast,
    "bmm": lambda: _function(torch.bmm, (3, 4, 5), (3, 5, 6)),
    "baddbmm": lambda: _function(torch.baddbmm, (3, 4, 6), (3, 4, 5), (3, 5, 6)),
    "matmul with broadcast": lambda: _function(torch.matmul, (2, 1, 4, 5), (3, 5, 6)),
    "einsum": lambda: _function(lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 5)),
    "convolution 1d": lambda: _module(nn.Conv1d(4, 6, 3, stride=2, padding=1), 2, 4, 15),
    "convolution 2d": lambda: _module(nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=1), 2, 3, 11, 9),
    "convolution 2d with dilation": lambda: _module(nn.Conv2d(4, 4, 3, dilation=2, bias=False), 2, 4, 12, 12),
    "convolution 3d": lambda: _module(nn.Conv3d(2, 3, 3, padding=1), 1, 2, 5, 6, 7),
    "convolution of groups, forward": lambda: _without_gradient(nn.Conv2d(8, 12, 3, groups=4), 2, 8, 9, 9),
    "depthwise convolution, forward": lambda: _without_gradient(nn.Conv2d(8, 8, 3, padding=1, groups=8), 2, 8, 9, 9),
    "transposed convolution": lambda: _module(nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), 2, 4, 5, 5),
    "transposed convolution 1d": lambda: _module(nn.ConvTranspose1d(4, 3, 4, stride=3), 2, 4, 9),
    "residual block": lambda: _module(_Residual(), 2, 8, 10, 10),
    "encoder and decoder of convolutions": lambda: _module(_UNet(), 2, 3, 16, 16),
    "classifier of images": lambda: _module(
        nn.Sequential(nn.Conv2d(3, 8, 3, 2), _Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
        2,
        3,
        17,
        17,
    ),
    "attention": lambda: _module(_Attention(32, 4, 4, causal=False), 2, 12, 32),
    "causal attention": lambda: _module(_Attention(32, 4, 4, causal=True), 2, 12, 32),
    "attention with grouped heads": lambda: _module(_Attention(32, 4, 2, causal=True), 2, 12, 32),
    "encoder layer of torch": lambda: _module(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0), 2, 5, 16),
    "encoder": lambda: _transformer(causal=False),
    "GPT": lambda: _transformer(causal=True),
    "GPT with grouped heads": lambda: _transformer(causal=True, groups=2),
    "GPT with checkpoints": lambda: _transformer(causal=True, checkpoints="non-reentrant"),
    "GPT with reentrant checkpoints": lambda: _transformer(causal=True, checkpoints="reentrant"),
    "mlp with checkpoints": lambda: _checkpointed_mlp(reentrant=False),
    "mlp with reentrant checkpoints": lambda: _checkpointed_mlp(reentrant=True),
    "mixture of experts": _mixture_of_experts,
}
"""What builds each model, by its name."""


def _without_gradient(module: nn.Module, *shape: int) -> Step:
    x = torch.randn(*shape)

    def step() -> Tensor:
        with torch.no_grad():
            y = module(x)
        return y.sum().requires_grad_()

    return step
