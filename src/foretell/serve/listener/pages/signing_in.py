"""Signing in: a browser keeps the key in a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

import re
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from foretell.serve.listener.callers import COOKIE, ServiceDep, caller_of_key
from foretell.serve.listener.pages.forms import read_form
from foretell.serve.listener.pages.frame import sign_in_page
from foretell.serve.problems import Problem

router = APIRouter()
_MONTH: Final = 30 * 24 * 3600
_HERE: Final = re.compile(r"/(?![/\\])[\x21-\x7e]*")  # a place of this service: neither another site nor a script


@router.post("/signin")
async def sign_in(request: Request, service: ServiceDep) -> Response:
    form = await read_form(request)
    then = form.text("then", "/")
    then = then if _HERE.fullmatch(then) else "/"
    try:
        await caller_of_key(service, request, form.text("key"))
    except Problem as problem:
        if problem.status != 401 or "text/html" not in request.headers.get("accept", ""):
            raise
        return sign_in_page(then, refused=True)
    answer = RedirectResponse(then, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, form.text("key"), _MONTH, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/signout")
async def sign_out(request: Request) -> Response:
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer
