"""What servers of a cluster send each other over HTTP: a greeting, and then requests and answers whose heads are sealed
in one header and whose bodies are sealed, too. Beside that nothing of an answer is believed."""

from __future__ import annotations

from base64 import b64decode, b64encode

import msgspec

from queenmq.cluster.peer_session import Session
from queenmq.httpserver.messages import BODILESS, Header, Request, Response

GREET = "/internal/greeting"
FORWARDED = "/internal/forward"
CALLER = b"x-forwarded-by"
GREETING = b"x-queen-greeting"
SEALED = b"x-queen-sealed"

_encode = msgspec.msgpack.Encoder().encode


class RequestHead(msgspec.Struct, frozen=True, array_like=True):
    """`origin` names all attempts of the request."""

    method: str
    target: bytes
    origin: str
    headers: list[Header]


class AnswerHead(msgspec.Struct, frozen=True, array_like=True):
    """Names of headers are in lower case."""

    status: int
    content_type: bytes
    headers: list[Header]


_decode_request = msgspec.msgpack.Decoder(RequestHead).decode
_decode_answer = msgspec.msgpack.Decoder(AnswerHead).decode


def written_greeting(caller: bytes, said: bytes) -> bytes:
    lines = (b"GET %b HTTP/1.1" % GREET.encode(), b"Host: queen", b"X-Forwarded-By: " + caller)
    return b"\r\n".join((*lines, b"X-Queen-Greeting: " + said, b"", b""))


def written_request(session: Session, head: RequestHead, body: bytes) -> bytes:
    sealed_head = b64encode(session.seal(_encode(head)))
    sealed = session.seal(body)
    lines = [
        b"POST %b HTTP/1.1" % FORWARDED.encode(),
        b"Host: queen",
        b"X-Queen-Sealed: " + sealed_head,
        b"Content-Length: %d" % len(sealed),
    ]
    # In clear, so that the log of the other server has it whatever happens.
    lines += [b"X-Request-Id: " + value for name, value in head.headers if name == b"x-request-id"]
    return b"\r\n".join((*lines, b"", sealed))


def read_request_head(session: Session, headers: dict[bytes, bytes]) -> RequestHead | None:
    opened = _opened(session, headers)
    return None if opened is None else _decode_request(opened)


def sealed_answer(session: Session, response: Response) -> Response:
    """With the same status where that can have a body; what counts is the sealed one."""
    content_type = b"" if response.status in BODILESS else response.content_type
    headers = [(name.lower(), value) for name, value in response.headers]
    head = AnswerHead(response.status, content_type, headers)
    header = (b"X-Queen-Sealed", b64encode(session.seal(_encode(head))))
    status = 200 if response.status in BODILESS else response.status
    return Response(
        status, body=session.seal(response.encode()), content_type=b"application/octet-stream", headers=(header,)
    )


def read_answer_head(session: Session, headers: dict[bytes, bytes]) -> AnswerHead | None:
    opened = _opened(session, headers)
    return None if opened is None else _decode_answer(opened)


def target_of(request: Request) -> bytes:
    path = request.path.encode("latin-1")
    return path + b"?" + request.query_string if request.query_string else path


def _opened(session: Session, headers: dict[bytes, bytes]) -> bytes | None:
    """What a server of the cluster has sealed decodes: both ends have the same version."""
    try:
        return session.open(b64decode(headers.get(SEALED, b""), validate=True))
    except ValueError:
        return None
