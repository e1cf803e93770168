"""Stand-ins for data sets and models by name that are not on this machine (`--fake-data`).

What is there is read. What is not has the shapes that are published for it, or that the script's own transforms,
tokenizer or configuration give it: a picture goes through the script's transforms, a model is built from its configuration.
"""

from __future__ import annotations

from typing import Final

from foretell.capture.script.pretend import graph_sets, named_things, picture_sets, sound_sets, timm_sets
from foretell.capture.script.pretend.hub import diffusion, models, vocabularies
from foretell.capture.script.pretend.sets import hub, parquet
from foretell.capture.script.session import Session

_BY_LIBRARY: Final = (
    hub,
    parquet,
    models,
    vocabularies,
    diffusion,
    sound_sets,
    picture_sets,
    graph_sets,
    named_things,
    timm_sets,
)


def install(session: Session) -> None:
    """Stand in for what is missing, where the user wants that."""
    sound_sets.make_importable()
    if session.script.fake_data:
        for library in _BY_LIBRARY:
            library.install(session)
