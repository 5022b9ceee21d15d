"""Errors as the OpenAI API tells them: {"error": {"message", "type", "param", "code"}} with a fitting status."""

from __future__ import annotations

import logging
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent.service import CancelledByOwnerError
from shards.errors import CapacityError, EdgeAgentError, OverloadedError, RequestError, StageError

log = logging.getLogger(__name__)

RETRY_SECONDS = 5
"""What a client that came at a bad moment is told to wait."""

LONGEST_RETRY_SECONDS = 60
"""The most that one is told to wait: common clients take longer ones for a mistake, and choose for themselves."""


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.body, self.status, self.headers)


def explain(error: Exception) -> ApiError:
    """The API's words for any error."""
    match error:
        case ApiError():
            return error
        case OverloadedError():
            wait = _retry_after(error.retry_seconds)
            return ApiError(429, str(error), kind="rate_limit_error", code="overloaded", headers=wait)
        case CancelledByOwnerError():  # a status that clients do not try again at
            return ApiError(403, str(error), kind="request_cancelled", code="cancelled")
        case RequestError() | CapacityError():  # what does not fit now will not fit later either
            named = error.what if not error.where or error.where in error.what else f"{error.where}: {error.what}"
            message = f"{named}. {error.hint}" if error.hint else named
            code = "invalid_value" if isinstance(error, RequestError) else "context_length_exceeded"
            return ApiError(400, message, param=error.where, code=code)
        case StageError():
            wait = _retry_after(RETRY_SECONDS)
            return ApiError(503, str(error), kind="server_error", code="stage_failed", headers=wait)
        case EdgeAgentError():
            return ApiError(500, str(error), kind="server_error", code="internal_error")
        case _:
            log.error("an unexpected error in the API", exc_info=error)
            what = f"the server met an error it does not know: {type(error).__name__}: {error}"
            return ApiError(500, what, kind="server_error", code="internal_error")


def _retry_after(seconds: float) -> dict[str, str]:
    """A header in whole seconds, at least one: at once would be again too early."""
    return {"Retry-After": str(max(1, ceil(min(seconds, LONGEST_RETRY_SECONDS))))}


def install(app: FastAPI) -> None:
    """Answer every error in the API's own form."""

    @app.exception_handler(Exception)
    @app.exception_handler(EdgeAgentError)
    @app.exception_handler(ApiError)
    async def _explained(request: Request, error: Exception) -> JSONResponse:
        return explain(error).response()

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid_body(error).response()

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ApiError):  # raised while the framework was reading the body
            return error.__cause__.response()
        path = f"{request.method} {request.url.path}"
        known = {
            400: f"the body is not JSON that can be read: {error.__cause__}",  # the framework raises no other 400
            404: f"there is no {request.url.path} here",
            405: f"{path} is not a method of this address",
        }
        message = known.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=dict(error.headers or {})).response()


def _invalid_body(error: RequestValidationError) -> ApiError:
    """Name the first field that is wrong, and what it is."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    path = [str(part) for part in first["loc"] if part != "body"]
    field = ".".join(path) or None
    message = first["msg"].removeprefix("Value error, ")
    if field is None and first["type"] == "model_attributes_type":
        return ApiError(400, "the body must be a JSON object")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"this server does not know the field {field!r}", param=field, code="unknown_parameter")
    if first["type"] == "missing":
        what = f"the field {field!r} is missing" if field else "the body is missing"
        return ApiError(400, what, param=field, code="missing_required_parameter")
    return ApiError(400, f"{field}: {message}" if field else message, param=field, code="invalid_value")
