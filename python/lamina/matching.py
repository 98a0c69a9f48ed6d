"""A checkpoint against a template state: what goes where, and what does not fit. Nothing of the template is touched before `finish`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias

import torch

from lamina import tensors, values
from lamina.errors import CorruptionError
from lamina.mismatch import Problems
from lamina.names import Path, below, from_text, is_below, to_text
from lamina.per_rank import PerRank
from lamina.rng import Rng
from lamina.state import Capture, is_object
from lamina.targets import Saved, Targets
from lamina.values import Json

Rename: TypeAlias = "Callable[[str], str] | Mapping[str, str] | None"

_MORE_TYPES: Final = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, Rng, PerRank)


class Lack(enum.Enum):
    """Why there is no template for a value."""

    ABSENT = enum.auto()  # a mapping lacks the key: a tensor here is unexpected
    NEW = enum.auto()  # its container is made anew: a tensor here is made too


class Last(enum.IntEnum):
    """The order in which `finish` puts back what is no raw bytes. Generators come last, since all else may draw from them."""

    MODULE = 0
    OPTIMIZER = 1
    OBJECT = 2
    GENERATOR = 3


def renamer(rename: Rename) -> Callable[[str], str]:
    """The function from the checkpoint's names to the template's. In a mapping, a key also stands for all names below it."""
    if rename is None:
        return lambda name: name
    if callable(rename):
        return rename
    longest_first = sorted(rename.items(), key=lambda item: -len(item[0]))

    def apply(name: str) -> str:
        for old, new in longest_first:
            if is_below(name, old):
                return new + name[len(old) :]
        return name

    return apply


def _kind_of(tag: str | None) -> str:
    return "a mapping" if tag in ("$dict", "$ordered") else (tag or "a plain value").lstrip("$")


def _advice(found: str, template: Any) -> str:
    """For the habit of handing over a `state_dict()`."""
    takes_mapping = found == "a mapping" and isinstance(template, (torch.nn.Module, torch.optim.Optimizer))
    if takes_mapping or (found in ("a module", "an optimizer") and isinstance(template, Mapping)):
        return ": hand over the object itself, not its state_dict(), in save and in restore"
    return ""


class Match:
    """The checkpoint's entries and values matched with a template state on one rank.

    Args:
        state: the template.
        entries: of the checkpoint.
        tree: the node of its plain values.
        places: what each rank saved as its own, by rank.
        rank: this rank.
        rank_count: of this job.
        cast: whether a value may be rounded to the template's dtype.
        rename: from the checkpoint's names to the template's.
        holds: whether the checkpoint has as many bytes of an entry as its shape claims; asked before memory is taken for it.

    Attributes:
        problems: what does not fit.
        targets: what to fill.
        dropped: generators of ranks that are gone.
        rename: the function from the checkpoint's names to the template's.
        by_new_name: the checkpoint's entries by the template's names.
        names: of the template's tensors, by their ids.
    """

    def __init__(
        self,
        state: MutableMapping[Any, Any],
        entries: Iterable[Saved],
        tree: Json,
        places: Mapping[int, Json],
        rank: int,
        rank_count: int,
        cast: bool = False,
        rename: Rename = None,
        holds: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.problems = Problems()
        self.targets = Targets(entries, cast, self.problems)
        self.dropped: list[str] = []
        self._holds = holds
        self._made: dict[str, torch.Tensor | None] = {}
        self._made_at: dict[str, Path] = {}
        self.places, self.rank, self.rank_count = places, rank, rank_count
        self.rename = renamer(rename)
        self.by_new_name = {self.rename(name): entry for name, entry in self.targets.saved.items()}
        self._new_names = sorted(self.by_new_name)
        template = Capture(state)
        self.names = template.names()
        self._template_names = list(template.entries)
        self._state = state
        self._making = False
        self._outside = 0  # components of the path in front of the container that depth is counted from
        self._last: list[tuple[Last, Callable[[], object]]] = []
        if values.tag_of(tree) != "$dict":
            raise CorruptionError("the checkpoint's tree of values is no mapping")
        self._values = self._mapping(tree["$dict"], state, ())
        self.problems.unexpected += [name for name, entry in self.by_new_name.items() if entry.name not in self.targets.used]

    def later(self, order: Last, call: Callable[[], object]) -> None:
        """Has `finish` call `call`."""
        self._last.append((order, call))

    def finish(self) -> None:
        """Puts back all else, after the core has filled the targets."""
        self.targets.finish()
        for key, value in self._values.items():
            old = self._state.get(key)
            new = values.assign(old, value)
            if new is not old or key not in self._state:
                self._state[key] = new
        for _, call in sorted(self._last, key=lambda item: item[0]):
            call()

    def value(self, node: Json, template: Any, path: Path) -> Any:
        """What stands at `path` after the restore: the template's own object where it is filled in place. `Lack.ABSENT`: nothing."""
        values.check_depth(len(path) - self._outside)
        mark, tag = values.mark_of(node), values.tag_of(node)
        if mark == "$tensor":
            return self._tensor(node[mark], template, path)
        if mark is not None:
            return self._more(mark, node[mark], template, path)
        if isinstance(template, _MORE_TYPES) or (is_object(template) and not self._making):
            return self.other_kind(_kind_of(tag), template, path)
        if tag in ("$dict", "$ordered"):
            return self._dict(node, template, path)
        return self._container(node, template, path)

    def other_kind(self, found: str, template: Any, path: Path) -> Any:
        """Notes that checkpoint and template differ in kind."""
        if template is not Lack.ABSENT:
            kind = "no such thing" if template is Lack.NEW else f"a {type(template).__qualname__}"
            self.problems.explained.append(to_text(path))
            self.problems.other.append(f"{to_text(path)}: the checkpoint holds {found}, the template {kind}{_advice(found, template)}")
        return template

    def _more(self, tag: str, body: Json, template: Any, path: Path) -> Any:
        # Imported late, since these know this module.
        from lamina import match_parts

        return match_parts.RULES[tag](self, body, template, path)

    def as_object(self, body: Json, template: Any, path: Path) -> Any:
        """The state of an object: its tensors are made anew, placed like those of the template's own state."""
        before, self._making = self._making, True
        state = self.value(body["state"], template.state_dict(), path)
        self._making = before
        return state

    def slot(self, node: Json, template: Any, path: Path) -> Any:
        """What stands in a slot of an optimizer, whose nesting counts from there."""
        before, self._outside = self._outside, len(path)
        found = self.value(node, template, path)
        self._outside = before
        return found

    def _dict(self, node: Json, template: Any, path: Path) -> Any:
        tag = values.tag_of(node)
        found = self._mapping(node[tag], template if isinstance(template, (dict, Lack)) else Lack.NEW, path)
        if template is Lack.ABSENT and not found and node[tag]:
            return Lack.ABSENT
        made = values.decode({tag: []})
        made.update(found)
        return made

    def _mapping(self, body: Json, template: Any, path: Path) -> dict[Any, Any]:
        nodes = {self._renamed_key(path, key): node for key, node in values.items_of(body)}
        there = template if isinstance(template, Mapping) else {}
        lack = Lack.NEW if template is Lack.NEW or self._making else Lack.ABSENT
        found: dict[Any, Any] = {}
        for key, node in nodes.items():
            if key not in there and not path:
                self._unexpected_at_top(key)
                continue
            value = self.value(node, there.get(key, lack), (*path, key))
            if value is not Lack.ABSENT:
                found[key] = value
        if not self._making:
            found.update({key: value for key, value in there.items() if key not in nodes and self._stays(value, (*path, key))})
        return found

    def _container(self, node: Json, template: Any, path: Path) -> Any:
        """A list or another container, as a whole; tensors in lists and tuples of the same length keep their places."""
        tag = values.tag_of(node)
        alike = tag in ("$list", "$tuple") and isinstance(template, (list, tuple)) and len(template) == len(values.parts_of(node[tag]))
        parts: list[Any] = []

        def inner(part: Json) -> Any:
            at = len(parts)
            beside = template[at] if alike else Lack.ABSENT if template is Lack.ABSENT else Lack.NEW
            parts.append(self.value(part, beside, (*path, at)))
            return parts[-1]

        value = values.decode(node, inner)
        return Lack.ABSENT if any(part is Lack.ABSENT for part in parts) else value

    def _renamed_key(self, path: Path, key: Any) -> Any:
        old = to_text((*path, key))
        new = self.rename(old)
        if new == old:
            return key
        moved = from_text(new)
        if moved[:-1] != path:
            self.problems.other.append(f"{old}: rename puts it at {new}, outside of the mapping that holds it")
            return key
        return moved[-1]

    def _unexpected_at_top(self, key: Any) -> None:
        text = to_text((key,))
        if text not in self.by_new_name and not below(self._new_names, text):
            self.problems.unexpected.append(text)

    def _stays(self, value: Any, path: Path) -> bool:
        """Notes what the checkpoint lacks of a part of the template. A plain value below the top goes, as its mapping is restored whole."""
        text = to_text(path)
        there = [name for name in self._template_names if is_below(name, text)]
        if not there and not _holds_more(value) and len(path) > 1:
            return False
        self.problems.missing += there or [text]
        return True

    def _tensor(self, name: Json, template: Any, path: Path) -> Any:
        saved = self.targets.saved.get(name) if isinstance(name, str) else None
        if saved is None:
            raise CorruptionError(f"{to_text(path)}: the checkpoint's values name an entry {name!r} that it does not hold")
        if template is Lack.ABSENT:
            return template
        if isinstance(template, torch.Tensor) and self._making:
            template = tensors.make_like(template, tensors.dtype_named(saved.dtype)) if tuple(template.shape) == saved.shape else Lack.NEW
        if isinstance(template, _MORE_TYPES[1:]):
            return self.other_kind("a tensor", template, path)
        if not isinstance(template, torch.Tensor):
            return self.made(saved, path)
        self.targets.add(template, saved, to_text(path))
        return template

    def made(self, saved: Saved, path: Path) -> torch.Tensor | None:
        """Memory for an entry that the template has none for; aliases share it, as they did. None where the checkpoint is damaged, which
        the session tells when it fills.

        Raises:
            CorruptionError: the values name the entry in two places.
        """
        memory = saved.alias_of or saved.name
        if self._made_at.setdefault(saved.name, path) != path:
            first = to_text(self._made_at[saved.name])
            raise CorruptionError(f"{to_text(path)}: the checkpoint's values name the entry {saved.name!r} here and at {first}")
        if memory not in self._made:
            self._made[memory] = torch.zeros(saved.shape, dtype=tensors.dtype_named(saved.dtype)) if self._holds(memory) else None
            if (tensor := self._made[memory]) is not None:
                self.targets.add(tensor, saved, to_text(path))
        self.targets.used.add(saved.name)
        return self._made[memory]


def _holds_more(value: object) -> bool:
    """Whether there is more than plain values in it."""
    if isinstance(value, Mapping):
        return any(map(_holds_more, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_more, value))
    return isinstance(value, _MORE_TYPES) or is_object(value)
