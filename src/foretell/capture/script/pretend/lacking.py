"""What a stand-in says when it is asked for something that it cannot give: that it was ours, and the way out."""

from __future__ import annotations

from foretell.errors import WorkloadError


class StandInError(WorkloadError):
    """A stand-in of Foretell's, not the script, is at fault."""

    def __init__(self, what: str, lacks: str, way_out: str) -> None:
        super().__init__(f"Foretell's stand-in for {what} has no {lacks}. {way_out}")
