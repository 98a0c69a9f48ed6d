"""What does not fit between a checkpoint and a template, gathered over all ranks and told in one message."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

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
        notes: lines that explain some of the above.
    """

    missing: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    shape: list[str] = dataclasses.field(default_factory=list)
    dtype: list[str] = dataclasses.field(default_factory=list)
    other: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def is_fatal(self, strict: bool) -> bool:
        """Whether the restore must not go on."""
        return bool(self.shape or self.dtype or self.other or (strict and (self.missing or self.unexpected)))

    def message(self, step: int, strict: bool) -> str:
        """All of it, one line each, with the nearest names."""
        lines = [f"step {step} does not fit the state:"]
        if strict:
            lines += _with_nearest("missing in the checkpoint", self.missing, self.unexpected)
            lines += _with_nearest("unexpected in the checkpoint", self.unexpected, self.missing)
        lines += [f"  other shape: {line}" for line in self.shape]
        lines += [f"  other dtype: {line}" for line in self.dtype]
        lines += [f"  {line}" for line in self.other + self.notes]
        if strict and {_bare(name) for name in self.missing} & {_bare(name) for name in self.unexpected}:
            lines.append(
                "  Names would match without wrapper prefixes or with keys split at dots: hand over the module itself, "
                "not its state_dict(), or give restore(rename=...)."
            )
        elif strict and (self.missing or self.unexpected):
            lines.append("  To restore only what both have, use restore(strict=False); for other names, restore(rename=...).")
        if any(_NUMBERED_SLOT.search(name) for name in self.unexpected):
            lines.append("  An optimizer makes the slots that it lacks when it is handed over itself, not as its state_dict().")
        if self.shape:
            lines.append("  To leave out what has another shape, give it a name of its own: restore(strict=False, rename={...}).")
        if self.dtype:
            lines.append("  To have values rounded to the template's dtype, use restore(cast=True).")
        return "\n".join(lines)


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


def _with_nearest(what: str, names: Sequence[str], others: Sequence[str]) -> list[str]:
    compare = len(names) * len(others) <= _PAIRS_MAX
    like = {name: nearest(name, others) if compare else None for name in names}
    return [f"  {what}: {name}" + (f" (nearest: {like[name]})" if like[name] else "") for name in names]


def _bare(name: str) -> str:
    return ".".join(part for part in name.replace('"', "").split(".") if part not in _WRAPPERS)
