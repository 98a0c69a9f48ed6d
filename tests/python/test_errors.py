"""lamina.errors: each class is also the built-in one that fits, and says what it was told."""

import pickle

import pytest

from lamina import errors


@pytest.mark.parametrize(
    ("cls", "built_in"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.MismatchError, ValueError),
        (errors.NotFoundError, LookupError),
        (errors.PermissionDeniedError, PermissionError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.ResourceExhaustedError, OSError),
        (errors.UnavailableError, OSError),
        (errors.DeadlineError, TimeoutError),
    ],
)
def test_class_keeps_message_and_facts(cls: type[errors.Error], built_in: type[Exception]) -> None:
    error = cls("disk full", rank=2, errno=28, phase="write")
    assert isinstance(error, built_in)
    assert (str(error), error.rank, error.errno, error.phase) == ("disk full", 2, 28, "write")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # exceptions cross process borders that way
    assert (type(again), str(again), again.errno) == (cls, "disk full", 28)


def test_facts_can_be_set_later() -> None:
    error = errors.UnavailableError("peer gone")
    assert (error.rank, error.errno, error.causes) == (None, None, ())
    error.errno = 5
    assert str(error) == "peer gone"


def test_failed_save_is_of_its_causes_class_too() -> None:
    cause = errors.ResourceExhaustedError("disk full", rank=1, errno=28, causes=["rank 1: disk full"])
    error = errors.save_failed(cause)
    assert isinstance(error, errors.ResourceExhaustedError)
    assert isinstance(error, errors.SaveFailedError)
    assert (str(error), error.rank, error.errno, error.causes) == ("disk full", 1, 28, ("rank 1: disk full",))
    assert error.__cause__ is cause
    assert errors.save_failed(error) is error
    assert type(errors.save_failed(errors.ResourceExhaustedError("x"))) is type(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), again.errno, str(again)) == (type(error), 28, "disk full")


def test_failed_save_by_a_foreign_error_is_internal() -> None:
    error = errors.save_failed(KeyError("pos"))
    assert isinstance(error, errors.InternalError)
    assert isinstance(error, errors.SaveFailedError)
    assert "KeyError: 'pos'" in str(error)
