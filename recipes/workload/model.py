"""A small but realistic vision-language-action model, the workload of the recipes.

An image encoder and text embeddings feed a transformer backbone; an action expert, conditioned on it by cross
attention, learns by flow matching the velocity from noise to the demonstrated actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the conventional name)
from torch.utils.checkpoint import checkpoint

from traceq.recipes.workload.attention import AttentionFunction, eager_attention
from traceq.recipes.workload.data import PADDING, Episodes, Sample

__all__ = [
    "SIZES",
    "Attention",
    "Block",
    "Size",
    "VisionLanguageAction",
    "prefix_mask",
    "set_options",
    "transformer_blocks",
]


@dataclass(frozen=True, slots=True)
class Tower:
    """A stack of transformer blocks. `hidden` is the width inside a block's MLP."""

    width: int
    depth: int
    heads: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of one model size. `weights` is the dtype of parameters; `autocast` computes in bfloat16 on CUDA.

    The weights of all sizes are float32, so that the optimizer updates float32 masters with float32 moments; another
    regime replaces `weights` (`recipes/workload/precision.py`). With `ragged` prompts the language tower attends under
    a mask (`prefix_mask`).
    """

    vision: Tower
    language: Tower
    action: Tower
    image_size: int
    patch_size: int
    vocabulary: int
    text_length: int = 16
    state_size: int = 14
    horizon: int = 16
    action_size: int = 14
    weights: torch.dtype = torch.float32
    autocast: bool = False
    cameras: int = 1
    ragged: bool = False

    def episodes(self, seed: int, rank: int) -> Episodes:
        """Return data with the shapes that the model reads."""
        return Episodes(
            image_size=self.image_size,
            text_length=self.text_length,
            vocabulary=self.vocabulary,
            state_size=self.state_size,
            horizon=self.horizon,
            action_size=self.action_size,
            seed=seed,
            rank=rank,
            cameras=self.cameras,
            ragged=self.ragged,
        )


SIZES = {
    "tiny": Size(Tower(96, 2, 4, 384), Tower(128, 3, 4, 512), Tower(96, 2, 4, 384), 64, 16, 1024),
    "small": Size(Tower(384, 6, 6, 1536), Tower(768, 8, 12, 3072), Tower(384, 6, 6, 1536), 224, 16, 32_000),
    "base": Size(
        Tower(768, 12, 12, 3072), Tower(1024, 24, 16, 4096), Tower(768, 12, 12, 3072), 224, 16, 32_000, autocast=True
    ),
    "3b": Size(
        Tower(1152, 27, 16, 4304),
        Tower(2048, 28, 16, 16_384),
        Tower(1024, 18, 16, 4096),
        224,
        14,
        100_000,
        text_length=48,
        horizon=50,
        autocast=True,
    ),
}


class Attention(nn.Module):
    """Multi-head attention over `context`, or self-attention without one; `attend` is the attention function."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend: AttentionFunction = F.scaled_dot_product_attention
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key_value = self.key_value(x if context is None else context)
        key, value = key_value.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = self.attend(query, key, value) if mask is None else self.attend(query, key, value, mask)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Pre-norm transformer block, with optional cross attention to a context, to which a mask then applies.

    `recomputes`: activation checkpointing, which recomputes the block in backward.
    """

    def __init__(self, tower: Tower, *, crosses: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(tower.width) for _ in range(3 if crosses else 2))
        self.attention = Attention(tower.width, tower.heads)
        self.cross = Attention(tower.width, tower.heads) if crosses else None
        self.mlp = nn.Sequential(nn.Linear(tower.width, tower.hidden), nn.GELU(), nn.Linear(tower.hidden, tower.width))
        self.recomputes = False

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if self.recomputes:
            out: Tensor = checkpoint(self._transformed, x, context, mask, use_reentrant=False)
            return out
        return self._transformed(x, context, mask)

    def _transformed(self, x: Tensor, context: Tensor | None, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.norms[0](x), None, mask if self.cross is None else None)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), context, mask)
        out: Tensor = x + self.mlp(self.norms[1](x))
        return out


def transformer_blocks(model: nn.Module) -> list[Block]:
    """Return all transformer blocks of a model, wrapped or not."""
    return [module for module in model.modules() if isinstance(module, Block)]


def set_options(model: nn.Module, *, attention: str = "sdpa", checkpointing: bool = False) -> None:
    """Set the attention function of all layers, `sdpa` or `eager`, and whether blocks recompute in backward."""
    for module in model.modules():
        if isinstance(module, Block):
            module.recomputes = checkpointing
        if isinstance(module, Attention) and attention == "eager":
            module.attend = eager_attention


def prefix_mask(text: Tensor, num_patches: int) -> tuple[Tensor, Tensor]:
    """Return (mask of the backbone's tokens bool[B, 1, N, N], of its context bool[B, 1, 1, N]): True where to attend.

    Block-causal: patches and text are a prefix whose tokens attend to each other; the robot's state follows and attends
    to all. Nothing attends to padding.
    """
    is_token = F.pad(F.pad(text != PADDING, (num_patches, 0), value=True), (0, 1), value=True)
    block = F.pad(torch.zeros_like(is_token[0, 1:], dtype=torch.int64), (0, 1), value=1)
    return is_token[:, None, None, :] & (block[:, None] >= block), is_token[:, None, None, :]


class VisionEncoder(nn.Module):
    """Images [B, 3, H, W] or [B, C, 3, H, W] -> a token per patch of all, [B, N, width of the language tower]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.vision.width
        self.patches = nn.Conv2d(3, width, size.patch_size, size.patch_size)
        self.position = nn.Parameter(torch.zeros(1, (size.image_size // size.patch_size) ** 2, width))
        self.camera = nn.Parameter(torch.zeros(1, size.cameras, 1, width)) if size.cameras > 1 else None
        self.blocks = nn.ModuleList(Block(size.vision) for _ in range(size.vision.depth))
        self.project = nn.Linear(width, size.language.width)

    def forward(self, image: Tensor) -> Tensor:
        views = image if self.camera is None else image.flatten(0, 1)
        x: Tensor = self.patches(views).flatten(2).transpose(1, 2) + self.position
        if self.camera is not None:
            x = (x.reshape(len(image), -1, *x.shape[1:]) + self.camera).flatten(0, 1)
        for block in self.blocks:
            x = block(x)
        tokens: Tensor = self.project(x)
        return tokens if self.camera is None else tokens.reshape(len(image), -1, tokens.shape[-1])


class Backbone(nn.Module):
    """Image tokens, text and robot state -> context, [B, N, width of the action tower]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.language.width
        self.text = nn.Embedding(size.vocabulary, width)
        self.state = nn.Linear(size.state_size, width)
        self.blocks = nn.ModuleList(Block(size.language) for _ in range(size.language.depth))
        self.project = nn.Linear(width, size.action.width)

    def forward(self, image_tokens: Tensor, text: Tensor, state: Tensor, mask: Tensor | None = None) -> Tensor:
        words = self.text(text if mask is None else text.clamp(min=0))
        x = torch.cat([image_tokens, words, self.state(state).unsqueeze(1)], dim=1)
        for block in self.blocks:
            x = block(x, None, mask)
        tokens: Tensor = self.project(x)
        return tokens


class ActionExpert(nn.Module):
    """Noisy actions [B, T, A] at time [B, 1, 1] -> velocity [B, T, A]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.action.width
        self.actions = nn.Linear(size.action_size, width)
        self.time = nn.Linear(1, width)
        self.blocks = nn.ModuleList(Block(size.action, crosses=True) for _ in range(size.action.depth))
        self.velocity = nn.Linear(width, size.action_size)

    def forward(self, noisy: Tensor, time: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.actions(noisy) + self.time(time)
        for block in self.blocks:
            x = block(x, context, mask)
        velocity: Tensor = self.velocity(x)
        return velocity


class VisionLanguageAction(nn.Module):
    """Batch -> flow-matching loss, the mean squared error of the velocity."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.vision = VisionEncoder(size)
        self.backbone = Backbone(size)
        self.expert = ActionExpert(size)
        self.ragged = size.ragged
        self.to(size.weights)

    def forward(self, batch: Sample) -> Tensor:
        dtype = self.expert.velocity.weight.dtype
        image, state, actions = (field.to(dtype) for field in (batch.image, batch.state, batch.actions))
        noise = torch.randn_like(actions)
        time = torch.rand(len(actions), 1, 1, device=actions.device, dtype=dtype)
        tokens = self.vision(image)
        mask, of_context = prefix_mask(batch.text, tokens.shape[1]) if self.ragged else (None, None)
        context = self.backbone(tokens, batch.text, state, mask)
        velocity = self.expert(time * noise + (1 - time) * actions, time, context, of_context)
        return F.mse_loss(velocity.float(), (noise - actions).float())
