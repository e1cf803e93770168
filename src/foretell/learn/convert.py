"""`python -m foretell.learn.convert FOLDER`: a model folder of the first format, which kept LightGBM's text, to today's."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from foretell.cost.folder import seal
from foretell.cost.operators import TEXT_INDEX, FamilyModel, OperatorModels
from foretell.errors import ModelError
from foretell.learn.lightgbm_text import trees_of


def convert(folder: Path) -> None:
    """Put arrays in the place of the texts."""
    _convert(folder)
    seal(folder)


def _convert(folder: Path) -> None:
    try:
        index = json.loads((folder / TEXT_INDEX).read_text())["families"]
        texts = {family: gzip.decompress((folder / f"{family}.txt.gz").read_bytes()).decode() for family in index}
        families = {
            family: FamilyModel(
                columns=tuple(entry["columns"]), operators=tuple(entry["operators"]), trees=trees_of(texts[family])
            )
            for family, entry in index.items()
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{folder} holds no model of the first format ({type(error).__name__}: {error}). Fit one with: foretell fit"
        ) from error
    OperatorModels(families=families).save(folder)
    (folder / TEXT_INDEX).unlink()
    for family in families:
        (folder / f"{family}.txt.gz").unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]))
