"""Transactions: pushes and acks that are applied together or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from queenmq.client.errors import EmptyTransaction, TransactionFailed
from queenmq.client.items import Item, to_items, to_push_item
from queenmq.client.models import DEFAULT_PARTITION, Json, Message, TransactionResult
from queenmq.client.payload import Payload
from queenmq.client.session import Session

Steps = TypeVar("Steps", bound="TransactionSteps")


class TransactionSteps:
    """The steps of a transaction, in order. The transactionIds of its pushes are made when a step is added."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._operations: list[Json] = []
        self._leases: dict[str, None] = {}
        self._own_ids: set[str] = set()
        self._riders: dict[str, list[Json]] = {"expect": [], "kv": []}
        self._is_settled = False  # committed, or given up by an exception

    def ack(
        self,
        messages: Message | Sequence[Message],
        status: Literal["completed", "failed", "dlq"] = "completed",
        context: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> Self:
        """Acknowledge messages: `completed`, or `failed` and `dlq`, which both make dead letters at once."""
        said = context or {}
        for message in [messages] if isinstance(messages, Message) else messages:
            operation = {
                "type": "ack",
                "transactionId": message.transaction_id,
                "partitionId": message.partition_id,
                "status": status,
                "consumerGroup": group or said.get("group") or said.get("consumer_group") or message.consumer_group,
                "leaseId": message.lease_id,
                "error": error or said.get("error"),
            }
            self._operations.append({name: value for name, value in operation.items() if value})
            if message.lease_id:
                self._leases[message.lease_id] = None
        return self

    def keys(self, *operations: Json) -> Self:
        """Changes of keys, made with the functions of `queenmq.client.keys`, or the `guard` of a lock. If one that is
        required is not applied, nothing of the transaction is."""
        self._riders["kv"].extend(operations)
        return self

    def queue(self, name: str) -> TransactionQueue[Self]:
        """Where the next push goes: `.queue("b").partition("eu").push(items)`."""
        return TransactionQueue(self, name)

    def add_push(
        self, queue: str, partition: str, items: Item | Payload, expected_last_offset: int | None = None
    ) -> None:
        """Push items to a partition; `.queue(…).partition(…).push(…)` says the same."""
        given = to_items(items)
        if expected_last_offset is not None:
            self._riders["expect"].append({"queue": queue, "partition": partition, "lastOffset": expected_last_offset})
        pushed = [to_push_item(item, queue, partition) for item in given]
        if pushed:
            self._operations.append({"type": "push", "items": pushed})
        pairs = zip(given, pushed, strict=True)
        self._own_ids |= {push.transaction_id for item, push in pairs if item.transaction_id is None}

    def __del__(self) -> None:
        # As Python does for a coroutine that nobody has awaited: it had no effect.
        if self._operations and not self._is_settled:
            warnings.warn("a transaction was never committed", RuntimeWarning, source=self, stacklevel=2)

    async def _commit(self) -> TransactionResult:
        self._is_settled = True
        if not (self._operations or self._riders["kv"]):
            raise EmptyTransaction
        result, uncertain = await self._session.verbs.transact(self._operations, list(self._leases), self._riders)
        if result.success:
            return result
        refusal = result.error or "the transaction was refused"
        if uncertain and self._is_repetition(refusal):
            return TransactionResult(success=True, transaction_id=result.transaction_id, repeated=True)
        raise TransactionFailed(refusal, uncertain=uncertain, conflicts=result.conflicts, reason=result.reason)

    def _is_repetition(self, refusal: str) -> bool:
        """Whether a transactionId is in use that only this transaction can have brought there."""
        return any(own in refusal for own in self._own_ids)


class TransactionQueue(Generic[Steps]):
    """A queue as the target of a push within a transaction; `push` leads back to the transaction."""

    def __init__(self, steps: Steps, name: str) -> None:
        self._steps = steps
        self._name = name
        self._partition = DEFAULT_PARTITION

    def partition(self, name: str) -> Self:
        self._partition = name
        return self

    def push(self, items: Item | Payload, *, expected_last_offset: int | None = None) -> Steps:
        """One item or a list, as `Queue.push` takes them. Here a transactionId that is in use fails the whole, and so
        does a partition that has another last offset than expected."""
        self._steps.add_push(self._name, self._partition, items, expected_last_offset)
        return self._steps


class Transaction(TransactionSteps):
    """Commit it, or use it as a context manager, which commits unless an exception leaves it.

    >>> async with queen.transaction() as transaction:  # doctest: +SKIP
    ...     transaction.ack(message).queue("results").push({"sum": 4})
    """

    async def commit(self) -> TransactionResult:
        """Apply all steps. Raises TransactionFailed if nothing was applied.

        It is repeated when an answer is lost, and never applied twice. If it pushes something without a transactionId
        of yours, the retry returns what happened; otherwise the error has `uncertain` set. What changes keys and pushes
        nothing is not repeated.
        """
        return await self._commit()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_settled = True
        if kind is None:
            await self.commit()
