"""The whole suite: every device, precision and plan."""

from __future__ import annotations

import pytest

from foretell.laws.suite import LAWS
from tests.laws import whole


def test_every_law_is_in_the_whole_suite() -> None:
    together = {name for names in whole.TOGETHER for name in names}
    assert together == {name for name, law in LAWS.items() if not law.of_one}


@pytest.mark.nightly
@pytest.mark.timeout(6 * 3600)
def test_no_forecast_breaks_a_law() -> None:
    found = whole.run(workers=2)
    assert found.answers >= 50_000
    assert found.kept, found.to_dict()
