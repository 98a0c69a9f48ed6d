"""What does not fit between a checkpoint and a template, gathered over all ranks and told in one message."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from lamina.names import below, components, is_below, to_text

_WRAPPERS: Final = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_NUMBERED_SLOT: Final = re.compile(r"\bstate\[\d+\]\.")
_PAIRS_MAX: Final = 1_000_000  # of names that are compared for likeness


@dataclasses.dataclass
class Problems:
    """Names and lines of what does not fit.

    Attributes:
        missing: names that the template has and the checkpoint lacks.
        unexpected: names that the checkpoint has and the template lacks.
        shape: lines on entries of another shape.
        dtype: lines on entries of another dtype.
        other: lines on what else cannot be restored.
        regrouped: lines on parameters of one group that the template has in several; a lax restore passes over them.
        notes: lines that explain some of the above.
        explained: paths of which another line tells all; what is missing or unexpected there is not listed once more.
        slots_below: paths of optimizers' state: an entry below is a slot of a parameter.
    """

    missing: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    shape: list[str] = dataclasses.field(default_factory=list)
    dtype: list[str] = dataclasses.field(default_factory=list)
    other: list[str] = dataclasses.field(default_factory=list)
    regrouped: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    explained: list[str] = dataclasses.field(default_factory=list)
    slots_below: list[str] = dataclasses.field(default_factory=list)

    def is_fatal(self, strict: bool) -> bool:
        """Whether the restore must not go on."""
        return bool(self.shape or self.dtype or self.other or (strict and (self.missing or self.unexpected or self.regrouped)))

    def message(self, step: int, strict: bool) -> str:
        """All of it, one line each, with the nearest names."""
        lines = [f"step {step} does not fit the state:"]
        missing, unexpected = self._unexplained(self.missing), self._by_parameter()
        like = _nearest_of(missing, unexpected) if strict else {}
        if strict:
            lines += _listed("missing in the checkpoint", dict.fromkeys(missing, ()), like)
            lines += _listed("unexpected in the checkpoint", unexpected, _nearest_of(unexpected, missing))
        lines += [f"  other shape: {line}" for line in self.shape]
        lines += [f"  other dtype: {line}" for line in self.dtype]
        lines += [f"  {line}" for line in self.other + (self.regrouped if strict else []) + self.notes]
        if strict and {_bare(name) for name in self.missing} & {_bare(name) for name in self.unexpected}:
            lines.append(
                "  Names would match without wrapper prefixes or with keys split at dots: hand over the module itself, "
                "not its state_dict(), or give restore(rename=...)."
            )
        elif strict and (missing or unexpected):
            lines.append(
                f"  To restore only what both have, use restore(strict=False); for other names, restore(rename={self._example(like)})."
            )
        if any(_NUMBERED_SLOT.search(name) for name in self.unexpected):
            lines.append("  An optimizer makes the slots that it lacks when it is handed over itself, not as its state_dict().")
        if self.shape:
            lines.append("  To leave out what has another shape, give it a name of its own: restore(strict=False, rename={...}).")
        if self.dtype:
            lines.append("  To have values rounded to the template's dtype, use restore(cast=True).")
        return "\n".join(lines)

    def _unexplained(self, names: Sequence[str]) -> list[str]:
        explained = set(self.explained)
        ordered = sorted({*names, *explained})
        told: set[str] = set()
        for path in sorted(explained, key=len):
            if path not in told:  # else a shorter one has told of all below it
                told.update(below(ordered, path))
        return [name for name in names if name not in told and name not in explained]

    def _by_parameter(self) -> dict[str, list[str]]:
        """What is unexpected, but in the place of slots their parameter, with the slots; the others have none."""
        found: dict[str, list[str]] = {}
        for name in self._unexplained(self.unexpected):
            path = components(name) if any(is_below(name, above) for above in self.slots_below) else (name,)
            if len(path) > 1:
                found.setdefault(to_text(path[:-1]), []).append(to_text(path[-1:]))
            else:
                found[name] = []
        return found

    def _example(self, like: Mapping[str, str]) -> str:
        """A rename that gives the first name what is nearest to it, and all with it that differ in the same components. The state of
        optimizers goes with the names of parameters."""
        pairs = [pair for pair in like.items() if not any(is_below(name, above) for name in pair for above in self.slots_below)]
        if not pairs:
            return "..."
        new, old = map(components, pairs[0])
        while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
            old, new = old[:-1], new[:-1]
        return json.dumps({to_text(old): to_text(new)}, ensure_ascii=False)


def combine(ranks: Sequence[Problems]) -> Problems:
    """The problems of a job: all that any rank found, but as unexpected only what no rank has a place for."""
    wanted = [set(each.unexpected) for each in ranks]
    unexpected = [name for name in ranks[0].unexpected if all(name in names for names in wanted)]
    fields = {
        field.name: list(dict.fromkeys(line for each in ranks for line in getattr(each, field.name)))
        for field in dataclasses.fields(Problems)
    }
    return Problems(**{**fields, "unexpected": unexpected})


def nearest(name: str, others: Iterable[str]) -> str | None:
    """The one of `others` that is most like `name`; None when none is much like it."""
    found = difflib.get_close_matches(name, others, n=1)
    return found[0] if found else None


def _nearest_of(names: Collection[str], others: Collection[str]) -> dict[str, str]:
    if len(names) * len(others) > _PAIRS_MAX:
        return {}
    return {name: like for name in names if (like := nearest(name, others)) is not None}


def _listed(what: str, names: Mapping[str, Sequence[str]], like: Mapping[str, str]) -> list[str]:
    return [
        f"  {what}: {name}" + (f": {', '.join(slots)}" if slots else "") + (f" (nearest: {like[name]})" if name in like else "")
        for name, slots in names.items()
    ]


def _bare(name: str) -> str:
    return ".".join(part for part in name.replace('"', "").split(".") if part not in _WRAPPERS)
