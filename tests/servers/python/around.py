"""What people put around an MCP app: middleware, and frameworks that it is mounted in or beside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

OF_MCP = ("Method", "Name", "Protocol-Version", "Session-Id")


def gzip(app: Any) -> Any:
    from starlette.middleware.gzip import GZipMiddleware

    # Also what is too short to be worth it.
    app.add_middleware(GZipMiddleware, minimum_size=0)
    return app


def base(app: Any) -> Any:
    from starlette.middleware.base import BaseHTTPMiddleware

    class Stamped(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            answer = await call_next(request)
            answer.headers["x-stamp"] = "1"
            return answer

    # One around the other, as it comes with several libraries.
    app.add_middleware(Stamped)
    app.add_middleware(Stamped)
    return app


def cors(app: Any) -> Any:
    """As docs/deploy/frameworks.md says."""
    from starlette.middleware.cors import CORSMiddleware

    app.add_middleware(
        CORSMiddleware,
        allow_origins=["http://localhost:5173"],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Last-Event-ID", *(f"Mcp-{name}" for name in OF_MCP)],
        expose_headers=["Mcp-Session-Id"],
    )
    return app


def django(app: Any) -> Any:
    """Django serves every path but the app's own."""
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:
        urls = (path("own", lambda request: HttpResponse("django")),)
        settings.configure(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], SECRET_KEY="of tests")
    site = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        is_ours = scope["type"] == "lifespan" or scope["path"].startswith(("/mcp", "/health"))
        await (app if is_ours else site)(scope, receive, send)

    return application


def meddling(app: Any) -> Any:
    """Reads the body first, adds bytes to what is answered, and answers by itself or raises where it is asked to."""
    from starlette.middleware.base import BaseHTTPMiddleware

    class Reading(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            await request.body()
            return await call_next(request)

    class Adding:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            is_stream = False

            async def adding(message: Any) -> None:
                nonlocal is_stream
                if message["type"] == "http.response.start":
                    is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
                elif is_stream and message.get("body"):
                    message = {**message, "body": message["body"] + b": added\n\n"}
                await send(message)

            async def failing() -> Any:
                msg = "in front of the app"
                raise RuntimeError(msg)

            if scope["type"] == "http" and (b"x-raise", b"1") in scope["headers"]:
                receive = failing
            if scope["type"] == "http" and (b"x-answer-first", b"1") in scope["headers"]:
                headers = [(b"content-length", b"5")]
                await send({"type": "http.response.start", "status": 418, "headers": headers})
                await send({"type": "http.response.body", "body": b"early"})
            await self.app(scope, receive, adding)

    app.add_middleware(Adding)
    app.add_middleware(Reading)
    return app


@asynccontextmanager
async def lifespan_of(app: Any) -> AsyncIterator[None]:
    """The mounted app's own lifespan, which no framework runs by itself."""
    async with app.router.lifespan_context(app):
        yield


def starlette(app: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/in", app)], lifespan=lambda _host: lifespan_of(app))


def fastapi(app: Any) -> Any:
    from fastapi import APIRouter, FastAPI

    router = APIRouter(prefix="/own")

    @router.get("")
    async def own() -> dict[str, str]:
        return {"host": "fastapi"}

    host = FastAPI(lifespan=lambda _host: lifespan_of(app))
    host.include_router(router)
    host.mount("/in", app)
    return host


AROUND: dict[str, Callable[[Any], Any]] = {
    "base": base,
    "cors": cors,
    "django": django,
    "fastapi": fastapi,
    "gzip": gzip,
    "meddling": meddling,
    "starlette": starlette,
}
