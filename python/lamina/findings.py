"""What checks of a machine and a root found, on one rank or on all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

LEVELS: Final = ("fail", "warn", "ok")  # worst first
_SAME_EVERYWHERE: Final = frozenset(("versions", "file-system"))
_NAMED_MAX: Final = 16


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check; docs/doctor.md has them all.
        level: "ok"; "warn": it works, but costs or endangers something; "fail": saves will fail.
        found: what it is like.
        expected: what it should be like; empty when `found` speaks for itself.
        advice: what to do about it; empty when nothing is to be done.
        badness: between ranks that found different figures, the larger one counts.
    """

    name: str
    level: str
    found: str
    expected: str = ""
    advice: str = ""
    badness: float = 0.0

    def __str__(self) -> str:
        expected = f"; expected {self.expected}" if self.expected and self.level != "ok" else ""
        return f"{self.found}{expected}" + (f"; {self.advice}" if self.advice else "")


@dataclasses.dataclass(frozen=True)
class Preflight:
    """What `lamina.preflight` found. As text: a table with one line a finding, failures first.

    Attributes:
        findings: the worst first.
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(finding.level != "fail" for finding in self.findings)

    def __str__(self) -> str:
        return table(self.findings)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings by level, in their order within each."""
    return tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))


def table(findings: Iterable[Finding]) -> str:
    """One line a finding, aligned, failures first.

    >>> print(table([Finding("clock", "ok", "0.01 s ahead"), Finding("space", "fail", "1 MB free", "3 MB or more", "free room")]))
    FAIL  space  1 MB free; expected 3 MB or more; free room
    ok    clock  0.01 s ahead
    """
    rows = worst_first(findings)
    width = max((len(finding.name) for finding in rows), default=0)
    return "\n".join(f"{_shown(finding.level):<4}  {finding.name:<{width}}  {finding}" for finding in rows)


def _shown(level: str) -> str:
    return level if level == "ok" else level.upper()


@dataclasses.dataclass(frozen=True)
class RankFindings:
    """What one rank found.

    Attributes:
        rank: of the process group.
        host: where it runs.
        findings: in the order of its checks.
    """

    rank: int
    host: str
    findings: tuple[Finding, ...]


def merged(ranks: Sequence[RankFindings]) -> tuple[Finding, ...]:
    """One finding a check: the worst of all ranks, which says where, when not all found the same."""
    names = dict.fromkeys(finding.name for rank in ranks for finding in rank.findings)
    return worst_first(_merged(name, ranks) for name in names)


def _merged(name: str, ranks: Sequence[RankFindings]) -> Finding:
    found = [(rank, finding) for rank in ranks for finding in rank.findings if finding.name == name]
    level = min((finding.level for _, finding in found), key=LEVELS.index)
    worst = max((finding for _, finding in found if finding.level == level), key=lambda finding: finding.badness)
    if worst.badness:
        alike = [rank for rank, finding in found if finding.level == level and finding.badness == worst.badness]
    else:
        alike = [rank for rank, finding in found if (finding.level, finding.found) == (level, worst.found)]
    if len(alike) == len(ranks):
        return worst
    text = f"{worst.found} ({_where(alike)})"
    if worst.badness or level != "ok":
        return dataclasses.replace(worst, found=text)
    others = dict.fromkeys(finding.found for _, finding in found if finding.found != worst.found)
    for other in others:
        text += f"; {other} ({_where([rank for rank, finding in found if finding.found == other])})"
    if name in _SAME_EVERYWHERE:
        return Finding(name, "warn", text, "the same on all ranks", "run the same software on, and mount the same storage at, all of them")
    return dataclasses.replace(worst, found=text)


def _where(ranks: Sequence[RankFindings]) -> str:
    """Names ranks and their hosts.

    >>> _where([RankFindings(0, "a", ()), RankFindings(3, "b", ())])
    'ranks 0, 3 on a, b'
    """
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    return f"rank{'s' if len(ranks) > 1 else ''} {_listed([str(rank.rank) for rank in ranks])} on {_listed(hosts)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
