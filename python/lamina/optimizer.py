"""Optimizers by parameter name: slots are read from and written to `optimizer.state` itself, settings go per parameter.

Neither `state_dict()` nor `load_state_dict()` of the optimizer is called: the one numbers parameters, the other casts moments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from lamina import fsdp1, inline, tensors, values
from lamina.errors import InvalidArgumentError, MismatchError, UnsupportedError
from lamina.names import Path, components, from_text, to_text
from lamina.values import Json

# How a step is computed, not what it computes: a restore leaves these as the caller set them.
_HOW: Final = frozenset(("foreach", "fused", "capturable", "differentiable"))
NOT_OPTIONS: Final = frozenset(("params", "param_names"))

Add = Callable[[Path, torch.Tensor], Json]


def unwrap(optimizer: torch.optim.Optimizer, path: Path) -> torch.optim.Optimizer:
    """The optimizer inside wrappers that are optimizers themselves.

    Raises:
        UnsupportedError: an optimizer that has another one inside, with the moments in that one's state and not in its own.
    """
    while (inside := _inside(optimizer)) is not None:
        optimizer = inside
    for attribute, value in vars(optimizer).items():
        if isinstance(value, torch.optim.Optimizer) and value.state is not optimizer.state:
            name = type(optimizer).__qualname__
            advice = f"hand over the optimizer in its attribute {attribute}"
            if name == "ZeroRedundancyOptimizer":
                advice = "use a plain optimizer, or shard the module with torch.distributed.fsdp.fully_shard"
            raise UnsupportedError(f"{to_text(path)} is a {name}, which keeps the moments in another optimizer inside: {advice}")
    return optimizer


def _inside(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    if isinstance(inside := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        return inside
    inside = getattr(optimizer, "optim", None)  # of PostLocalSGDOptimizer, whose state is that one's
    return inside if isinstance(inside, torch.optim.Optimizer) and inside.state is optimizer.state else None


def names_of(optimizer: torch.optim.Optimizer, path: Path, names: Mapping[int, str]) -> dict[torch.Tensor, str]:
    """The name of each parameter, in the order of the groups.

    Args:
        optimizer: whose parameters.
        path: where it stands.
        names: of the state's tensors, by their ids.

    Raises:
        InvalidArgumentError: a parameter that stands nowhere else in the state and was not given with a name.
        UnsupportedError: a parameter of FullyShardedDataParallel, whose state is cut as the flat parameter is.
    """
    found: dict[torch.Tensor, str] = {}
    for ordinal, group in enumerate(optimizer.param_groups):
        given = group.get("param_names") or [None] * len(group["params"])
        for at, (parameter, own) in enumerate(zip(group["params"], given)):
            if fsdp1.is_flattened(parameter):
                raise UnsupportedError(
                    f"{to_text(path)} is an optimizer of the flattened parameters of a FullyShardedDataParallel, which is not supported: "
                    "shard with torch.distributed.fsdp.fully_shard, or save the module alone"
                )
            name = names.get(id(parameter)) or own
            if name is None:
                raise InvalidArgumentError(
                    f"{to_text(path)}: parameter {at} of group {ordinal}, of shape {tuple(parameter.shape)}, has no name: put the module "
                    "(or a mapping) that holds it into the same state, or make the optimizer from named_parameters()"
                )
            found[parameter] = name
    return found


def encode(optimizer: torch.optim.Optimizer, path: Path, names: Mapping[int, str], add: Add) -> Json:
    """The node of the optimizer's settings and of the slots that are no tensors. Tensors go to `add`; their names tell where they belong.

    Of a sharded parameter only the first rank of its mesh writes the settings down, since all have the same.
    """
    named = names_of(optimizer, path, names)
    groups = [
        {"options": _encode_options(group, path), "params": [named[each] for each in group["params"] if _is_told_here(each)]}
        for group in optimizer.param_groups
    ]
    slots: list[Json] = []
    for parameter, name in named.items():
        other = _encode_slots(optimizer.state.get(parameter, {}), (*path, "state", *components(name)), add)
        if other and _is_told_here(parameter):
            slots.append([name, other])
    rest = [
        [values.encode(key), inline.encode(part, (*path, "state"))]
        for key, part in optimizer.state.items()
        if not isinstance(key, torch.Tensor)
    ]
    return {"groups": groups, "slots": slots, "rest": rest}


def _is_told_here(parameter: Any) -> bool:
    return not tensors.is_dtensor(parameter) or not any(parameter.device_mesh.get_coordinate() or (1,))


def _encode_options(group: Mapping[str, Any], path: Path) -> Json:
    return [[key, inline.encode(value, (*path, key))] for key, value in sorted(group.items()) if key not in NOT_OPTIONS]


def _encode_slots(slots: Mapping[Any, Any], path: Path, add: Add) -> Json:
    """Hands over the slots that are tensors, and returns pairs of key and node of the others."""

    def leaf(value: object, at: Path) -> Json | None:
        return add(at, value) if isinstance(value, torch.Tensor) else None

    others = []
    for slot, value in slots.items():
        if isinstance(value, torch.Tensor):
            add((*path, slot), value)
        else:
            others.append([values.encode(slot), values.encode(value, (*path, slot), leaf)])
    return others


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a checkpoint says of one parameter.

    Attributes:
        record: which of the ranks' records says so.
        group: the ordinal of its group in there.
        options: the node of the group's options.
        slots: pairs of slot key and node.
    """

    record: int
    group: int
    options: Json
    slots: list[tuple[Any, Json]]


