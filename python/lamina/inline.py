"""Plain values with small tensors among them, whose bytes stand in the text: for what belongs to one rank alone."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch

from lamina import tensors, values
from lamina.errors import CorruptionError, UnsupportedError
from lamina.names import Path, to_text


def encode(value: object, path: Path = ()) -> values.Json:
    """The node of a value; see `lamina.values.encode`. Tensors must be plain ones."""
    return values.encode(value, path, _leaf)


def _leaf(value: object, path: Path) -> values.Json | None:
    if not isinstance(value, torch.Tensor):
        return None
    tensors.check(value, to_text(path))
    data = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(data).decode("ascii")
    return {"$inline": {"dtype": tensors.dtype_name(value.dtype), "shape": list(value.shape), "data": text}}


def decode(node: values.Json, depth: int = 0) -> Any:
    """The value of a node that `encode` made; tensors are made anew in CPU memory."""
    if values.tag_of(node) != "$inline":
        return values.decode(node, lambda part: decode(part, depth + 1), depth)
    values.check_depth(depth)
    try:
        name, shape, text = values.fields_of(node["$inline"], "dtype", "shape", "data")
        data, dtype = bytearray(values.bytes_of(text)), tensors.dtype_named(name)
        if math.prod(values.extents_of(shape)) * dtype.itemsize != len(data):
            raise ValueError(f"shape {shape!r:.80} with {len(data)} bytes")
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return flat.view(dtype).reshape(shape).clone()
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        if isinstance(error, UnsupportedError):
            raise
        raise CorruptionError(f"plain values in the checkpoint: a tensor is malformed: {error}") from error
