"""Random generators of one rank: captured only when asked for, and put back last."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from lamina import inline
from lamina.errors import CorruptionError, MismatchError, UnsupportedError
from lamina.per_rank import ranks_text
from lamina.values import Json

# Of PyTorch's state: where its two counters and its flag stand, of the Mersenne Twister with 624 words.
_TORCH_BYTES: Final = 5056
_TORCH_LEFT_AT: Final = 8
_TORCH_NEXT_AT: Final = 16
_TORCH_HAS_FLOAT_AT: Final = 5052
_CUDA_BYTES: Final = 16
_TWISTER_WORDS: Final = 624
_PHILOX_WORDS: Final = 4


class Rng:
    """Stands in a state for this rank's generators: Python's, NumPy's global one, PyTorch's, and CUDA's where it is in use.

    Args:
        seed: when a restore finds more ranks than the checkpoint has, the new ones are seeded from it and their rank; when it finds
            fewer, the streams that are left over are dropped and listed. Default None: another number of ranks is an error.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def capture(self) -> Json:
        """The node of all generators' states now."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        generators = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False), "torch": torch.get_rng_state(), "cuda": cuda}
        return inline.encode(generators)

    def choose(self, name: str, saved: Mapping[int, Json], rank: int, rank_count: int) -> Any:
        """What `put_back` takes on `rank`: a captured state, or a number to seed from.

        Raises:
            MismatchError: another number of ranks, and no seed.
            CorruptionError: states that `capture` does not make.
            UnsupportedError: NumPy's global generator, or the number of CUDA devices, is another here.
        """
        if rank_count != len(saved) and self.seed is None:
            more = rank_count > len(saved)
            others = ranks_text(range(min(len(saved), rank_count), max(len(saved), rank_count)))
            what = f"{others} of this job have none" if more else f"those of {others} are unclaimed"
            raise MismatchError(f"{name}: the checkpoint holds random generators of {len(saved)} ranks, {what}: give lamina.Rng a seed")
        if rank in saved:
            return _checked(name, rank, inline.decode(saved[rank]))
        return int(np.random.SeedSequence([abs(self.seed or 0), rank]).generate_state(1)[0])

    def put_back(self, chosen: Any) -> None:
        """Sets all generators."""
        if isinstance(chosen, int):
            random.seed(chosen)
            np.random.seed(chosen)
            torch.manual_seed(chosen)
            return
        random.setstate(chosen["python"])
        np.random.set_state(chosen["numpy"])
        torch.set_rng_state(chosen["torch"])
        if chosen["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(chosen["cuda"])


def _checked(name: str, rank: int, states: Any) -> Any:
    """`states` itself. The generators take positions as they are and would read memory that is not theirs."""
    try:
        _check(states)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from error
    except (ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        raise CorruptionError(f"{name}: the random generators of rank {rank} are malformed: {error}") from error
    return states


def _check(states: Any) -> None:
    _require(type(states) is dict and states.keys() == {"python", "numpy", "torch", "cuda"}, "not python, numpy, torch and cuda")
    _check_python(states["python"])
    _check_numpy(states["numpy"])
    _check_torch(states["torch"])
    _check_cuda(states["cuda"])


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_python(state: Any) -> None:
    _require(type(state) is tuple and len(state) == 3 and state[0] == 3, "python is no state of version 3")
    _require(state[2] is None or type(state[2]) is float, "python keeps what is no float")
    random.Random().setstate(state)  # looks at the words and at the position


def _check_numpy(state: Any) -> None:
    _require(type(state) is dict and type(state["state"]) is dict, "numpy is no mapping")
    here = np.random.get_state(legacy=False)["bit_generator"]
    if state["bit_generator"] != here:
        raise UnsupportedError(
            f"the checkpoint holds the state of a NumPy generator {state['bit_generator']!r:.80}, the one here is {here!r}"
        )
    words = {key: np.shape(value) for key, value in state["state"].items()}
    if here == "MT19937":
        key, pos = state["state"]["key"], state["state"]["pos"]
        _require(type(key) is np.ndarray and (key.dtype, key.shape) == (np.uint32, (_TWISTER_WORDS,)), "numpy has other words")
        _require(type(pos) is int and 0 <= pos <= _TWISTER_WORDS, f"numpy stands at {pos!r:.80}")
    if here == "Philox":
        pos = state["buffer_pos"]
        _require(type(pos) is int and 0 <= pos <= _PHILOX_WORDS, f"numpy stands at {pos!r:.80}")
    # What remains is converted number by number; a twin shows what does not convert.
    if (kind := getattr(np.random, here, None)) is not None:  # else the program's own
        twin = np.random.RandomState(kind())
        twin.set_state(state)
        told = {key: np.shape(value) for key, value in twin.get_state(legacy=False)["state"].items()}
        _require(words == told, "numpy has other words")


def _check_torch(state: Any) -> None:
    _require_bytes(state, _TORCH_BYTES, "torch")
    data = state.numpy().tobytes()
    (left,), (next_word,) = struct.unpack_from("=i", data, _TORCH_LEFT_AT), struct.unpack_from("=Q", data, _TORCH_NEXT_AT)
    # `left` - 1 words are drawn from `next_word` on before new ones are made.
    _require(left >= 1 and next_word + left <= _TWISTER_WORDS + 1, f"torch stands at {next_word} with {left} to go")
    _require(data[_TORCH_HAS_FLOAT_AT] <= 1, "torch has a flag that is none")
    torch.Generator().set_state(state)


def _check_cuda(states: Any) -> None:
    _require(type(states) is list, "cuda is no list")
    for state in states:
        _require_bytes(state, _CUDA_BYTES, "cuda")
        _require(struct.unpack_from("=q", state.numpy().tobytes(), 8)[0] % 4 == 0, "cuda has an offset that is no multiple of 4")
    if states and torch.cuda.is_available() and len(states) != torch.cuda.device_count():
        raise UnsupportedError(f"the checkpoint holds generators of {len(states)} CUDA devices, here are {torch.cuda.device_count()}")


def _require_bytes(state: Any, count: int, what: str) -> None:
    _require(
        isinstance(state, torch.Tensor) and (state.dtype, tuple(state.shape)) == (torch.uint8, (count,)),
        f"{what} is no tensor of {count} bytes",
    )
