"""The forms that a profile is tried in, and what each of them starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.form import Form, worlds
from foretell.profile import Profile

Candidate = tuple[Form, Profile | None]  # what is fitted, and on top of what
_PARTS: Final = ("device", "host", "communication", "fixed", "links")
FORMS: Final = (
    Form(),
    Form(levels=("device",)),
    Form(levels=_PARTS),
    Form(levels=("device", "host", "kinds", "families")),  # of a processor whose links are as listed
    Form(levels=(*_PARTS, "kinds", "precisions")),
    Form(levels=(*_PARTS, "kinds", "precisions", "families")),
)
OF_NETWORKS: Final = tuple(
    Form(levels=(*levels, *own))
    for own in (("networks",), ("networks", "seconds"))
    for levels in (("device",), _PARTS, (*_PARTS, "kinds", "precisions"), (*_PARTS, "kinds", "precisions", "families"))
)
FROM_START: Final = (
    Form(),
    Form(levels=("device",)),
    Form(levels=_PARTS),
    Form(levels=(*_PARTS, "kinds", "precisions")),
)
WITH_RANKS: Final = (
    Form(levels=(*_PARTS, "ranks")),
    Form(levels=(*_PARTS, "kinds", "precisions", "ranks")),
)


def candidates(responses: Sequence[ProfileResponse], again: bool, start: Profile | None) -> list[Candidate]:
    """The first changes nothing. `again`: most networks were measured more than once."""
    further = (*(WITH_RANKS if worlds(responses) else ()), *(OF_NETWORKS if again else ()))
    starting = [] if start is None else [(form, start) for form in (*FROM_START, *further)]
    return [*((form, None) for form in (*FORMS, *further)), *starting]
