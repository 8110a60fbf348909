"""The way of spans to a collector of OpenTelemetry, by OTLP over HTTP.

The endpoint comes from the setting `otlp_endpoint`, or from OpenTelemetry's own variables OTEL_EXPORTER_OTLP_ENDPOINT
and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; without one, no spans are made. A thread sends them from a bounded queue. While
the collector is away, the queue drops spans, and nothing else happens.
"""

import logging
import os
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.trace import NoOpTracer, Tracer

from vivavoce_server.build import VERSION
from vivavoce_server.config import ServerConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
TRACES_PATH = "/v1/traces"
INSTALL = "pip install 'vivavoce-speech[otel]'"
NAME = "vivavoce"
CLOSE_S = 2.0
"""Seconds at the end of the server for the last spans."""


class Tracing:
    """The tracer of one server: `tracing = open_tracing(config)`, and `tracing.close()` at its end."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        self._provider = provider
        self.tracer: Tracer = NoOpTracer() if provider is None else provider.get_tracer(NAME, VERSION)

    def close(self) -> None:
        """Sends the last spans, and waits CLOSE_S for it at most."""
        if self._provider is None:
            return
        closing = threading.Thread(target=self._provider.shutdown, name="vivavoce-tracing", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def endpoint_of(config: ServerConfig) -> str | None:
    """The URL that takes spans; None if none is configured."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if config.otlp_endpoint is not None:
        return config.otlp_endpoint.rstrip("/") + TRACES_PATH
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return None
    of_traces, base = (os.environ.get(name, "").strip() for name in VARIABLES)
    return of_traces or (base.rstrip("/") + TRACES_PATH if base else None)


def check_tracing(config: ServerConfig) -> None:
    """Checks that the setting `otlp_endpoint` can be followed. Raises the ValueError of `open_tracing`."""
    if config.otlp_endpoint is not None and (endpoint := endpoint_of(config)) is not None:
        try:
            _exporter(endpoint)
        except ValueError as error:
            raise ValueError(f"--otlp-endpoint: {error}") from None


def open_tracing(config: ServerConfig) -> Tracing:
    """The tracing that is configured. What is lacking for a variable of the environment is a warning.

    Raises:
        ValueError: the setting `otlp_endpoint` cannot be followed; says what would work.
    """
    endpoint = endpoint_of(config)
    if endpoint is None:
        return Tracing()
    try:
        return Tracing(_provider(endpoint))
    except ValueError as error:
        if config.otlp_endpoint is not None:
            raise ValueError(f"--otlp-endpoint: {error}") from None
        log.warning("no spans are sent: %s", error)
        return Tracing()


def _exporter(endpoint: str) -> "SpanExporter":
    """Raises ValueError for an endpoint that this server cannot send to."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("the endpoint is no http:// or https:// URL, such as http://localhost:4318")
    if url.username is not None or url.query:
        raise ValueError("the endpoint has no credentials and no query; OTEL_EXPORTER_OTLP_HEADERS takes a key")
    wanted = next(filter(None, (os.environ.get(name, "").strip() for name in PROTOCOLS)), PROTOCOL)
    if wanted != PROTOCOL:
        raise ValueError(f"this server speaks {PROTOCOL}, not {wanted[:40]!r}; collectors take it at port 4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ValueError(f"the packages that send spans are missing; {INSTALL} brings them") from None
    return OTLPSpanExporter(endpoint=endpoint)


def _provider(endpoint: str) -> "TracerProvider":
    exporter = _exporter(endpoint)
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = Resource.create({"service.name": NAME, "service.version": VERSION})
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
