"""`Checkpointer`: what a training job saves and restores with."""

from __future__ import annotations

import collections
import operator
import os
import time
import weakref
from collections.abc import Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final

from lamina import _core
from lamina import options as option_names
from lamina import restore as restoring
from lamina.blobs import blobs_of
from lamina.errors import (
    Error,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StateError,
    UnsupportedError,
    class_and_message,
)
from lamina.events import check_hooks, logger
from lamina.matching import Rename
from lamina.ranks import Ranks
from lamina.restore_info import RestoreInfo
from lamina.runtime import Runtime
from lamina.save_handle import SaveHandle
from lamina.state import Capture, tensor_args, topology_of

_trainers: Final[weakref.WeakValueDictionary[str, Checkpointer]] = weakref.WeakValueDictionary()  # of this process, by root


class Checkpointer:
    """Saves and restores the state of one training job under one root. Made, used and closed on one thread of each rank.

    Construction is collective on `process_group`: one broadcast.

    Args:
        root: a directory that all ranks share; it is made when its parent exists.
        mode: "train", or "read" for restores beside a training job: it writes no step.
        process_group: the ranks that save together. Default None: the default group if there is one, else this process alone.
        snapshot: "copied": all is copied before `save()` returns. "deferred" is not in this version.
        keep: how many steps of the line to keep once a newer one is durable, pinned ones apart; older ones are dropped, and their files go
            when nobody reads them any more. Default None: all are kept.
        memory: bytes that the ranks of one node may use together. Default None: twice 1.1 times the state, at most 40 % of what is free.
            Where they hold one copy of the state, save() waits while another save is under way, and one line says so.
        failures_tolerated: failed saves in a row that training survives. None of the very first save or when another trainer took over.
            Default None: 3.
        save_timeout_s: seconds that one save may take. Default None: the larger of 600 and 10 times the last one.
        run_id: names the job across its relaunches, so that a relaunch takes the root over. Default None: TORCHELASTIC_RUN_ID,
            SLURM_JOB_ID, PBS_JOBID or LSB_JOBID.
        takeover: take the root from a trainer that still lives. Default None: no.
        hooks: objects with methods named for events, such as `committed(event)`; see `lamina.events`.
        options: rarer options by name; see docs/options.md. What is given neither here nor as an argument LAMINA_<NAME> in the
            environment may set.

    Raises:
        StateError: WORLD_SIZE > 1 without a process group, or a Checkpointer of this process that is not closed trains on this root.
        InvalidArgumentError: an unknown option or a value out of its range.
        UnsupportedError: an option that this version does not have.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        mode: str = "train",
        process_group: Any = None,
        snapshot: str = "copied",
        keep: Any = None,
        memory: int | None = None,
        failures_tolerated: int | None = None,
        save_timeout_s: float | None = None,
        run_id: str | None = None,
        takeover: bool | None = None,
        hooks: Iterable[object] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        hooks = tuple(hooks)
        check_hooks(hooks)
        _check_snapshot(snapshot)
        place = os.path.realpath(root)
        if mode == "train":
            _check_alone(place)
        ranks = Ranks(process_group)
        chosen = core_options(root, ranks, memory, options, mode)
        chosen["run_id"] = option_names.default_run_id() if run_id is None else run_id
        given = {
            "takeover": takeover,
            "keep": option_names.checked_keep(keep),
            "failures_tolerated": failures_tolerated,
            "save_timeout_s": None if save_timeout_s is None else float(save_timeout_s),
        }
        chosen.update({name: value for name, value in given.items() if value is not None})  # the rest the environment may set
        chosen["coordination_prefix"] = ranks.nonce()
        own = _core.own_options(chosen)
        self._mode = mode
        self._ranks = ranks
        self._failures_tolerated = int(own["failures_tolerated"])
        self._failed_in_row = 0
        self.save_count = 0
        self._unjudged: collections.deque[SaveHandle] = collections.deque()
        self._exit_grace_s = float(own["exit_grace_s"])
        self._runtime: Runtime | None = Runtime(chosen, ranks, hooks, self._exit_grace_s, float(own["verdict_timeout_s"]))
        self._finalizer = weakref.finalize(self, self._runtime.collected)
        self._finalizer.atexit = False
        if mode == "train":
            _trainers[place] = self

    def save(self, step: int, state: MutableMapping[Any, Any], *, metadata: Any = None) -> SaveHandle:
        """Saves `state` as `step`, in the background. All ranks call it in the same order of steps.

        Args:
            step: at least the restored one, and more than the last one saved.
            state: what to save; may be changed as soon as this returns. What several ranks hold must be the same on all of them, but
                for the buffers of modules, whose values on the lowest rank are saved, and for what stands in a `lamina.PerRank`.
            metadata: a plain value to keep with the step; rank 0's counts.

        Returns:
            A handle to wait with.

        Raises:
            SaveFailedError: the very first save failed, or more than `failures_tolerated` in a row did, of those up to the one before the
                last; on all ranks at the same call. Nothing is saved then. A FencedError is never tolerated.
            UnsupportedError: a value or tensor of a kind that is not taken; named by its path. Among several ranks the first save raises
                it on all of them, and a later one fails by it on all of them.
            ResourceExhaustedError: the plain values take more than 1 GiB as text; names the largest. As above.
            StateError: the Checkpointer is closed, only reads, or is in a forked process.
        """
        began_s = time.perf_counter()
        runtime = self._open()
        if self._mode != "train":
            raise StateError(f'save() with mode="{self._mode}": make a Checkpointer with mode="train"')
        step = _checked_step(step)
        self._judge()
        ticket = self._begin_save(runtime, step, state, metadata)
        handle = SaveHandle(ticket, step, self.save_count, time.perf_counter() - began_s)
        self.save_count += 1
        self._unjudged.append(handle)
        runtime.unseen = [each for each in runtime.unseen if not each.seen]
        runtime.unseen.append(handle)
        return handle

    def restore(
        self,
        state: MutableMapping[Any, Any],
        step: int | None = None,
        *,
        strict: bool = True,
        cast: bool = False,
        rename: Rename = None,
        pad: Any = None,
        required: bool = False,
        verify: str = "first",
    ) -> RestoreInfo:
        """Fills `state` in place from a step, whatever the topology it was saved on. Collective.

        Args:
            state: the template; nothing of it is touched before all checks have passed on all ranks.
            step: which one. Default None: the newest of the line, or an older one where that is damaged.
            strict: whether entries that are missing or unexpected, and parameters of one group that are in several now, are an error; else
                the former are listed in what is returned.
            cast: whether values are rounded to the template's dtype (to nearest, ties to even); else another dtype is an error.
            rename: from the checkpoint's names to the state's: a function, or a dict whose keys also stand for all names below them.
            pad: not in this version.
            required: whether finding no step is an error.
            verify: "first": bytes are checked before they are copied. "while" is not in this version.

        Returns:
            What was restored; falsy when there was nothing.

        Raises:
            MismatchError: names all entries that are missing or unexpected or have another shape or dtype.
            NotFoundError: there is no such step, or none at all and `required`.
            CorruptionError: steps are there, and none is whole.
        """
        runtime = self._open()
        wanted = None if step is None else _checked_step(step)
        if pad is not None:
            raise UnsupportedError("restore(pad=...) is not in this version")
        if verify != "first":
            raise UnsupportedError(f'restore(verify={verify!r}): only "first" is in this version')
        for handle in self._unjudged:
            handle.settle()
        session = runtime.engine.begin_restore(wanted)
        if session.found:
            return restoring.restore(session, self._ranks, state, strict, cast, rename)
        if required:
            raise NotFoundError("restore(required=True): the root holds no step; is its file system mounted?")
        return RestoreInfo()

    def fence(self) -> None:
        """Returns when what was handed to `save()` may be changed: at once, since `save()` has copied all of it when it returns.

        Raises:
            StateError: the Checkpointer is closed, or is in a forked process.
        """
        self._open()

    def close(self) -> None:
        """Waits until this rank's saves have ended, and frees everything. Not collective. A second call does nothing.

        Raises:
            SaveFailedError: a save failed, and nobody has seen that yet.
        """
        self._close(None)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            return self.close()
        try:
            self._close(self._exit_grace_s)
        except Exception as failure:
            _note(error, f"lamina: while leaving the Checkpointer: {failure}")

    def _begin_save(self, runtime: Runtime, step: int, state: MutableMapping[Any, Any], metadata: Any) -> _core.SaveTicket:
        """Hands the state to the core. What this rank alone refuses is told to the others, whose save fails by it at once."""
        try:
            captured = Capture(state)
            blobs = blobs_of(captured, metadata if self._ranks.rank == 0 else None)
            # Lazily conjugated tensors are resolved into temporaries, which must live until the core has copied.
            args, alive = tensor_args(captured.entries)
            topology = topology_of(captured.entries, self._ranks.count)
        except Exception as error:
            if self._ranks.count == 1:
                raise
            try:
                return runtime.engine.save(step, (), {}, (), class_and_message(error))
            except Error as failure:
                # The first save, where the ranks meet: it fails here as on all others.
                if failure.rank == self._ranks.rank:
                    raise error from None
                raise
        ticket = runtime.engine.save(step, args, blobs, topology)
        del alive
        return ticket

    def is_open(self) -> bool:
        """Whether it still saves and restores in this process."""
        return self._runtime is not None and not self._runtime.is_forked()

    def _open(self) -> Runtime:
        if self._runtime is None:
            raise StateError("the Checkpointer is closed")
        if self._runtime.is_forked():
            raise StateError("the Checkpointer belongs to the parent of this forked process, and does nothing here")
        return self._runtime

    def _close(self, grace_s: float | None) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._finalizer.detach()
            if not runtime.is_forked():
                runtime.close(grace_s)

    def _judge(self) -> None:
        """Looks at the saves up to the one before the last. They have ended the same way on all ranks, so all raise here or none does."""
        while len(self._unjudged) >= 2:
            handle = self._unjudged[0]
            error = handle.settle()
            self._unjudged.popleft()  # only now: a signal's handler may have raised, and then it is still to be judged
            if error is None:
                handle.seen, self._failed_in_row = True, 0
                continue
            self._failed_in_row += 1
            if handle.number > 0 and self._failed_in_row <= self._failures_tolerated and not isinstance(error, FencedError):
                logger.error("the save of step %d failed, %d in a row: %s", handle.step, self._failed_in_row, error)
                continue
            handle.seen = True
            try:
                raise error
            finally:
                del error  # it refers to this frame, so that both would outlive their use


def core_options(
    root: str | os.PathLike[str], ranks: Ranks, memory: int | None, options: Mapping[str, Any] | None, mode: str = "train"
) -> dict[str, Any]:
    """What the core is told of a place, this rank's part in it, and the rarer options that are given."""
    local_rank_count = option_names.local_rank_count(ranks.count)
    chosen = {
        **option_names.checked(options),
        "root": option_names.root_path(root),
        "mode": mode,
        "rank": ranks.rank,
        "rank_count": ranks.count,
        "local_rank_count": local_rank_count,
    }
    if memory is not None:
        chosen["memory_bytes"] = _memory_of_rank(memory, local_rank_count)
    return chosen


