"""OpenTelemetry, as far as the rest of Fleet needs to know about it."""

from __future__ import annotations

from opentelemetry import trace

__all__ = ["current_traceparent"]


def current_traceparent() -> str | None:
    """Return the span we are in as a W3C ``traceparent``, so that a task's trace begins there."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
