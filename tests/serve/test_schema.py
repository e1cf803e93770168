"""Answers are as /openapi.json says; `python -m tests.fuzz.openapi` asks many more questions."""

from __future__ import annotations

import pytest


def test_every_address_answers_as_described() -> None:
    pytest.importorskip("schemathesis")
    from tests.fuzz.openapi import check

    statuses, wrong = check(1, seed=1)
    assert wrong == []
    assert sum(statuses.values()) > 30
    assert {200, 404, 422} <= set(statuses)
