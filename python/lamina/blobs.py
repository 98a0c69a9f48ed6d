"""The plain values of one rank as the texts that the core stores beside the tensors."""

from __future__ import annotations

from typing import Final

from lamina import inline, values
from lamina.errors import ResourceExhaustedError
from lamina.names import Path, to_text
from lamina.state import Capture
from lamina.values import Json

_BYTES_MAX: Final = 1 << 30  # of one text; readers take a larger one for damage


def blobs_of(captured: Capture, metadata: object) -> dict[str, bytes]:
    """The texts by name.

    Args:
        captured: the state.
        metadata: a plain value, or None for none.

    Raises:
        ResourceExhaustedError: a text is longer than a step can hold; names the largest part.
        UnsupportedError: metadata of a type without a rule.
    """
    blobs = {
        "tree": _text("the state", captured.tree, _parts(captured.tree, ())),
        "place": _text("this rank", captured.place, [part for kind in captured.place.values() for part in kind.items()]),
    }
    if metadata is not None:
        node = inline.encode(metadata, ("metadata",))
        blobs["metadata"] = _text("the metadata", node, _parts(node, ("metadata",)))
    return blobs


def _parts(node: Json, path: Path) -> list[tuple[str, Json]]:
    """What a mapping holds, by its names; of all else the node itself."""
    if values.tag_of(node) != "$dict":
        return [(to_text(path), node)]
    return [(to_text((*path, key)), part) for key, part in values.items_of(node["$dict"])]


def _text(whose: str, node: Json, parts: list[tuple[str, Json]]) -> bytes:
    text = values.dumps(node)
    if len(text) <= _BYTES_MAX:
        return text
    bytes_max, name = max((len(values.dumps(part)), name) for name, part in parts)
    raise ResourceExhaustedError(
        f"the plain values of {whose} take {len(text)} bytes as text, {bytes_max} of them {name}; a step can hold {_BYTES_MAX}: "
        "hand large arrays over as tensors"
    )
