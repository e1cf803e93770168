"""Who asks: the key in the Authorization header, or the person at this machine where there are no keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool

from foretell.hardware.of_a_team import laid_out, take
from foretell.serve.access.keys import Caller
from foretell.serve.database.tables import Role
from foretell.serve.problems import Problem
from foretell.serve.service import Service

COOKIE: Final = "foretell_key"  # of a browser whose person has signed in


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _serving(request: Request) -> Service:
    """Not plain: FastAPI gives plain functions a thread, which costs a fifth of an answer at hand."""
    return service_of(request)


def _with(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    async def caller(request: Request) -> Caller:
        service = service_of(request)
        found = await _found(service, request)
        request.state.caller = found
        devices = service.hardware.known(found.team)
        if devices is None:
            devices = await run_in_threadpool(service.hardware.of, found.team)
        take(laid_out(devices))
        if not found.may(role):
            raise Problem(
                403, f"a key of role {found.role} may not do this.", got=found.role, allowed=f"{role} or above",
                next="Ask whoever runs the service for another key.",
            )  # fmt: skip
        if service.local is None and (wait := service.rates.take(found.key)):
            raise Problem(
                429, f"this key may ask {service.rates.rate:g} times a second.", next=f"Wait {wait:.1f} s.",
                headers={"Retry-After": str(int(wait) + 1)},
            )  # fmt: skip
        return found

    return caller


async def _found(service: Service, request: Request) -> Caller:
    if service.local is not None:
        return service.local
    scheme, _, written = request.headers.get("authorization", "").partition(" ")
    shown = written if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
    return await caller_of_key(service, request, shown)


async def caller_of_key(service: Service, request: Request, written: str) -> Caller:
    """Whose key this is; a problem where it is nobody's."""
    if written:
        if (known := service.keyring.known(written)) is not None:
            return known
        found = await run_in_threadpool(service.keyring.find, written)
        if found is not None:  # whoever else guesses from the same address
            return found
        address = request.client.host if request.client else "?"
        if wait := service.rates.take(f"unknown from {address}"):
            raise Problem(
                429, "too many keys that are not in use were shown from this address.", next=f"Wait {wait:.1f} s.",
                headers={"Retry-After": str(int(wait) + 1)},
            )  # fmt: skip
    raise Problem(
        401, "no key that is in use was shown.", allowed="Authorization: Bearer KEY",
        next="Get a key from whoever runs the service (foretell serve key TEAM).", headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


Reader = Annotated[Caller, Depends(_with("reader"))]
Member = Annotated[Caller, Depends(_with("member"))]
Admin = Annotated[Caller, Depends(_with("admin"))]
ServiceDep = Annotated[Service, Depends(_serving)]
Few = Annotated[int, Query(ge=1, le=1000, description="How many, at most.")]