def _checked_step(step: Any) -> int:
    """The step as an int: NumPy's integers are as good as Python's."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or not 0 <= operator.index(step) < 2**63:
        raise InvalidArgumentError(f"step is {step!r}; expected an integer from 0 to 2^63 - 1")
    return operator.index(step)


def _check_alone(place: str) -> None:
    """A second trainer on a root would fence the first one, which the one process can only have meant by mistake."""
    first = _trainers.get(place)
    if first is not None and first.is_open():
        raise StateError(
            f"this process trains on {place!r} already, with a Checkpointer that has saved {first.save_count} times: use that one, or "
            'close() it first; to look at the root beside it, make one with mode="read", or use lamina.open'
        )


def _check_snapshot(snapshot: str) -> None:
    if snapshot == "deferred":
        raise UnsupportedError('snapshot="deferred" is not in this version; use "copied"')
    if snapshot != "copied":
        raise InvalidArgumentError(f'snapshot is {snapshot!r}; expected "copied" or "deferred"')


def _memory_of_rank(memory: Any, local_rank_count: int) -> int:
    """The bytes for one rank of what a node may use."""
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise InvalidArgumentError(f"memory is {memory!r}; expected a number of bytes of 1 or more")
    return max(1, memory // local_rank_count)


def _note(error: BaseException, text: str) -> None:
    logger.error("%s", text)
    if hasattr(error, "add_note"):  # from Python 3.11
        error.add_note(text)
