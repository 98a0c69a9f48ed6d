"""How each kind of value that is more than plain is matched with the checkpoint: modules, optimizers, objects, and what is a rank's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from lamina import fsdp1, inline, modules, optimizer, tensors, values
from lamina.errors import CorruptionError
from lamina.matching import Lack, Last, Match
from lamina.names import Path, components, from_text, to_text
from lamina.per_rank import PerRank
from lamina.rng import Rng
from lamina.state import is_object
from lamina.values import Json


def _module(match: Match, body: Json, template: Any, path: Path) -> Any:
    if not isinstance(template, torch.nn.Module):
        return match.other_kind("a module", template, path)
    extra = _extra_of(match, path)
    by_hook: dict[str, Any] = {}  # what a hook made is put back by the module's own load_state_dict
    for item in modules.items_of(template):
        name = to_text((*path, *item.path))
        is_tensor = isinstance(item.value, torch.Tensor) and not item.is_extra
        if name not in (match.by_new_name if is_tensor else extra):
            match.problems.missing.append(name)
        elif is_tensor:
            target = item.value if item.is_own else by_hook.setdefault(item.key, item.value.detach().clone())
            match.targets.add(target, match.by_new_name[name], name)
        elif item.is_extra:
            match.later(Last.MODULE, functools.partial(item.owner.set_extra_state, inline.decode(extra.pop(name))))
        else:
            by_hook[item.key] = inline.decode(extra.pop(name))
    if by_hook:
        match.later(Last.MODULE, functools.partial(modules.put_back, template, by_hook))
    match.later(Last.MODULE, functools.partial(fsdp1.was_written, template))
    match.problems.unexpected += extra
    return template


def _saved_places(match: Match, kind: str, path: Path) -> Iterator[tuple[str, Json]]:
    """What each rank saved of a kind for the value at `path`, with the path it had."""
    for rank in sorted(match.places):
        for saved_path, record in match.places[rank][kind].items():
            if match.rename(saved_path) == to_text(path):
                yield saved_path, record


def _extra_of(match: Match, path: Path) -> dict[str, Json]:
    """By name, what the module at `path` had beside its tensors, on any rank."""
    found: dict[str, Json] = {}
    for saved_path, items in _saved_places(match, "modules", path):
        for name, node in items:
            found.setdefault(match.rename(to_text((*from_text(saved_path), *from_text(name)))), node)
    return found


def _optimizer(match: Match, body: Json, template: Any, path: Path) -> Any:
    if not isinstance(template, torch.optim.Optimizer):
        return match.other_kind("an optimizer", template, path)
    real, text = optimizer.unwrap(template, path), to_text(path)
    records = list(_saved_places(match, "optimizers", path))
    merged = {match.rename(name): settings for name, settings in optimizer.merge(records, match.targets.saved).items()}
    match.problems.slots_below.append(to_text((*path, "state")))
    if body["type"] != type(real).__qualname__:
        match.problems.missing.append(text)
        match.problems.explained.append(text)
        match.problems.notes.append(_other_class(text, real, body["type"], merged))
        return template
    found: dict[torch.Tensor, optimizer.Settings] = {}
    names = optimizer.names_of(real, path, match.names)
    for parameter, name in names.items():
        at = (*path, "state", *components(name))
        if name not in merged:
            match.problems.missing.append(to_text(at))
            continue
        found[parameter] = merged[name]
        slots = _slots(match, real.state.get(parameter, {}), merged[name], parameter, at)
        match.later(Last.OPTIMIZER, functools.partial(optimizer.put_slots, real, parameter, slots))
    optimizer.check_settings(real, found, text)
    match.problems.regrouped += [f"{text}: {line}" for line in optimizer.regrouped(real, names, found)]
    rest = {key: inline.decode(node) for key, node in values.items_of(records[0][1]["rest"])} if records else {}
    match.later(Last.OPTIMIZER, functools.partial(optimizer.put_settings, real, found))
    match.later(Last.OPTIMIZER, functools.partial(real.state.update, rest))
    return template


def _other_class(text: str, real: torch.optim.Optimizer, saved: Json, merged: Mapping[str, optimizer.Settings]) -> str:
    parts = [f"the template holds {type(real).__qualname__}"]
    if slots := next((list(there) for there in real.state.values() if isinstance(there, dict) and there), []):
        parts.append(f", which keeps {', '.join(map(str, slots))} of a parameter")
    parts.append(f"; the checkpoint holds the state of {saved}")
    if names := [name for name, settings in merged.items() if settings.slots]:
        slots = [slot for slot, _ in merged[names[0]].slots]
        such = f"{len(names)} parameters, such as {names[0]}" if len(names) > 1 else names[0]
        parts.append(f", which has {', '.join(map(str, slots))} of {such}")
    return (
        f"{text}: {''.join(parts)}. Make the template's optimizer {saved}; or let restore(strict=False) leave this one as it is "
        "and fill the rest."
    )


def _slots(match: Match, there: Mapping[Any, Any], settings: optimizer.Settings, parameter: torch.Tensor, path: Path) -> dict[Any, Any]:
    """The slots of one parameter: those of the optimizer where it has them, else new ones, not yet put into it."""
    slots: dict[Any, Any] = {}
    for slot, node in settings.slots:
        old, at = there.get(slot, Lack.NEW), (*path, slot)
        saved = match.targets.saved.get(node["$tensor"]) if values.mark_of(node) == "$tensor" else None
        if saved is not None and not isinstance(old, torch.Tensor):
            like = optimizer.is_placed_like(parameter, slot, saved.shape)
            old = tensors.make_like(parameter, tensors.dtype_named(saved.dtype)) if like else Lack.NEW if like is False else None
        if old is None and saved is not None:
            match.targets.used.add(saved.name)
            match.problems.other.append(
                f"{to_text(at)}: the optimizer lacks this slot of shape {list(saved.shape)}, and its place cannot be told from its sharded "
                f"parameter of shape {list(parameter.shape)}: let the optimizer make one step before the restore"
            )
            continue
        slots[slot] = match.slot(node, old, at)
    return slots


def _object(match: Match, body: Json, template: Any, path: Path) -> Any:
    if not is_object(template) or isinstance(template, (torch.nn.Module, torch.optim.Optimizer)):
        return match.other_kind(f"the state of a {body['type']}", template, path)
    state = match.as_object(body, template, path)
    match.later(Last.OBJECT, functools.partial(template.load_state_dict, state))
    return template


def _of_each_rank(match: Match, kind: str, path: Path) -> dict[int, Json]:
    found = {
        rank: node for rank, place in match.places.items() for saved, node in place[kind].items() if match.rename(saved) == to_text(path)
    }
    if len(found) != len(match.places):
        raise CorruptionError(f"{to_text(path)}: the checkpoint holds it for {len(found)} of {len(match.places)} ranks")
    return found


def _rng(match: Match, body: Json, template: Any, path: Path) -> Any:
    if not isinstance(template, Rng):
        return match.other_kind("random generators", template, path)
    saved = _of_each_rank(match, "rng", path)
    chosen = template.choose(to_text(path), saved, match.rank, match.rank_count)
    match.dropped += [f"{to_text(path)} of rank {rank}" for rank in sorted(saved) if rank >= match.rank_count]
    match.later(Last.GENERATOR, functools.partial(template.put_back, chosen))
    return template


def _per_rank(match: Match, body: Json, template: Any, path: Path) -> Any:
    if not isinstance(template, PerRank):
        return match.other_kind("a PerRank value", template, path)
    chosen = template.choose(to_text(path), _of_each_rank(match, "per_rank", path), match.rank, match.rank_count)
    match.later(Last.OBJECT, functools.partial(template.put_back, chosen))
    return template


RULES: Final[dict[str, Callable[[Match, Json, Any, Path], Any]]] = {
    "$module": _module,
    "$optimizer": _optimizer,
    "$object": _object,
    "$rng": _rng,
    "$per_rank": _per_rank,
}
