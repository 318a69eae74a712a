"""POST /api/v1/lease/{leaseId}/extend and /api/v1/lease/{leaseId}/finish"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import Raw

from queenmq.access.permissions import Verb
from queenmq.broker.finish import NO_LEASE, Finished
from queenmq.config import Settings
from queenmq.core.acknowledgement import STATUSES, Excepted, Finish, read_error
from queenmq.core.names import QUEUE_MODE, check_name, iso_millis
from queenmq.errors import InvalidRequest, Overloaded, QueenError
from queenmq.http.decoding import decode
from queenmq.http.openapi import ANY_STRING, documented
from queenmq.http.requests import DEFAULT_RENEW_S, ExceptedBody, ExtendBody, FinishBody, Finishing
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.routes.ack import opaque_lease
from queenmq.http.routes.pop import encoded, read_take
from queenmq.http.routes.push import check_count
from queenmq.http.schemas import ExceptedResult, LeaseFinished, LeaseLost, LeaseRenewed
from queenmq.http.scopes import leased
from queenmq.http.shares import polling
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid

_decoder = msgspec.json.Decoder(ExtendBody | None)
_finish_decoder = msgspec.json.Decoder(FinishBody)


@documented(
    {200: LeaseRenewed, 404: LeaseLost},
    body=ExtendBody | None,
    body_required=False,
    path={"leaseId": ANY_STRING},
)
async def extend_lease(request: Request, context: Context) -> Response:
    """Renew a lease for every partition that it covers; 404 if it has ended."""
    body = decode(request.body, _decoder, empty=b"{}") or ExtendBody()
    seconds = DEFAULT_RENEW_S if body.seconds is None else body.seconds
    lease_id = request.params[0]
    expiry = await context.broker.renew(lease_id.lower(), seconds) if is_uuid(lease_id) else None
    return Response(404 if expiry is None else 200, shown_renewal(lease_id, expiry))


def shown_renewal(lease_id: str, expiry: datetime | None) -> LeaseRenewed | LeaseLost:
    if expiry is None:
        return LeaseLost(
            lease_id=lease_id, success=False, renewed=False, error="Lease not found", code="lease_not_found"
        )
    until = iso_millis(expiry)
    return LeaseRenewed(
        lease_id=lease_id,
        success=True,
        renewed=True,
        error=None,
        new_expires_at=until,
        expires_at=until,
        lease_expires_at=until,
    )


@documented(
    {200: LeaseFinished, 404: LeaseFinished, 409: LeaseFinished},
    body=FinishBody,
    body_required=False,
    path={"leaseId": ANY_STRING},
)
async def finish_lease(request: Request, context: Context) -> Response:
    """Acknowledge all that a lease has delivered and that is not finished, with exceptions, and pop again (`take`).

    404 if the lease has ended, 409 if an exception is no message of it: then nothing is changed. With `take` the answer
    is 200 and says of both halves what became of them; the lease is finished before the pop waits, which it does not
    while as many long polls wait as the token or the namespace may have.
    """
    body = decode(request.body, _finish_decoder, empty=b"{}")
    finish = read_finish(request.params[0], body, context.settings)
    broker = context.broker
    if body.take is None:
        finished = await broker.finish(finish)
        return Response(_http_status(finished), shown_finish(request.params[0], body, finished))
    claim, wait_ms = read_take(body.take, request, context.settings)
    problem = too_many = None
    with ExitStack() as waiting:
        if wait_ms:
            try:
                waiting.enter_context(polling(request, context, claim.queue))
            except Overloaded as error:  # concerns the pop only, which does not wait then
                wait_ms, too_many = 0, error.message
        # What was finished stays finished, also if the token is revoked while the pop waits.
        if wait_ms and request.token_id is not None and not claim.auto_ack:
            waiting.enter_context(context.revocable.waiting(request.token_id))
        if body.take.if_finished:
            finished, delivered = await broker.finish(finish), None
            try:
                delivered = None if finished.problem else await broker.pop(claim, wait_ms)
            except QueenError as error:  # the lease is finished, and that must be said
                problem = str(error)
        else:
            taken = await broker.take(finish, claim, wait_ms)
            finished, delivered, problem = taken.finished, taken.delivered, taken.problem
    answer = shown_finish(request.params[0], body, finished)
    answer.taken = cast(Any, Raw(encoded(delivered))) if delivered else None
    answer.take_error = problem if delivered or problem else too_many
    return Response(200, answer)


def read_finish(lease_id: str, body: Finishing, settings: Settings, field: str = "") -> Finish:
    """`field` is where it stands, with a dot at its end."""
    check_count(len(body.excepted), settings, f"{field}except")
    return Finish(
        opaque_lease(lease_id.lower()) or "",
        _status(body.status or "completed", f"{field}status"),
        read_error(body.error, f"{field}error"),
        tuple(_excepted(one, f"{field}except[{index}].") for index, one in enumerate(body.excepted)),
    )


def _status(status: str, field: str) -> str:
    if status not in STATUSES:
        raise InvalidRequest(f"{field} must be completed, success, failed, dlq or retry, not {status!r}", field)
    return status


def _excepted(one: ExceptedBody, prefix: str) -> Excepted:
    check_name(one.transaction_id, f"{prefix}transactionId")
    if one.partition_id is not None and not is_uuid(one.partition_id):
        raise InvalidRequest(f"{prefix}partitionId must be a UUID", f"{prefix}partitionId")
    status = _status(one.status, f"{prefix}status")
    partition_id = None if one.partition_id is None else one.partition_id.lower()
    return Excepted(one.transaction_id, partition_id, status, read_error(one.error, f"{prefix}error"))


def _http_status(finished: Finished) -> int:
    if finished.problem is None:
        return 200
    return 404 if finished.problem == NO_LEASE else 409


def shown_finish(lease_id: str, body: Finishing, finished: Finished) -> LeaseFinished:
    answer = LeaseFinished(
        lease_id=lease_id,
        success=finished.problem is None,
        error=finished.problem,
        messages=finished.messages,
        dlq=finished.dead_lettered,
        excepted=[
            ExceptedResult(
                index=index, transaction_id=one.transaction_id, success=problem is None, error=problem, dlq=dead
            )
            for index, (one, (problem, dead)) in enumerate(zip(body.excepted, finished.excepted, strict=True))
        ],
    )
    if finished.code is not None:
        answer.code = finished.code
    return answer


async def _scope(request: Request, context: Context) -> Sequence[Need]:
    """The queue and the group of the lease, and those of the pop."""
    needs = [*await leased(request, context)]
    take = decode(request.body, _finish_decoder, empty=b"{}").take
    if take is not None:
        group = take.consumer_group or QUEUE_MODE
        needs.append(Need(Verb.POP, take.queue, group))
        if take.auto_ack:
            needs.append(Need(Verb.ACK, take.queue, group))
    return needs


ROUTES = (
    Route("POST", "/api/v1/lease/{leaseId}/extend", extend_lease, Role.READ_WRITE, scope=leased),
    Route("POST", "/api/v1/lease/{leaseId}/finish", finish_lease, Role.READ_WRITE, scope=_scope),
)
