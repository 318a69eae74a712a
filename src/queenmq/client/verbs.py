"""The verbs of the contract: what each sends and how its answer is read. No grammar, no state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw

from queenmq.client.caller import Caller
from queenmq.client.errors import (
    Conflict,
    InvalidResponse,
    NetworkError,
    NotFound,
    OperationFailed,
    OperationTimeout,
    Overloaded,
    QueenError,
    TransactionFailed,
    Unavailable,
)
from queenmq.client.finish import Finish
from queenmq.client.items import PushItem
from queenmq.client.models import (
    Accepted,
    AckResult,
    DeadLetters,
    FinishResult,
    Json,
    Message,
    Operation,
    PopAnswer,
    PushResult,
    PushResults,
    RenewResult,
    TakeResult,
    TraceResult,
    TransactionResult,
)
from queenmq.client.options import ClientOptions
from queenmq.client.payload import encode
from queenmq.client.transport import Reply, Request

LONG_POLL_MARGIN_S = 5.0
_FIRST_LOOK_S = 0.1
_LAST_LOOK_S = 1.0

Answer = TypeVar("Answer")

_encode = msgspec.json.Encoder().encode
_push_answer = msgspec.json.Decoder(list[PushResult] | Accepted)
_push_results = msgspec.json.Decoder(list[PushResult])
_pop_answer = msgspec.json.Decoder(PopAnswer)
_ack_answer = msgspec.json.Decoder(list[AckResult] | Accepted)
_operation = msgspec.json.Decoder(Operation)
_transaction = msgspec.json.Decoder(TransactionResult)
_renewed = msgspec.json.Decoder(RenewResult)
_finished = msgspec.json.Decoder(FinishResult)
_taken = msgspec.json.Decoder(TakeResult)
_dead_letters = msgspec.json.Decoder(DeadLetters)
_traced = msgspec.json.Decoder(TraceResult)


class Ack(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """An acknowledgement as it is sent."""

    transaction_id: str
    partition_id: str
    status: str = ""
    error: str | None = None
    lease_id: str = ""


def to_ack(message: Message, status: str, error: str | None) -> Ack:
    return Ack(
        transaction_id=message.transaction_id,
        partition_id=message.partition_id,
        status=status,
        error=error,
        lease_id=message.lease_id,
    )


def path_of(*parts: str) -> str:
    """A path whose parts are names that may have any character."""
    return "/" + "/".join(_segment(part) for part in parts)


def _segment(name: str) -> str:
    # Dots alone would be read as "this folder" and "the folder above".
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def with_query(path: str, params: Mapping[str, Any]) -> str:
    """The path with those parameters that have a value."""
    given = {name: _parameter(value) for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _parameter(value: Any) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


class Verbs:
    def __init__(self, caller: Caller, options: ClientOptions) -> None:
        self._caller = caller
        self._options = options

    async def push(self, items: Sequence[PushItem], expected: int | None = None) -> PushResults:
        """One result per item, in order. Repeating it is safe: the items carry their transactionIds.

        `expected` is the last offset that the partition of the items must have.
        """
        if not items:
            return PushResults()

        def read(reply: Reply) -> PushResults:
            return _complete(items, _push_answer.decode(reply.content))

        body: Json = {"items": items}
        if expected is not None:
            body["expect"] = [{"queue": items[0].queue, "partition": items[0].partition, "lastOffset": expected}]
        request = Request("POST", "/api/v1/push", _encode(body))
        results = await self._caller.call(request, read)
        if self._options.queued_operation_behavior == "poll":
            return await self._settle_push(items, results)
        return results

    async def pop(self, path: str, params: Mapping[str, Any], waits_ms: int | None) -> list[Message]:
        """The messages; none if there are none. `waits_ms` is how long the server may hold the request."""
        timeout_s = None if waits_ms is None else waits_ms / 1000 + LONG_POLL_MARGIN_S

        def read(reply: Reply) -> list[Message]:
            answer = _pop_answer.decode(reply.content) if reply.content else PopAnswer()
            return [message for message in answer.messages if message is not None]

        return await self._caller.call(Request("GET", with_query(path, params), timeout_s=timeout_s), read)

    async def fetch(self, entries: Sequence[Json], decoder: msgspec.json.Decoder[Answer]) -> Answer:
        request = Request("POST", "/api/v1/fetch", _encode({"entries": entries}))
        return await self._caller.call(request, lambda reply: decoder.decode(reply.content))

    async def ack(self, acks: Sequence[Ack], group: str | None) -> list[AckResult]:
        """One result per ack, in order. Repeating it is safe: an ack with a lease that is over changes nothing."""
        if not acks:
            return []

        def read(reply: Reply) -> list[AckResult]:
            results = _acked(acks, _ack_answer.decode(reply.content))
            for result in results:
                result.uncertain = reply.uncertain and not result.success
            return results

        body = {"acknowledgments": acks, "consumerGroup": group}
        results = await self._caller.call(Request("POST", "/api/v1/ack/batch", _encode(body)), read)
        if self._options.queued_operation_behavior == "poll":
            return await self._settle_acks(acks, results)
        return results

    async def finish(self, lease_id: str, finish: Finish) -> FinishResult:
        """Acknowledge the rest of a lease. One that is over is a result, not an error, and so is a wrong exception."""
        request = Request("POST", _finish_path(lease_id), _encode(finish))
        try:
            return await self._caller.call(request, lambda reply: _finished.decode(reply.content))
        except (NotFound, Conflict) as error:
            said = {"leaseId": lease_id, "success": False, "error": error.message, "code": error.code}
            result = msgspec.convert(said | {"except": error.body.get("except", [])}, FinishResult)
            result.uncertain = error.uncertain and result.is_over
            return result

    async def take(self, lease_id: str, finish: Finish, pop: Mapping[str, Any], waits_ms: int | None) -> TakeResult:
        """Finish a lease, then pop with these parameters, in one request. Raises NotFound if the server cannot."""
        timeout_s = None if waits_ms is None else waits_ms / 1000 + LONG_POLL_MARGIN_S

        def read(reply: Reply) -> TakeResult:
            taken = _taken.decode(reply.content)
            taken.uncertain = reply.uncertain and not taken.success
            return taken

        asked = {name: value for name, value in pop.items() if value is not None}
        body = msgspec.to_builtins(finish) | {"take": asked}
        request = Request("POST", _finish_path(lease_id), _encode(body), timeout_s=timeout_s)
        return await self._caller.call(request, read)

    async def transact(
        self, operations: Sequence[Json], leases: Sequence[str], riders: Mapping[str, Sequence[Json]]
    ) -> tuple[TransactionResult, bool]:
        """What the server says, and whether an earlier attempt may have been the one that was applied.

        What changes keys and pushes nothing is not repeated when an attempt may have worked, or counters would count
        twice: only a message that is there already tells a repetition. Raises TransactionFailed then.
        """
        changes_keys = any(change.get("op") != "check" for change in riders.get("kv", ()))
        repeatable = not changes_keys or any(operation["type"] == "push" for operation in operations)

        def read(reply: Reply) -> tuple[TransactionResult, bool]:
            return _transaction.decode(reply.content), reply.uncertain

        body = {"operations": operations, "requiredLeases": leases} | {name: few for name, few in riders.items() if few}
        request = Request("POST", "/api/v1/transaction", _encode(body), repeatable=repeatable)
        try:
            return await self._caller.call(request, read)
        except (Unavailable, NetworkError, InvalidResponse) as error:
            unseen = isinstance(error, Overloaded) or (isinstance(error, NetworkError) and not error.sent)
            if repeatable or unseen:
                raise
            raise TransactionFailed(error.message, uncertain=True) from error

    async def renew(self, lease_id: str, seconds: int) -> RenewResult:
        """A lease that is over is a result, not an error."""
        request = Request("POST", path_of("api", "v1", "lease", lease_id, "extend"), _encode({"seconds": seconds}))
        try:
            return await self._caller.call(request, lambda reply: _renewed.decode(reply.content))
        except NotFound as error:
            return RenewResult(lease_id=lease_id, success=False, error=error.message)

    async def dead_letters(self, params: Mapping[str, Any]) -> DeadLetters:
        request = Request("GET", with_query("/api/v1/dlq", params))
        return await self._caller.call(request, lambda reply: _dead_letters.decode(reply.content))

    async def trace(self, message: Message, data: Any, names: Sequence[str], event_type: str) -> TraceResult:
        """Never raises. It is not repeated when an attempt may have worked, or the trace would be there twice."""
        body = {
            "transactionId": message.transaction_id,
            "partitionId": message.partition_id,
            "consumerGroup": message.consumer_group or None,
            "data": encode(data),
            "eventType": event_type,
            "traceNames": list(names) or None,
        }
        request = Request("POST", "/api/v1/traces", _encode(body), repeatable=False)
        try:
            return await self._caller.call(request, lambda reply: _traced.decode(reply.content))
        except QueenError as error:
            return TraceResult(success=False, error=error.message)

    async def ask_once(self, what: str, operations: list[Json]) -> Any:
        """Operations on keys or locks, which are not repeated when an attempt may have worked."""
        request = Request("POST", path_of("api", "v1", what), _encode({"operations": operations}), repeatable=False)
        return (await self._caller.call(request, _read_json))[1]

    async def ask(self, method: str, path: str, body: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        """Any other call: the answer as plain Python values. A 202 is waited for if the options say so."""
        content = None if body is None else _encode(body)
        request = Request(method, with_query(path, params or {}), content)
        status, answer = await self._caller.call(request, _read_json)
        waits = self._options.queued_operation_behavior == "poll"
        if waits and status == 202 and isinstance(answer, dict) and isinstance(answer.get("operationId"), str):
            return msgspec.json.decode((await self.settle(answer["operationId"])).result)
        return answer

    async def operation(self, operation_id: str) -> Operation:
        request = Request("GET", path_of("api", "v1", "operations", operation_id))
        return await self._caller.call(request, lambda reply: _operation.decode(reply.content))

    async def settle(self, operation_id: str) -> Operation:
        """The operation once it is completed. Raises OperationFailed, or OperationTimeout when it takes too long."""
        pause = _FIRST_LOOK_S
        try:
            async with asyncio.timeout(self._options.poll_timeout_millis / 1000):
                while not (operation := await self.operation(operation_id)).done:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LAST_LOOK_S)
        except TimeoutError:
            waited = self._options.poll_timeout_millis / 1000
            message = f"operation {operation_id} has not ended after {waited:g} s; it will be carried out all the same"
            raise OperationTimeout(message, operation_id) from None
        if operation.status != "completed":
            raise OperationFailed(operation.why, operation_id)
        return operation

    async def _settle_push(self, items: Sequence[PushItem], results: PushResults) -> PushResults:
        """The same results with what became of those that were accepted for later.

        What came out of the journal may have been queued behind others, so an operation can lead to another one.
        """
        settled = PushResults(results)
        seen: set[str] = set()
        while waiting := [one for one in settled.operations if one not in seen]:
            for operation_id in waiting:
                where = [index for index, result in enumerate(settled) if result.operation_id == operation_id]
                found = _operation_results(await self.settle(operation_id), [items[index] for index in where])
                for index, result in zip(where, found, strict=True):
                    settled[index] = _named(index, items[index], result)
            seen.update(waiting)
        return settled

    async def _settle_acks(self, acks: Sequence[Ack], results: list[AckResult]) -> list[AckResult]:
        operation_id = results[0].operation_id
        if operation_id is None:
            return results
        operation = await self.settle(operation_id)
        try:
            return _acked(acks, msgspec.json.decode(operation.result, type=list[AckResult]))
        except msgspec.MsgspecError as error:
            raise InvalidResponse(f"operation {operation_id} has no results of acks: {error}") from error


def _finish_path(lease_id: str) -> str:
    return path_of("api", "v1", "lease", lease_id, "finish")


def _complete(items: Sequence[PushItem], answer: list[PushResult] | Accepted) -> PushResults:
    """The results with what only the client knows of them."""
    if isinstance(answer, Accepted):
        return PushResults(_named(index, item, _accepted(answer)) for index, item in enumerate(items))
    if len(answer) != len(items):
        raise InvalidResponse(f"the server answered {len(answer)} results for {len(items)} items")
    return PushResults(_named(index, item, answer[index]) for index, item in enumerate(items))


def _accepted(answer: Accepted) -> PushResult:
    return PushResult(
        status="accepted",
        operation_id=answer.operation_id,
        queue_position=answer.queue_position,
        estimated_wait=answer.estimated_wait,
        reason=answer.reason,
    )


def _named(index: int, item: PushItem, result: PushResult) -> PushResult:
    result.index = index
    result.transaction_id = item.transaction_id
    result.queue, result.partition = item.queue, item.partition
    # On the wire both what is stored and what waits in the operation queue is "queued".
    if result.operation_id is not None and result.status == "queued":
        result.status = "accepted"
    return result


def _operation_results(operation: Operation, items: Sequence[PushItem]) -> list[PushResult]:
    """The result of each item. Items that repeat a transactionId within a push have one in common."""
    try:
        results = _push_results.decode(bytes(operation.result))
        if len(results) == len(items):
            return results
        return _deal({result.transaction_id: result for result in results}, items)
    except (msgspec.MsgspecError, KeyError) as error:
        raise InvalidResponse(f"an operation has no results that fit its push: {error!r}") from error


def _deal(by_key: Mapping[str, PushResult], items: Sequence[PushItem]) -> list[PushResult]:
    dealt: set[str] = set()
    results = []
    for item in items:
        result = msgspec.structs.replace(by_key[item.transaction_id])
        if item.transaction_id in dealt and result.status == "queued":
            result.status = "duplicate"
        dealt.add(item.transaction_id)
        results.append(result)
    return results


def _acked(acks: Sequence[Ack], answer: list[AckResult] | Accepted) -> list[AckResult]:
    if isinstance(answer, Accepted):
        answer = [AckResult(success=True, operation_id=answer.operation_id) for _ in acks]
    if len(answer) != len(acks):
        raise InvalidResponse(f"the server answered {len(answer)} results for {len(acks)} acks")
    for ack, result in zip(acks, answer, strict=True):
        result.transaction_id = ack.transaction_id
    return answer


def _read_json(reply: Reply) -> tuple[int, Any]:
    return reply.status, msgspec.json.decode(Raw(reply.content)) if reply.content else None