def merge(saved: Iterable[tuple[str, Json]], entries: Iterable[str]) -> dict[str, Settings]:
    """The settings by parameter name that all ranks saved; of several ranks with one parameter, the first counts.

    Args:
        saved: of each rank, the optimizer's path and node.
        entries: the names of all entries of the checkpoint.
    """
    merged: dict[str, Settings] = {}
    of_path: dict[str, dict[Path, dict[Any, Json]]] = {}
    for record, (text, node) in enumerate(saved):
        if text not in of_path:
            of_path[text] = _tensor_slots((*from_text(text), "state"), entries)
        others = {name: values.items_of(pairs) for name, pairs in node["slots"]}
        for ordinal, group in enumerate(node["groups"]):
            for name in group["params"]:
                slots = [*of_path[text].get(components(name), {}).items(), *others.get(name, [])]
                merged.setdefault(name, Settings(record, ordinal, group["options"], slots))
    return merged


def _tensor_slots(above: Path, entries: Iterable[str]) -> dict[Path, dict[Any, Json]]:
    """By parameter, the nodes of its slots that are tensors: those whose names are `above`, the parameter's, and the slot's."""
    found: dict[Path, dict[Any, Json]] = {}
    text = to_text(above)
    for name in entries:
        if name.startswith(text):
            path = components(name)  # an entry of another root may have a name that is no path
            if path[: len(above)] == above:
                found.setdefault(path[len(above) : -1], {})[path[-1]] = {"$tensor": name}
    return found


def is_placed_like(parameter: torch.Tensor, slot: Any, shape: tuple[int, ...]) -> bool | None:
    """Whether a slot that the optimizer does not have yet lies as its parameter does, and is no plain tensor.

    Returns:
        None where that cannot be known: the parameter is sharded, and the slot of another shape.
    """
    if tuple(parameter.shape) == shape and slot != "step":
        return True
    return None if tensors.is_dtensor(parameter) and shape else False


def put_slots(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, slots: Mapping[Any, Any]) -> None:
    """Makes `slots` the parameter's state, in place; without slots it has none."""
    if slots:
        there = optimizer.state[parameter]
        there.clear()
        there.update(slots)
    else:
        optimizer.state.pop(parameter, None)


def put_settings(optimizer: torch.optim.Optimizer, settings: Mapping[torch.Tensor, Settings]) -> None:
    """Gives each parameter the options it was saved with. A group whose parameters differ in them is split, in the saved order.

    A parameter without saved options goes with those of its group that have some, so that schedulers find as many groups as before.
    """
    optimizer.param_groups[:] = [part for group in optimizer.param_groups for part in _split(group, settings)]


