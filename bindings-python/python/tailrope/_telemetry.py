"""OpenTelemetry: what the engine observes, as spans and histograms of the program's own providers.

Nothing is imported before the program has imported the API, and nothing is done before it has set a provider. What a
provider or an exporter does wrong costs its span or its measurement, and no call.
"""

from __future__ import annotations

import contextvars
import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from tailrope._native import __version__, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrope._native import Session, TaskCall

logger = logging.getLogger("tailrope")

MAX_OPEN = 20_000
"""Spans of calls that may be open. Older ones are ended."""

TRACEPARENT = b"traceparent"

_instance: _Telemetry | None = None
_has_failed = False


def look() -> _Telemetry | None:
    """What is used of OpenTelemetry; None before the program has set it up."""
    global _instance
    if _instance is None:
        try:
            if _is_set_up():
                _instance = _Telemetry()
        except Exception as error:
            failed(error)
    return _instance


def _is_set_up() -> bool:
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return True
    metrics: Any = sys.modules.get("opentelemetry.metrics")
    # The classes of the API's own providers are not public.
    return metrics is not None and type(metrics.get_meter_provider()).__module__ != "opentelemetry.metrics._internal"


def failed(error: BaseException) -> None:
    """Says the first time that OpenTelemetry does not work."""
    global _has_failed
    if not _has_failed:
        _has_failed = True
        logger.warning("OpenTelemetry failed, and calls go on without it: %r", error)


def observed(
    call: tuple[str, str] | None,
    under: tuple[str, str] | None,
    instrument: str | None,
    duration_ms: int | None,
    error: str | None,
    attributes: dict[str, Any],
    dimensions: dict[str, Any],
) -> None:
    """Something is over: see the core's `Observation`."""
    telemetry = look()
    if telemetry is None:
        return
    try:
        span = None
        if call is not None:
            span = telemetry.open.pop(call, None)
        elif under is not None:
            span = telemetry.begun(under[0], under[1], duration_ms or 0)
        try:
            if instrument is not None and duration_ms is not None:
                telemetry.measure(instrument, duration_ms / 1_000, dimensions, span)
        finally:
            if span is not None:
                telemetry.end(span, attributes, error)
    except Exception as fault:
        failed(fault)


def begin(
    session: Session,
    request_id: int | str,
    params: Any,
    is_spanned: Callable[[str], bool],
    context: contextvars.Context | None,
) -> contextvars.Context | None:
    """Begins the span of a call, and gives the context that its handler is to have. `is_spanned` says whether the SDK
    makes one itself for a method."""
    telemetry = look()
    if telemetry is None:
        return context
    inner = contextvars.copy_context() if context is None else context
    try:
        inner.run(telemetry.begin, session, request_id, params, is_spanned)
    except Exception as error:
        failed(error)
    return inner


def begin_run(
    call: TaskCall, body: bytes, is_spanned: Callable[[], Callable[[str], bool]], context: contextvars.Context
) -> None:
    """A run of a call that may become a task begins in this context: in the call's span, which the first one begins."""
    telemetry = look()
    if telemetry is not None:
        try:
            context.run(telemetry.begin_run, call, body, is_spanned())
        except Exception as error:
            failed(error)


def go_on(context: contextvars.Context) -> None:
    """The running context is in the trace of this one."""
    telemetry = look()
    if telemetry is not None:
        telemetry.go_on(context)


