import json

import numpy as np
import pytest

from covey.types import Leaf, Spec, Unroll

F32, U8, I64 = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int64)


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((84, 84, 3), U8, True),
        ((3, 84, 84), U8, True),
        ((4, 84, 84), U8, True),
        ((84, 84), U8, True),
        ((84, 84, 1), U8, True),
        ((1, 84, 84), U8, True),
        ((84, 84, 3), F32, False),  # bytes only
        ((84, 84, 3), np.dtype(np.int8), False),
        ((128,), U8, False),  # a console's memory
        ((128, 1), U8, False),  # a column, not a picture
        ((1, 128), U8, False),
        ((1, 1, 128), U8, False),
        ((), U8, False),
        ((2, 84, 84, 3), U8, False),
    ],
)
def test_bytes_in_two_or_three_dimensions_are_an_image(shape, dtype, image):
    assert Leaf(shape, dtype).is_image is image


def test_one_array_is_itself():
    spec = Spec({"": Leaf((4,), F32)}, num_actions=3, action_dim=0)
    assert (spec.obs_dtype, spec.obs_shape) == (F32, (4,))
    assert (spec.discrete, spec.action_dtype, spec.action_shape) == (True, I64, ())


def test_a_dict_is_an_array_of_records():
    spec = Spec({"eye": Leaf((2, 2), U8), "speed": Leaf((), F32)}, num_actions=0, action_dim=2)
    assert spec.obs_dtype == np.dtype([("eye", U8, (2, 2)), ("speed", F32, ())])
    assert spec.obs_shape == ()
    assert (spec.discrete, spec.action_dtype, spec.action_shape) == (False, F32, (2,))
    row = np.zeros(5, spec.obs_dtype)
    assert row["eye"].shape == (5, 2, 2)
    assert row.itemsize == 8  # nothing in between


def test_a_signature_is_json_and_tells_spaces_apart():
    def signature(leaf, num_actions=0, action_dim=1):
        spec = Spec({"": leaf}, num_actions, action_dim)
        assert json.loads(json.dumps(spec.signature())) == spec.signature()
        return json.dumps(spec.signature())

    all_ = [
        signature(Leaf((4,), F32)),
        signature(Leaf((5,), F32)),
        signature(Leaf((4,), np.dtype(np.float64))),
        signature(Leaf((4,), I64, (2, 2, 2, 2))),
        signature(Leaf((4,), I64, (2, 2, 2, 3))),
        signature(Leaf((4,), F32), 4, 0),
        signature(Leaf((4,), F32), 0, 4),
    ]
    assert len(set(all_)) == len(all_)
    assert signature(Leaf((4,), F32)) == all_[0]


def test_an_unroll_knows_its_steps_and_shares_nothing():
    def unroll():
        return Unroll(np.zeros((6, 2)), *(np.zeros((5, 2)) for _ in range(5)))

    one, two = unroll(), unroll()
    assert one.num_steps == 5
    assert one.extra is not two.extra
    assert one.finals is not two.finals
