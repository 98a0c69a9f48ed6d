"""lamina.flat: runs of a tensor's elements as boxes."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina import tensors
from lamina.flat import FlatPart, boxes_of_run


@given(st.lists(st.integers(0, 4), max_size=4), st.data())
def test_the_boxes_of_a_run_are_its_elements_in_order(extents: list[int], data: st.DataObject) -> None:
    shape = tuple(extents)
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    whole = torch.arange(count).reshape(shape)
    found: list[int] = []
    boxes = list(boxes_of_run(shape, start, stop))
    for offset, extent in boxes:
        at = tuple(slice(begin, begin + size) for begin, size in zip(offset, extent))
        found += whole[at].flatten().tolist()
    assert found == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape))


def test_a_part_points_into_its_run() -> None:
    run = torch.arange(3.0, 9.0)
    part = FlatPart(run, (2, 5), 3)
    assert (tuple(part.shape), part.dtype) == ((2, 5), torch.float32)
    assert repr(part).startswith("FlatPart(shape=(2, 5), start=3")
    assert tensors.describe(part).boxes == [((0, 3), (1, 2), run.data_ptr(), (2, 1)), ((1, 0), (1, 4), run.data_ptr() + 8, (4, 1))]
