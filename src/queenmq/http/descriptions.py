"""What the OpenAPI document says of parameters in paths and of the fields of the types of the verbs.

Only the document needs it, so it stands here and not between the fields, which decoders read. What a field's own
annotation says counts more. A test demands a description of every parameter and of every such field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Fields = Mapping[str, str]

IN_PATH: Final[Fields] = {
    "queue": "Name of the queue.",
    "group": "Name of the consumer group; `__QUEUE_MODE__` is that of pops without a group.",
    "partition": "Name of the partition.",
    "leaseId": "Lease under which the messages were popped.",
    "partitionId": "Id of the partition of the message.",
    "transactionId": "Name of the message in its partition, which its producer gave it.",
    "operationId": "Id of the operation, as the answer with 202 has it.",
    "name": "Name of the pipeline or of the trace.",
    "namespace": "Namespace of the queues.",
    "timerKey": "Key of the timer in its queue.",
    "tokenId": "Id of the token.",
    "file": "Name of the file.",
}

# Of a field in any type of a verb, unless the type says something else.
_FIELDS: Final[Fields] = {
    "queue": "Name of the queue.",
    "queueName": "Name of the queue.",
    "partition": "Name of the partition.",
    "partitionName": "Name of the partition.",
    "partitionId": "Id of the partition.",
    "partition_id": "The same as `partitionId`, for clients that read this spelling.",
    "consumerGroup": "Name of the consumer group; without one, that of pops without a group.",
    "transactionId": "Name of the message in its partition, which its producer gave it or which was made for it.",
    "transaction_id": "The same as `transactionId`, for clients that read this spelling.",
    "messageId": "Id of the message.",
    "message_id": "The same as `messageId`, for clients that read this spelling.",
    "leaseId": "Lease under which the message was popped.",
    "traceId": "Id of the trace that the producer gave the message.",
    "trace_id": "Id of the trace that the producer gave the message.",
    "producerSub": "Subject of the token with which the message was pushed, if it was pushed with one.",
    "headers": "Headers of the message: names with texts.",
    "operationId": "Id of the operation to ask about.",
    "index": "Place of the request's item that this is the result of, from 0 on.",
    "success": "Whether it was done.",
    "dlq": "Whether the message is a dead letter now.",
    "code": "The same reason for programs; it does not change between versions.",
    "owner": "Name of the holder of the lock.",
    "slot": "Number of the permit, from 0 on.",
    "token": "Fencing number of the permit, which grows with every holder.",
    "key": "Key in its namespace.",
    "ns": "Namespace of the key.",
    "version": "Version of the key, which every change makes greater.",
    "timerKey": "Key of the timer in its queue.",
    "deliverAt": "Moment at which the message is pushed.",
    "txn": "Name of the message that the timer pushes.",
    "expiresAt": "Moment at which it ends unless it is renewed; null if it does not.",
    "updatedAt": "Moment of the last change.",
    "renewedAt": "Moment at which the permit was renewed last.",
    "since": "Moment since when it is held.",
    "kv": "Changes of keys, in the form of /api/v1/kv.",
    "timers": "Changes of timers, in the form of /api/v1/timers.",
    "conflicts": "Partitions that do not end where it was expected.",
}
_ACK: Final[Fields] = {
    "status": "What became of the message: `completed` (the default), `failed`, `retry` or `dlq`.",
    "error": "Reason of the failure, which is stored with the message.",
}
_ERROR: Final[Fields] = {
    "error": "What was refused and why, in a sentence for people.",
    "code": "The reason for programs; it does not change between versions.",
    "field": "Field or parameter at fault.",
    "queueDepth": "How many operations wait in the operation queue, which is full.",
}
_RESULT: Final[Fields] = {"error": "Why it was not done; null if it was."}

OF_TYPES: Final[Mapping[str, Fields]] = {
    "Error": _ERROR,
    "ConflictError": _ERROR,
    "OffsetDiffers": {"expected": "Last offset that the request expects.", "actual": "Last offset that there is."},
    "Progress": {
        "done": "How much is done.",
        "total": "How much there is to do; null if nobody knows before the end.",
        "unit": "What is counted.",
    },
    # Push
    "PushBody": {
        "items": "Messages to push; those of one partition keep this order.",
        "expect": "Last offsets that partitions must have for anything to be stored.",
    },
    "PushItem": {
        "": "One message to push.",
        "payload": "Payload of the message: any JSON.",
        "transactionId": "Name of the message in its partition; a second one of this name is a duplicate. One is made "
        "if it is left out.",
    },
    "Expectation": {"lastOffset": "Offset of the last message of the partition; 0 if there must be none."},
    "PushResult": {
        "status": "What became of the item: `queued` is stored, `duplicate` was stored before, `failed` is refused, "
        "`buffered` is on disk and stored later, `scheduled` waits for its moment.",
        "error": "Why the item was refused.",
        "queuePosition": "How many operations are before it.",
        "estimatedWait": "Seconds until it is likely to be stored; null if nobody knows.",
        "reason": "Why it is stored later.",
    },
    # Pop
    "Popped": {
        "success": "True, also if there are no messages.",
        "queue": "Queue of the messages; null if there are none or they are of several.",
        "partition": "Partition of the first message; null if there is none.",
        "partitionId": "Id of the partition of the first message; null if there is none.",
        "leaseId": "Lease of all these messages, to acknowledge and renew them.",
        "partitionsClaimed": "How many partitions the lease holds.",
        "messages": "The messages, those of one partition in their order.",
        "conflation": "Whether the group gets only the newest message of each partition.",
        "conflationConflict": "Whether the group does not do what this pop asks for, because it was set otherwise.",
    },
    "PoppedMessage": {
        "": "One message as it is delivered.",
        "id": "Id of the message.",
        "data": "Payload of the message, as it was pushed.",
        "createdAt": "Moment of the push, by the clock of the database.",
        "retryCount": "How often it was delivered to the group before and failed.",
    },
    # Ack
    "AckBody": {"": "One message to acknowledge.", **_ACK},
    "AckBatchItem": {"": "One message of several to acknowledge.", **_ACK},
    "AckBatchBody": {
        "": "Messages to acknowledge, of one group.",
        "acknowledgments": "The messages and what became of each.",
    },
    "AckResult": {
        "": "What became of one acknowledgement.",
        **_RESULT,
        "queueName": "Name of the queue; null if nothing was acknowledged.",
        "partitionName": "Name of the partition; null if nothing was acknowledged.",
        "leaseReleased": "Whether the lease has ended with it.",
    },
    # Leases
    "ExtendBody": {"": "For how long a lease is extended.", "seconds": "Seconds from now on; 60 if left out."},
    "LeaseRenewed": {
        "": "A lease that was extended.",
        "leaseId": "The lease.",
        "renewed": "True: the lease lives.",
        "error": "Null: nothing is wrong.",
        "newExpiresAt": "Moment at which the lease ends now.",
        "expiresAt": "The same moment.",
        "lease_expires_at": "The same moment, for clients that read this spelling.",
    },
    "LeaseLost": {
        "": "A lease that has ended: nothing was changed.",
        "leaseId": "The lease.",
        "renewed": "False: the lease has ended.",
        "error": "Why it was not extended.",
    },
    "FinishBody": {
        "": "What became of the messages of a lease, and what to pop next.",
        **_ACK,
        "except": "Messages of the lease of which something else is said.",
        "take": "Parameters of a pop that follows.",
    },
    "TakeBody": {
        "partition": "Pop from this partition only.",
        "batch": "Maximum number of messages.",
        "partitions": "Maximum number of partitions that they may be of.",
        "wait": "Wait for messages if there are none.",
        "timeout": "Milliseconds to wait at most.",
        "autoAck": "Acknowledge the messages as they are delivered.",
        "subscriptionMode": "Where a new group starts: with `all` messages or only with `new` ones.",
        "subscriptionFrom": "Moment from which on a new group gets messages, or `now`.",
    },
    "ExceptedBody": {"": "A message of the lease that had another result than the rest.", **_ACK},
    "ExceptedResult": {"": "What became of one exception.", **_RESULT},
    "LeaseFinished": {
        "leaseId": "The lease.",
        **_RESULT,
        "messages": "How many messages were acknowledged.",
        "dlq": "How many of them are dead letters now.",
        "except": "What became of each exception.",
        "taken": "What the pop delivered; null if there was nothing.",
        "takeError": "Why nothing could be popped.",
    },
    # Transactions
    "TransactionBody": {
        "operations": "Pushes and acknowledgements, which are all applied or none of them.",
        "expect": "Last offsets that partitions must have for anything to be applied.",
        "requiredLeases": "Leases that must live for anything to be applied.",
    },
    "Operation": {
        "type": "`push` or `ack`.",
        "items": "Messages to push, of a `push`.",
        "status": "What became of the message, of an `ack`.",
        "error": "Reason of the failure, of an `ack`.",
    },
    "TransactionResult": {
        "transactionId": "Id of the transaction.",
        "success": "Whether all was applied; if not, nothing was.",
        "error": "Why nothing was applied.",
        "reason": "Why nothing was applied, for programs.",
        "results": "One result for each pushed message and each acknowledgement.",
        "kv": "What became of each change of a key.",
        "timers": "What became of each change of a timer.",
        "failedIndex": "Place of the change of a key that was required and not applied.",
        "kvReason": "Why that change was not applied.",
        "version": "Version that the key of that change has.",
        "value": "Value that the key of that change has.",
    },
    "TransactionPush": {
        "": "A message that the transaction has pushed.",
        "type": "Always `push`.",
        "offset": "Its number in the partition: without gaps, in the order of the commits.",
    },
    "TransactionAck": {"": "An acknowledgement of the transaction.", "type": "Always `ack`.", **_RESULT},
    # Configure
    "ConfigureBody": {
        "": "A queue to make or to change, with its options.",
        "namespace": "Namespace of the queue; left out, it stays as it is.",
        "task": "Task of the queue; left out, it stays as it is.",
        "options": "Options of the queue.",
    },
    "Configured": {
        "": "The queue as it is now.",
        "configured": "Always true.",
        "queueId": "Id of the queue.",
        "partitionId": "Id of its partition `Default`.",
        "namespace": "Namespace of the queue.",
        "task": "Task of the queue.",
        "options": "All options of the queue.",
    },
    "QueueOptions": {
        "leaseTime": "Seconds that a consumer may take for a batch.",
        "maxSize": "Most messages that may wait for the slowest group; 0 for no limit.",
        "ttl": "Seconds after which a message is not delivered any more; null for never.",
        "retryLimit": "Failures of a message after which it is delivered again; one more makes it a dead letter.",
        "retryDelay": "Milliseconds before a failed batch is delivered again.",
        "deadLetterQueue": "Whether messages that are not delivered in time become dead letters.",
        "dlqAfterMaxRetries": "Whether a lease that expires counts as a failure of the first unfinished message.",
        "priority": "In a pop by namespace and task, queues with the higher number are served first.",
        "delayedProcessing": "Seconds from the push of a message until it is delivered.",
        "windowBuffer": "Seconds without a push to a partition until it is served.",
        "retentionSeconds": "Seconds after which messages are deleted, read or not; 0 for never.",
        "completedRetentionSeconds": "Seconds after which messages are deleted that every group has finished; 0 for "
        "never.",
        "retentionEnabled": "Whether the two retention times count.",
        "encryptionEnabled": "Whether payloads are stored encrypted.",
        "maxWaitTimeSeconds": "Seconds after which messages are deleted that some group has not finished; 0 for never.",
        "archiveBeforeDelete": "Whether only messages that are archived are deleted.",
        "setAsideFailedPushes": "Whether a deferred push that the database refuses lets those behind it pass.",
        "popWaitBaseIntervalMs": "Milliseconds after which a long poll is probed again; null as the server is set.",
        "popWaitMaxIntervalMs": "Longest milliseconds between two probes; null as the server is set.",
        "popWaitBackoffThreshold": "Empty probes after which the interval grows; null as the server is set.",
        "popWaitBackoffMultiplier": "Factor by which the interval grows; null as the server is set.",
    },
    # Seek
    "SeekBody": {
        "": "Where a group is moved to: one of the two.",
        "toEnd": "Move it behind the last message.",
        "timestamp": "Move it behind the messages of this moment.",
    },
    "Sought": {
        "": "A group that was moved in a queue.",
        "status": "`queued` or `running` if it goes on behind the answer.",
        "progress": "How far it is.",
        "seekToEnd": "Whether it was moved behind the last message.",
        "targetTimestamp": "Moment that it was moved to; null for the end.",
        "partitionsUpdated": "In how many partitions it was moved.",
    },
    "PartitionSought": {
        "status": "`queued` or `running` if it goes on behind the answer.",
        "progress": "How far it is.",
        "updated": "Whether the group was moved.",
        "cursorMovedTo": "Offset of the last message that counts as read now.",
    },
    # Timers
    "TimersBody": {"": "Timers to make, replace and cancel.", "operations": "The changes, in their order."},
    "TimerOperation": {
        "op": "`schedule` and `reschedule` make or replace a timer, `cancel` ends it.",
        "partition": "Partition to which the message is pushed.",
        "data": "Payload of the message: any JSON.",
        "payload": "The same payload as Base64 of its JSON, instead of `data`.",
        "payloadZstd": "Whether `payload` is compressed with Zstandard.",
        "delayMs": "Milliseconds until the message is pushed.",
        "schedule": "Moments of a repeated timer, as crontab has them.",
        "timeZone": "Time zone of `schedule`, for example Europe/Rome; UTC if left out.",
    },
    "TimersChanged": {"": "What the changes of timers led to.", "results": "One result for each change, in order."},
    "TimerChanged": {
        "ok": "Whether the timer is now as it was asked for.",
        "status": "What became of the timer.",
    },
    # Keys and locks
    "KeysBody": {"": "Changes and reads of values under keys.", "operations": "They are applied in this order."},
    "KeyOperation": {
        "op": "What is done.",
        "key": "Key that is changed, checked or read.",
        "value": "Value to store: any JSON.",
        "ttlSeconds": "Seconds after which the key is gone.",
        "forever": "Keep the key until it is deleted.",
        "expect": "Version that the key must have; 0 if it must not exist.",
        "required": "Apply nothing of the request if this is not applied.",
        "delta": "What `incr` adds.",
        "min": "Least number that `incr` may lead to.",
        "max": "Greatest number that `incr` may lead to.",
        "keys": "Keys that `getMany` reads.",
        "prefix": "Beginning of the keys that `getPrefix` reads.",
        "after": "Key behind which `getPrefix` goes on.",
        "limit": "Most keys that `getPrefix` answers with.",
        "keysOnly": "Leave the values out.",
    },
    "KeyResults": {
        "results": "One result for each operation, in order.",
        "failedIndex": "Place of the operation whose condition does not hold; nothing was applied.",
    },
    "KeyResult": {
        "applied": "Whether the change was applied.",
        "found": "Whether the key exists.",
        "reason": "Why the change was not applied.",
        "value": "Value of the key.",
        "rows": "Keys that were read.",
        "missing": "Keys that do not exist.",
        "truncated": "Whether there is more than an answer may have.",
        "nextAfter": "Key behind which to go on; null at the end.",
    },
    "KeyRow": {"": "A key that was read.", "value": "Value of the key, unless only keys were asked for."},
    "KeyGuard": {
        "op": "Always `check`.",
        "expect": "Version that the key of the lock has.",
        "required": "Always true.",
    },
    "LocksBody": {"": "Locks to acquire, renew, release and read.", "operations": "They are done in this order."},
    "LockBody": {
        "op": "What is done.",
        "name": "Name of the lock.",
        "owner": "Name of the holder; a new one is made if it is left out.",
        "ttlSeconds": "Seconds for which the permit is held unless it is renewed.",
        "limit": "How many may hold the lock at once.",
    },
    "LockResults": {"": "What became of the locks.", "results": "One result for each operation, in order."},
    "LockResult": {
        "acquired": "Whether a permit was acquired.",
        "renewed": "Whether the permit was renewed.",
        "released": "Whether the permit was given back.",
        "held": "Whether somebody holds the lock.",
        "already": "Whether this owner had the permit before.",
        "guard": "Condition for transactions: nothing is applied if the permit is lost.",
        "reason": "Why it was not done.",
        "holders": "Who holds the lock.",
    },
    "LockHolder": {"": "Who holds a permit of a lock."},
    # Fetch
    "FetchBody": {
        "": "Partitions to read without a group.",
        "entries": "The partitions, each with where to begin.",
        "maxBytes": "Most bytes of payload of all entries together.",
    },
    "FetchEntry": {
        "offset": "Offset of the first message.",
        "since": "Moment of the first message.",
        "limit": "Most messages; cut to the server's limit.",
        "maxBytes": "Most bytes of payload; one message comes in any case.",
    },
    "MessagesFetched": {"": "What was read.", "entries": "One entry for each that was asked for, in order."},
    "FetchedEntry": {
        "error": "Why there are no records, for programs.",
        "message": "Why there are no records.",
        "records": "The messages in their order.",
        "highWatermark": "Offset that the next message will get.",
        "logStartOffset": "First offset that is not deleted for certain.",
        "nextOffset": "Offset to go on with.",
    },
    "FetchedRecord": {
        "": "One message as it is stored.",
        "offset": "Its number in the partition: without gaps, in the order of the commits.",
        "id": "Id of the message.",
        "payload": "Payload of the message, as it was pushed.",
        "ts": "Moment of the push, by the clock of the database.",
    },
}


def described(components: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The types with what is said here of those that are named here."""
    return {
        name: _described(schema, OF_TYPES[name]) if name in OF_TYPES else schema for name, schema in components.items()
    }


def _described(schema: dict[str, Any], told: Fields) -> dict[str, Any]:
    texts = {**_FIELDS, **told}
    properties = {
        name: {"description": texts[name]} | field if name in texts else field
        for name, field in schema.get("properties", {}).items()
    }
    about = {"description": told[""]} if "" in told else {}
    return about | schema | {"properties": properties}
