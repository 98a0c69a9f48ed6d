"""A small GPT in plain PyTorch, 12.6 million parameters, and how to lay it over a mesh of ranks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@dataclass(frozen=True)
class GptConfig:
    """Sizes of the model; the vocabulary is the 256 bytes and one token that ends a file."""

    vocabulary: int = 257
    context: int = 64
    width: int = 384
    heads: int = 6
    layers: int = 7


class Attention(nn.Module):
    """Causal self-attention. Under tensor parallelism each rank holds some of the heads, so their number is read off the activations."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (f(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """One layer: attention, then a feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Tokens of shape (batch, time) to logits of shape (batch, time, vocabulary)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(self._start)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def lay_out(model: Gpt, mesh: DeviceMesh) -> Gpt:
    """Shards the model in place: over "tp" by heads and hidden units where the mesh has that axis, then over "dp" with FSDP2."""
    split_heads = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")} | {"attention.out": RowwiseParallel()}
    split_hidden = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model.layers:
        if "tp" in mesh.mesh_dim_names:
            parallelize_module(layer, mesh["tp"], split_heads | split_hidden)
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])
