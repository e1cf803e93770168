"""What people write into forms, as text and numbers that are checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict, QueryParams, UploadFile
from starlette.exceptions import HTTPException

from foretell.serve.patterns import words_of
from foretell.serve.problems import Problem
from foretell.units import whole_number

_MAX_FIELDS: Final = 200
_LONGEST: Final = 1000


@dataclass(frozen=True, slots=True)
class Form:
    """Fields by name, sent or part of an address; an empty one is not there."""

    fields: ImmutableMultiDict[str, UploadFile | str] | QueryParams

    def text(self, name: str, usual: str = "") -> str:
        value = self.fields.get(name)
        return value.strip()[:_LONGEST] if isinstance(value, str) and value.strip() else usual

    def texts(self, name: str) -> list[str]:
        return [
            value.strip()[:_LONGEST] for value in self.fields.getlist(name) if isinstance(value, str) and value.strip()
        ]

    def texts_by_name(self) -> dict[str, str]:
        """The first of each, as a form shows it again."""
        return {name: text for name in self.fields if (text := self.text(name))}

    def number(self, name: str) -> float | None:
        text = self.text(name)
        try:
            value = float(text) if text else None
            if value is None or math.isfinite(value):
                return value
            raise ValueError
        except ValueError:
            raise Problem(
                422, f"{name}: no number.", got=text, allowed="a number like 8 or 1.5e9", next=f"Correct {name}."
            ) from None

    def count(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and value != int(min(max(value, -1e15), 1e15)):
            raise Problem(
                422, f"{name}: no whole number.", got=value, allowed="a number like 8", next=f"Correct {name}."
            )
        return None if value is None else int(value)

    def counts(self, name: str) -> list[int] | None:
        """Whole numbers with a comma between, like 1,2,4."""
        parts = [part.strip() for part in self.text(name).split(",")] if self.text(name) else []
        if not all(whole_number(part) is not None and len(part) < 12 for part in parts):
            raise Problem(
                422,
                f"{name}: no whole numbers.",
                got=self.text(name),
                allowed="numbers like 1,2,4",
                next=f"Correct {name}.",
            )
        return [int(part) for part in parts] or None

    def numbers_by_name(self, name: str) -> dict[str, float] | None:
        """Like h100-sxm=1.9 l40s=0.8, with spaces or commas between."""
        found = {}
        for each in self.text(name).replace(",", " ").split():
            key, _, value = each.partition("=")
            try:
                found[key] = float(value)
            except ValueError:
                raise Problem(
                    422,
                    f"{name}: {each!r} is no number by name.",
                    got=each,
                    allowed="like h100-sxm=1.9",
                    next=f"Correct {name}.",
                ) from None
        return found or None

    async def file(self, name: str) -> bytes:
        value = self.fields.get(name)
        return await value.read() if isinstance(value, UploadFile) else b""


async def read_form(request: Request) -> Form:
    try:
        return Form(await request.form(max_files=2, max_fields=_MAX_FIELDS))
    except HTTPException as error:
        raise Problem(400, f"this form cannot be read: {error.detail}.", next="Send it from the page.") from None


def checked(kind: Any, **fields: Any) -> Any:
    """Made by its model, which says what is wrong; what was left empty is not given."""
    try:
        return kind(**{name: value for name, value in fields.items() if value not in (None, "")})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the form"
        raise Problem(
            422, f"{where}: {words_of(first)}.", got=first.get("input"), allowed=None, next=f"Correct {where}."
        ) from None
