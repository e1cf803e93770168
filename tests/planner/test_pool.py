"""Processes that a search keeps between questions."""

from __future__ import annotations

from multiprocessing import get_context

from foretell.planner.pool import Processes


def _added(shared: int, one: int) -> int:
    return shared + one


def _search() -> None:
    kept = Processes(2)
    assert sorted(kept.each(_added, 10, range(4))) == [10, 11, 12, 13]
    assert sorted(kept.each(_added, 10, range(2))) == [10, 11]


def test_processes_that_stay_end_with_a_process_that_was_forked() -> None:
    """It waits for its children before it ends, and they for questions."""
    searching = get_context("fork").Process(target=_search)
    searching.start()
    searching.join(300)
    still = searching.is_alive()
    searching.kill()
    assert not still
    assert searching.exitcode == 0
