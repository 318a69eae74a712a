"""Metrics of the HTTP front: its connections, and the memory for bodies and answers."""

from __future__ import annotations

from queenmq.http.exposition import Exposition
from queenmq.httpserver.memory import HttpMemory


def add_front(page: Exposition, memory: HttpMemory) -> None:
    bodies, answers, crowd = memory.bodies, memory.answers, memory.crowd
    page.gauge("queen_http_connections", "Open HTTP connections.", len(crowd))
    page.gauge("queen_http_connections_max", "Most HTTP connections that may be open at once.", crowd.most)
    page.counter(
        "queen_http_connections_refused_total",
        "HTTP connections that were refused because all others were in use.",
        crowd.refused,
    )
    page.counter(
        "queen_http_connections_closed_for_room_total",
        "HTTP connections that were idle or had sent no whole request, and were closed to make room for others.",
        crowd.closed_for_room,
    )
    if memory.tls is not None:
        page.gauge(
            "queen_tls_certificate_expiry_timestamp_seconds",
            "When the certificate of the server expires, in seconds since 1970.",
            memory.tls.expires_at,
        )
        page.counter("queen_tls_reloads_total", "How often changed TLS files were read again.", memory.tls.reloads)
        page.counter("queen_tls_handshakes_failed_total", "TLS handshakes that failed.", memory.tls.handshakes_failed)
    page.gauge("queen_http_body_bytes", "Memory that is reserved for large request bodies.", bodies.reserved)
    page.gauge("queen_http_bodies_waiting", "Large request bodies that wait for memory.", bodies.waiting)
    page.counter(
        "queen_http_body_waits_total", "Large request bodies that had to wait for memory.", bodies.waited_total
    )
    page.counter(
        "queen_http_body_timeouts_total",
        "Large request bodies that arrived too slowly and were refused.",
        bodies.timeouts,
    )
    page.gauge(
        "queen_http_incoming_bytes",
        "Memory for requests that have not arrived whole or wait behind others, without large bodies.",
        memory.incoming.size,
    )
    page.counter(
        "queen_http_incoming_closed_total",
        "HTTP connections that were closed because such requests took too much memory.",
        memory.incoming.closed,
    )
    page.gauge("queen_http_unsent_bytes", "Bytes of answers that clients have not read yet.", answers.size)
    page.counter(
        "queen_http_given_up_total",
        "Clients that were disconnected because they did not read their answers.",
        answers.given_up,
    )
