"""The app: its addresses, what is around them, and how it starts and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from foretell import __version__
from foretell.serve import problems
from foretell.serve.access.guard import Guard
from foretell.serve.listener import catalog, forecasts, graphs, health, jobs, measurements, methods, pages, roles
from foretell.serve.listener.observed import Observed
from foretell.serve.listener.pages.frame import problem_page
from foretell.serve.service import Service


def make_app(service: Service) -> FastAPI:
    """The service is closed when the app stops."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="Foretell",
        version=__version__,
        summary="Forecasts, before a deep-learning job runs, how long it will take and what it will consume.",
        lifespan=running,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        responses=problems.RESPONSES,
    )
    app.state.service = service
    problems.install(app, problem_page)
    for module in (graphs, forecasts, jobs, measurements, catalog, methods, roles, health, pages):
        app.include_router(module.router)
    app.add_middleware(Observed, service=service)
    app.add_middleware(Guard, is_open=service.is_open)
    return app
