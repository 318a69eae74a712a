"""Requests that other servers forward to this one: whose they are, what they are, and the sealing of their answers.

What is inside is handed on as a request like any other. It comes from a server that has proved who it is, on this very
connection and before anything of the body is read; what the client may do is still to be decided.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queenmq.cluster.keys import KeyRing
from queenmq.cluster.peer_session import Ends, Session, answer
from queenmq.errors import Forbidden, HttpError, WouldJournal
from queenmq.http.peer_messages import (
    CALLER,
    FORWARDED,
    GREET,
    GREETING,
    read_request_head,
    sealed_answer,
)
from queenmq.httpserver.messages import CERTIFIED, PROVEN, Application, Request, Response
from queenmq.httpserver.refusals import error_response

# On the refusal of a push that would be journalled: it is journalled where it came to.
WOULD_JOURNAL = b"X-Queen-Would-Journal"
PERHAPS_STORED = b"perhaps-stored"  # its value if the database may have the push all the same

_SESSION = "peer session"  # what is remembered of a connection


class PeerRequests:
    """In front of the application of a server that coordinates."""

    def __init__(
        self,
        ring: KeyRing,
        name: bytes,
        handle: Application,
        admit: Callable[[Request], Awaitable[object]],
        *,
        certified_only: bool = False,
    ) -> None:
        """`certified_only`: servers of the cluster show a certificate."""
        self._ring = ring
        self._name = name
        self._handle = handle
        self._admit = admit
        self._certified_only = certified_only

    async def handle(self, request: Request) -> Response:
        if request.forwarded or request.path == FORWARDED:
            return await self._handle_forwarded(request)
        if request.path == GREET:
            return self._greeted(request)
        return await self._handle(request)

    async def admit(self, request: Request) -> None:
        """For a request with a large body, before that is read."""
        if request.path == FORWARDED:
            self._open_head(request)
        await self._admit(request)

    def _greeted(self, request: Request) -> Response:
        """Raises Forbidden if it was no server of the cluster that has greeted this one."""
        if self._certified_only and CERTIFIED not in request.connection:
            raise Forbidden(
                "only servers of this cluster may greet, and they show a certificate of the authority in "
                "QUEEN_TLS_PEER_CA_FILE"
            )
        caller = request.headers.get(CALLER, b"")
        answered = answer(self._ring, Ends(caller, self._name), request.headers.get(GREETING, b""))
        if answered is None:
            raise Forbidden(
                "only servers of this cluster may greet: the one that greets has another QUEEN_SYNC_SECRET, "
                "or means another server than this one"
            )
        said, request.connection[_SESSION] = answered
        return Response(200, headers=((b"X-Queen-Greeting", said),))

    async def _handle_forwarded(self, request: Request) -> Response:
        if not request.forwarded:
            self._open_head(request)
        session: Session = request.connection[_SESSION]
        body = session.open(request.body)
        if body is None:
            raise _refusal(request)
        request.body = body
        try:
            response = await self._handle(request)
        except HttpError as error:
            response = error_response(error)
            if isinstance(error, WouldJournal):
                response.headers += ((WOULD_JOURNAL, PERHAPS_STORED if error.is_unknown else b"true"),)
        return sealed_answer(session, response)

    def _open_head(self, request: Request) -> None:
        """Make it the request that is inside. Raises Forbidden if it is not the next one of its connection."""
        session: Session | None = request.connection.get(_SESSION)
        head = None if session is None else read_request_head(session, request.headers)
        if head is None:
            raise _refusal(request)
        # Not before: a greeting can be recorded and sent again by anyone.
        request.connection[PROVEN] = True
        path, _, request.query_string = head.target.partition(b"?")
        request.method = head.method
        request.path = path.decode("latin-1")
        request.headers = dict(head.headers)
        request.origin = head.origin
        request.forwarded = True


def _refusal(request: Request) -> Forbidden:
    """Of the connection nothing is believed any more."""
    request.connection.pop(_SESSION, None)
    request.connection.pop(PROVEN, None)
    return Forbidden("only servers of this cluster may forward requests")
