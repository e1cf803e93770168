"""Signing in: a browser keeps the key in a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from foretell.serve.listener.callers import COOKIE, Asked, caller_of_key
from foretell.serve.listener.pages.forms import read_form

router = APIRouter()
_MONTH = 30 * 24 * 3600


@router.post("/signin")
async def sign_in(request: Request, service: Asked) -> Response:
    form = await read_form(request)
    await caller_of_key(service, request, form.text("key"))
    answer = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, form.text("key"), _MONTH, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/signout")
async def sign_out() -> Response:
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(COOKIE)
    return answer