def relaying(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The headers of a request that is relayed, which say where it is in its trace."""
    telemetry = look()
    if telemetry is None or not body:
        return headers
    try:
        trace = telemetry.relayed(body)
    except Exception as error:
        failed(error)
        return headers
    if trace is None:
        return headers
    return [*((name, value) for name, value in headers if name != TRACEPARENT), (TRACEPARENT, trace.encode())]


class _Telemetry:
    def __init__(self) -> None:
        from opentelemetry import context, metrics, propagate, trace

        self._context, self._propagate, self._trace = context, propagate, trace
        self._tracer = trace.get_tracer("tailrope", __version__)
        self._meter = metrics.get_meter("tailrope", __version__)
        self._instruments: dict[str, Any] = {}
        self.open: dict[tuple[str, str], Any] = {}
        """The spans of the calls that run, by their sessions and requests."""
        self._boundaries = observe()

    def measure(self, instrument: str, seconds: float, dimensions: dict[str, Any], span: Any) -> None:
        histogram = self._instruments.get(instrument)
        if histogram is None:
            histogram = self._instruments[instrument] = self._meter.create_histogram(
                instrument, "s", explicit_bucket_boundaries_advisory=self._boundaries
            )
        # With the span an exemplar of the measurement leads to the trace.
        histogram.record(seconds, dimensions, self._trace.set_span_in_context(span) if span is not None else None)

    def _parent(self, params: Any) -> Any:
        """Where a request is in a trace: what its `_meta` says, or the running context."""
        meta = params.get("_meta") if isinstance(params, dict) else None
        if isinstance(meta, dict):
            said = self._propagate.extract({name: text for name, text in meta.items() if isinstance(text, str)})
            if self._trace.get_current_span(said).get_span_context().is_valid:
                return said
        return self._context.get_current()

    def begin(self, session: Session, request_id: int | str, params: Any, is_spanned: Callable[[str], bool]) -> None:
        said = session.call_span(request_id)
        if said is None:
            return
        where = self._begin(said, params, is_spanned)
        if where is not None:
            session.trace_call(request_id, _written(where))

    def begin_run(self, call: TaskCall, body: bytes, is_spanned: Callable[[str], bool]) -> None:
        said = call.span()
        if said is None:
            return
        span = self.open.get(said[0])
        if span is not None:
            self._context.attach(self._trace.set_span_in_context(span))
        else:
            self._begin(said, json.loads(body).get("params"), is_spanned)

    def _begin(
        self, said: tuple[tuple[str, str], str, dict[str, Any]], params: Any, is_spanned: Callable[[str], bool]
    ) -> Any:
        """Begins the span of a call, and enters it. Gives its place in its trace, if it has one."""
        call, name, attributes = said
        parent = self._parent(params)
        kinds = self._trace.SpanKind
        if is_spanned(str(attributes.get("mcp.method.name"))):
            # The SDK's span is that of the handler, and this one of the answer.
            span = self._tracer.start_span(f"deliver {name}", parent, kinds.INTERNAL, attributes)
        else:
            span = self._tracer.start_span(name, parent, kinds.SERVER, attributes)
        where = span.get_span_context()
        if not where.is_valid:
            return None
        if len(self.open) >= MAX_OPEN:
            self.open.pop(next(iter(self.open))).end()
        self.open[call] = span
        self._context.attach(self._trace.set_span_in_context(span, parent))
        return where

    def go_on(self, context: contextvars.Context) -> None:
        self._context.attach(context.run(self._context.get_current))

    def end(self, span: Any, attributes: Mapping[str, Any], error: str | None) -> None:
        span.set_attributes(attributes)
        if error is not None:
            span.set_status(self._trace.StatusCode.ERROR, error)
        span.end()

    def begun(self, parent: str, name: str, duration_ms: int) -> Any:
        """A span that began so long ago."""
        _, trace_id, span_id, flags = parent.split("-")
        trace = self._trace
        flag = trace.TraceFlags(int(flags, 16))
        where = trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flag)
        context = trace.set_span_in_context(trace.NonRecordingSpan(where), self._context.Context())
        return self._tracer.start_span(name, context, start_time=time.time_ns() - duration_ms * 1_000_000)

    def relayed(self, body: bytes) -> str | None:
        """A span of the relay, as the place in the trace from which the call goes on at its own process."""
        message = json.loads(body)
        if not isinstance(message, dict) or "method" not in message or "id" not in message:
            return None
        span = self._tracer.start_span("relay", self._parent(message.get("params")))
        span.end()
        where = span.get_span_context()
        return _written(where) if where.is_valid else None


def _written(where: Any) -> str:
    """The place of a span as W3C Trace Context writes it."""
    return f"00-{where.trace_id:032x}-{where.span_id:016x}-{where.trace_flags & 0xFF:02x}"


def _after_fork() -> None:
    # The calls of the parent end there.
    if _instance is not None:
        _instance.open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
