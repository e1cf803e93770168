"""Pages for people, drawn on the server: to ask, to plan, what was forecast and measured, hardware, how good forecasts are."""

from __future__ import annotations

from fastapi import APIRouter

from foretell.serve.listener.pages import (
    accuracy,
    api,
    ask,
    compare,
    devices,
    forecast,
    history,
    job,
    methods,
    planner,
    signing_in,
    static,
)

router = APIRouter(include_in_schema=False)
for module in (static, signing_in, ask, job, forecast, methods, compare, planner, history, devices, accuracy, api):
    router.include_router(module.router)