def check_settings(optimizer: torch.optim.Optimizer, settings: Mapping[torch.Tensor, Settings], name: str) -> None:
    """Whether `put_settings` will go through, asked before anything is filled.

    Raises:
        CorruptionError: an option is malformed.
        MismatchError: a tensor stands where the template has one number, or cannot take what was saved; names the option.
    """
    for group in optimizer.param_groups:
        saved = {id(told.options): told.options for parameter in group["params"] if (told := settings.get(parameter)) is not None}
        for key, node in (option for options in saved.values() for option in options):
            value, old = inline.decode(node), group.get(key)
            try:
                if isinstance(old, torch.Tensor):
                    torch.empty_like(old, requires_grad=False).copy_(torch.as_tensor(value))
                elif isinstance(value, torch.Tensor) and old is not None:
                    value.item()
            except (ValueError, TypeError, RuntimeError) as error:
                raise MismatchError(f"{name}: the template cannot take the setting {key!r:.80} of the checkpoint: {error}") from error


def regrouped(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], settings: Mapping[torch.Tensor, Settings]) -> list[str]:
    """Lines on parameters of one saved group that are in several groups now: those would all get the settings of that one, and what a
    scheduler was saved with for each group would not fit.

    Args:
        optimizer: the template's.
        names: of its parameters.
        settings: what the checkpoint says of them.
    """
    now: dict[tuple[int, int], dict[int, torch.Tensor]] = {}  # by saved group, a parameter of each group that its parameters are in
    for ordinal, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if (there := settings.get(parameter)) is not None and there.options:  # without, no groups are known
                now.setdefault((there.record, there.group), {}).setdefault(ordinal, parameter)
    return [_regrouped(optimizer, names, settings, list(each.items())) for each in now.values() if len(each) > 1]


def _regrouped(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    settings: Mapping[torch.Tensor, Settings],
    now: Sequence[tuple[int, torch.Tensor]],
) -> str:
    groups = [optimizer.param_groups[ordinal] for ordinal, _ in now]
    saved = {key: inline.decode(node) for key, node in settings[now[0][1]].options}
    plain = [key for key, value in saved.items() if isinstance(value, (bool, int, float, str))]
    differ = [key for key in plain if any(group.get(key) != groups[0].get(key) for group in groups)]

    def told(options: Mapping[str, Any]) -> str:
        return f" ({', '.join(f'{key} {options.get(key)}' for key in differ)})" if differ else ""

    places = [f"{names[parameter]} in group {ordinal}{told(group)}" for (ordinal, parameter), group in zip(now, groups)]
    return (
        f"the template has {' and '.join(places[:2])}, the checkpoint has both in one{told(saved)}. Make the groups as they were saved; or "
        "let restore(strict=False) keep the template's groups and give each parameter the settings it was saved with."
    )


def _split(group: dict[str, Any], settings: Mapping[torch.Tensor, Settings]) -> list[dict[str, Any]]:
    saved = [(settings[parameter], at) for at, parameter in enumerate(group["params"]) if parameter in settings]
    if not saved:
        return [group]
    parts: dict[bytes, list[int]] = {}
    for one, at in sorted(saved, key=lambda item: item[0].group):
        parts.setdefault(values.dumps(one.options), []).append(at)
    next(iter(parts.values())).extend(at for at, parameter in enumerate(group["params"]) if parameter not in settings)
    whole = dict(group)
    # Tensors (a learning rate can be one) are copied, or two groups would share one setting.
    copies = (
        {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in whole.items()} for _ in range(1, len(parts))
    )
    split = [group, *copies]
    for part, (options, members) in zip(split, parts.items()):
        members.sort()
        for key in NOT_OPTIONS & whole.keys():
            part[key] = [whole[key][at] for at in members]
        _put_options(part, values.loads(options))
    return split


def _put_options(group: dict[str, Any], options: Json) -> None:
    for key, node in options:
        value, old = inline.decode(node), group.get(key)
        if key in _HOW and key in group:
            continue
        if isinstance(old, torch.Tensor):
            with torch.no_grad():
                old.copy_(torch.as_tensor(value))
        else:
            group[key] = value.item() if isinstance(value, torch.Tensor) and old is not None else value
