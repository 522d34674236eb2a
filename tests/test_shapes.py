"""Shapes that signatures name are looked at in these tests: a wrong one is an error here."""

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from shapes import checked
from torch import Tensor

from anisoscope.sums import device, jackknife

CHECK = jaxtyping.jaxtyped(typechecker=checked)


def test_a_wrong_shape_is_an_error():
    @CHECK
    def product(
        x: Float[Tensor, "token dim"], y: Float[Tensor, "dim out"]
    ) -> Float[Tensor, "token out"]:
        return x[:, :1] @ y[:1] if len(y) > 4 else x

    for x, y in (
        (torch.zeros(3, 5), torch.zeros(4, 2)),
        (torch.zeros(3), torch.zeros(3, 2)),
        (torch.zeros(3, 4),) * 2,
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            product(x, y)
    assert product(torch.zeros(3, 5), torch.zeros(5, 2)).shape == (3, 2)
    with pytest.raises(jaxtyping.TypeCheckError, match="product"):
        product(torch.zeros(3, 4), torch.zeros(4, 2))


def test_what_names_no_shape_is_left_as_it_is():
    def plain(x: int) -> int:
        return x

    assert CHECK(plain) is plain


def test_the_package_is_looked_at():
    assert hasattr(device.sum_weighted, "__wrapped__") and not hasattr(
        jackknife.holm, "__wrapped__"
    )
    with pytest.raises(jaxtyping.TypeCheckError):
        device.sum_weighted(torch.zeros(2, 3, 4), torch.zeros(2, 5, 1, 8))
