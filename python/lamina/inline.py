"""Plain values with small tensors among them, whose bytes stand in the text: for what belongs to one rank alone."""

from __future__ import annotations

import base64
from typing import Any

import torch

from lamina import tensors, values
from lamina.errors import CorruptionError
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


def decode(node: values.Json) -> Any:
    """The value of a node that `encode` made; tensors are made anew in CPU memory."""
    if values.tag_of(node) != "$inline":
        return values.decode(node, decode)
    try:
        body = node["$inline"]
        data = bytearray(base64.b64decode(body["data"], validate=True))
        dtype = tensors.dtype_named(body["dtype"])
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return flat.view(dtype).reshape(body["shape"]).clone()
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CorruptionError(f"plain values in the checkpoint: a tensor is malformed: {error}") from error
