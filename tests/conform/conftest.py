"""The laws of the design as programs that run on every engine alike."""

import pytest
from everywhere import Everywhere


@pytest.fixture(params=["inline", "processes"])
def everywhere(request):
    return Everywhere(request.param)
