"""Errors as RFC 9457 problems: what, got, allowed, and what to do next."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from foretell.errors import (
    CatalogError,
    ForetellError,
    GraphFileError,
    InputError,
    ModelError,
    PlanError,
    ProfileError,
)
from foretell.serve.database.connect import is_away
from foretell.serve.patterns import words_of
from foretell.text import brief, plain

_log = logging.getLogger(__name__)
_LONGEST_INT: Final = 4096  # bits
MEDIA_TYPE: Final = "application/problem+json"

# The part of a question that an error is about, and where to find what it may be.
_ABOUT: Final[Mapping[type[ForetellError], tuple[str, str]]] = {
    GraphFileError: ("graph", "a .graph file as `foretell inspect SOURCE --save FILE` writes it"),
    CatalogError: ("on", "a cluster of the devices that GET /v1/devices lists, like 8xh100-sxm"),
    PlanError: ("plan", "settings like dp=4,tp=2,zero=1 whose product is the number of devices"),
    ProfileError: ("profile", "a name that GET /v1/profiles lists"),
    ModelError: ("model", "a name that GET /v1/models lists"),
}
_TITLES: Final = {
    400: "This request cannot be read",
    401: "Who asks is not known",
    403: "This key may not do that",
    404: "There is no such thing here",
    405: "This address takes other methods",
    408: "This request did not come to its end",
    409: "This cannot be done now",
    413: "That is too large",
    422: "This cannot be answered",
    429: "Too many requests",
    500: "This is a bug in Foretell",
    503: "The service is busy",
    504: "That takes too long",
}


_WORDS: Final = {"type": ["string", "null"]}
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["title", "status", "what", "next"],
    "properties": {
        "title": _WORDS,
        "status": {"type": "integer"},
        "what": _WORDS,
        "allowed": _WORDS,
        "next": _WORDS,
        "got": {},
    },
}
# What any address may answer, for /openapi.json.
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": title, "content": {MEDIA_TYPE: {"schema": _SCHEMA}}} for status, title in _TITLES.items()
}


class Problem(Exception):
    """An answer that is none, with its status."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        got: Any = None,
        allowed: str | None = None,
        next: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.status, self.headers = status, dict(headers or {})
        self.body = {
            "type": "about:blank",
            "title": _TITLES[status],
            "status": status,
            "what": brief(plain(what)),
            "got": _shown(got),
            "allowed": allowed,
            "next": next,
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers, MEDIA_TYPE)


def of_error(error: ForetellError, question: Mapping[str, Any] | None = None) -> Problem:
    """One of Foretell's own, whose words say what to do: whoever asked is to blame, or it is a bug."""
    if not isinstance(error, InputError):
        return Problem(500, str(error), next="Report it, with the request.")
    field, allowed = next((about for kind, about in _ABOUT.items() if isinstance(error, kind)), (None, None))
    got = question.get(field) if question is not None and field is not None else None
    return Problem(422, str(error), got=got, allowed=allowed, next="Change the request as the text says.")


def missing(what: str, got: str) -> Problem:
    return Problem(
        404, f"there is no {what} {brief(plain(got))!r} of your team.", got=got, next=f"List them: GET {_list(what)}"
    )


def without_database() -> Problem:
    return Problem(
        503, "the database does not answer.", next="Ask again in a few seconds; what was accepted is kept.",
        headers={"Retry-After": "2"},
    )  # fmt: skip


def _list(what: str) -> str:
    return f"/v1/{what}s"


def _shown(value: Any) -> Any:
    """What was given, where it is short enough to say. JSON has no NaN, and Python spells no number of 5,000 digits."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _LONGEST_INT:
        return "a number of too many digits"
    if isinstance(value, str | int | float | bool) or value is None:
        return brief(plain(value))[:400] if isinstance(value, str) else value
    return brief(plain(str(value)))[:400]


def install(app: FastAPI, draw: Callable[[Request, Problem], Response | None]) -> None:
    """Whatever goes wrong in a request becomes a problem, drawn for people; nothing of our own code is shown."""

    def answer(request: Request, problem: Problem) -> Response:
        return draw(request, problem) or problem.response()

    @app.exception_handler(Problem)
    def _problem(request: Request, problem: Problem) -> Response:
        return answer(request, problem)

    @app.exception_handler(ForetellError)
    def _error(request: Request, error: ForetellError) -> Response:
        return answer(request, of_error(error))

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "path", "query")) or "the body"
        if first["loc"][0] == "path" and not request.url.path.startswith("/v1/"):  # a link that somebody was given
            leads = "Look for what you seek in /history, or ask whoever sent the link."
            return answer(request, Problem(404, f"{where}: {words_of(first)}.", got=first.get("input"), next=leads))
        problem = Problem(
            422,
            f"{where}: {words_of(first)}.",
            got=first.get("input"),
            allowed="as /docs says",
            next=f"Correct {where}.",
        )
        return answer(request, problem)

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        status = error.status_code if error.status_code in _TITLES else 400
        problem = Problem(
            status, f"{request.method} {request.url.path}: {error.detail}.", next="See /docs for what there is."
        )
        return answer(request, problem)

    @app.exception_handler(SQLAlchemyError)
    def _database(request: Request, error: SQLAlchemyError) -> Response:
        if not is_away(error):
            raise error
        _log.info("%s %s: %s", request.method, request.url.path, error)  # a runner of jobs warns once a second
        return answer(request, without_database())

    @app.exception_handler(Exception)
    def _bug(request: Request, error: Exception) -> JSONResponse:
        return Problem(
            500, f"{type(error).__name__} while answering.", next="Report it, with the request and the service's log.",
            headers={"Connection": "close"},  # uvicorn does after an exception: who is not told would ask again on it
        ).response()  # fmt: skip
