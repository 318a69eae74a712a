"""Values under keys, counters and locks: POST /api/v1/kv and POST /api/v1/locks; GET lists namespaces and locks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import UNSET, Raw, UnsetType

from queenmq.access.permissions import Verb
from queenmq.core.keys import (
    LOCK_NAMESPACE,
    MAX_VALUE_BYTES,
    MOST_OPERATIONS,
    MOST_PERMITS,
    MOST_ROWS,
    KeyChange,
    KeyChanged,
    LockOperation,
    StoredValue,
)
from queenmq.core.names import check_name, check_text, iso_millis, optional_iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.answers.keys import (
    KeyGuard,
    KeyNamespace,
    KeyNamespaces,
    KeyResult,
    KeyResults,
    KeyRow,
    LockHolder,
    LockListed,
    LockResult,
    LockResults,
    LockSeen,
    LocksListed,
)
from queenmq.http.decoding import decode, query_count, query_name
from queenmq.http.openapi import COUNT, NAME, Parameter, documented
from queenmq.http.requests import KeyOperation, KeysBody, LockBody, LocksBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.scopes import listing, permissions_of, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.refusals import TooManyItems
from queenmq.ids import uuid7_text
from queenmq.reports import keys as listed
from queenmq.reports.keys import MOST_COUNTED, HolderRead
from queenmq.storage.failures import KeyConditionFailed, after_commit

_TEXTS = {"operations": "operations array is required"}
_keys = msgspec.json.Decoder(KeysBody)
_locks = msgspec.json.Decoder(LocksBody)
_READS = frozenset({"get", "getMany", "getPrefix"})
_MOST_LISTED = 1000
_PAGE = (
    Parameter("prefix", NAME, "Only names that begin with this."),
    Parameter("after", NAME, "Only names that come behind this one."),
    Parameter("limit", COUNT, f"Most names in the answer, up to {_MOST_LISTED}.", 100),
)


@documented({200: KeyResults}, body=KeysBody)
async def keys(request: Request, context: Context) -> Response:
    """Read and change values; one result for each operation, in order.

    Changes that follow each other are one transaction. A change whose condition does not hold is not applied, and says
    why; if it is `required`, nothing of the request is applied.
    """
    operations = decode(request.body, _keys, _TEXTS).operations
    _check_count(len(operations))
    read = [_checked(one, f"operations[{index}]") for index, one in enumerate(operations)]
    if any(one.required for one in operations) and any(one.op in _READS for one in operations):
        raise InvalidRequest("operations: what is required cannot be in one request with reads", "operations")
    results: list[KeyResult] = []
    changes: list[KeyChange] = []
    try:
        for is_change, run in groupby(read, lambda one: isinstance(one, KeyChange)):
            if is_change:
                with after_commit(bool(changes)):
                    changes = [one for one in run if isinstance(one, KeyChange)]
                    made = await context.broker.keys.change(changes)
                results += key_results(changes, made, request)
            else:
                with after_commit(bool(changes)):
                    results += [await _read(one, context) for one in run if isinstance(one, KeyOperation)]
    except KeyConditionFailed as failed:
        return Response(200, _rolled_back(operations, failed, await value_after(failed, changes, request, context)))
    return Response(200, KeyResults(results=results))


@documented({200: LockResults}, body=LocksBody)
async def locks(request: Request, context: Context) -> Response:
    """Acquire, renew and release permits of locks, and ask who has them; each operation for itself.

    The `token` of a permit is its fencing number: it only grows. `guard` is a condition for /api/v1/kv and transactions
    that holds while the permit is live and unchanged.
    """
    operations = decode(request.body, _locks, _TEXTS).operations
    _check_count(len(operations))
    for index, one in enumerate(operations):
        _check_lock(one, f"operations[{index}]")
    results: list[LockResult] = []
    for one in operations:
        with after_commit(bool(results)):
            results.append(await _lock(one, request, context))
    return Response(200, LockResults(results=results))


@documented({200: KeyNamespaces}, query=_PAGE)
async def list_key_namespaces(request: Request, context: Context) -> Response:
    """The namespaces that have keys, by name."""
    page = *_page(request), visible(request)
    rows, after = await context.reports.search(lambda reader: listed.namespaces(reader, *page))
    shown = [KeyNamespace(namespace=row.namespace, keys=min(row.keys, MOST_COUNTED), more=row.has_more) for row in rows]
    return Response(200, KeyNamespaces(namespaces=shown, next_after=after))


@documented({200: LocksListed}, query=_PAGE)
async def list_locks(request: Request, context: Context) -> Response:
    """The locks that somebody holds, by name, with their holders."""
    page = *_page(request), visible(request)
    held, after = await context.reports.search(lambda reader: listed.locks(reader, *page))
    shown = [LockListed(name=name, holders=[_seen(one) for one in holders]) for name, holders in held.items()]
    return Response(200, LocksListed(locks=shown, next_after=after))


def _page(request: Request) -> tuple[str, str, int]:
    prefix, after = query_name(request.query, "prefix") or "", query_name(request.query, "after") or ""
    return prefix, after, max(1, query_count(request.query, "limit", 100, _MOST_LISTED))


def _seen(row: HolderRead) -> LockSeen:
    return LockSeen(
        slot=int(row.slot),
        owner=row.owner,
        since=row.since,
        expires_at=iso_millis(row.expires_at),
        renewed_at=iso_millis(row.renewed_at),
    )


async def _scope_of_keys(request: Request, _: Context) -> Sequence[Need]:
    operations = decode(request.body, _keys, _TEXTS).operations
    return [key_need(one) for one in operations]


async def _scope_of_locks(request: Request, _: Context) -> Sequence[Need]:
    operations = decode(request.body, _locks, _TEXTS).operations
    return [Need(Verb.READ if one.op == "get" else Verb.PUSH, one.name) for one in operations]


def key_need(operation: KeyOperation) -> Need:
    """A namespace is permitted as a queue of its name would be, and a lock as well."""
    verb = Verb.READ if operation.op in _READS or operation.op == "check" else Verb.PUSH
    return Need(verb, operation.ns.removeprefix(LOCK_NAMESPACE))


def read_change(operation: KeyOperation, field: str) -> KeyChange:
    """A change for a transaction. Raises InvalidRequest for an operation that only reads."""
    change = _checked(operation, field)
    if not isinstance(change, KeyChange):
        raise InvalidRequest(f"{field}: {operation.op} is not for transactions; check is", f"{field}.op")
    return change


async def value_after(
    failed: KeyConditionFailed, changes: Sequence[KeyChange], request: Request, context: Context
) -> Raw | UnsetType:
    """What the key has whose condition did not hold, read afterwards, if the caller may read it."""
    change = changes[failed.index]
    if not _may_read(change.namespace, request):
        return UNSET
    found = await context.broker.keys.find(change.namespace, [change.key], MAX_VALUE_BYTES)
    return Raw(found[0].value.encode()) if found and found[0].value is not None else UNSET


def key_results(changes: Sequence[KeyChange], made: Sequence[KeyChanged], request: Request) -> list[KeyResult]:
    return [_key_result(one, done, _may_read(one.namespace, request)) for one, done in zip(changes, made, strict=True)]


def _may_read(namespace: str, request: Request) -> bool:
    permissions = permissions_of(request)
    return permissions is None or permissions.allows(Verb.READ, namespace.removeprefix(LOCK_NAMESPACE))


def _key_result(change: KeyChange, made: KeyChanged, with_value: bool) -> KeyResult:
    return KeyResult(
        key=change.key,
        applied=made.applied,
        reason=made.reason or UNSET,
        version=UNSET if made.version is None else made.version,
        value=Raw(made.value.encode()) if with_value and made.value is not None else UNSET,
        expires_at=UNSET if made.expires_at is None else iso_millis(made.expires_at),
    )


def _check_count(count: int) -> None:
    if count > MOST_OPERATIONS:
        raise TooManyItems(f"operations has {count} elements, at most {MOST_OPERATIONS} are allowed", "operations")


def _checked(operation: KeyOperation, field: str) -> KeyChange | KeyOperation:
    """Raises InvalidRequest with what is wrong."""
    op = operation.op
    check_name(operation.ns, f"{field}.ns")
    for name, given in (("key", operation.key), ("prefix", operation.prefix), ("after", operation.after)):
        if given is not None:
            check_text(given, f"{field}.{name}")
    for key in operation.keys or ():
        check_name(key, f"{field}.keys")
    if op == "getPrefix":
        return operation
    if op == "getMany":
        if operation.keys is None:
            raise InvalidRequest(f"{field}.keys is required", f"{field}.keys")
        if len(operation.keys) > MOST_ROWS:
            raise InvalidRequest(f"{field}.keys has more than {MOST_ROWS} keys", f"{field}.keys")
        return operation
    if operation.key is None:
        raise InvalidRequest(f"{field}.key is required", f"{field}.key")
    check_name(operation.key, f"{field}.key")
    return operation if op == "get" else _change(operation, operation.key, field)


def _change(operation: KeyOperation, key: str, field: str) -> KeyChange:
    op = operation.op
    if operation.ns.startswith(LOCK_NAMESPACE) and op != "check":
        raise InvalidRequest(f"{field}.ns: {LOCK_NAMESPACE}… is for locks: use POST /api/v1/locks", f"{field}.ns")
    writes = op in ("put", "putIfAbsent", "incr")
    if writes and (operation.ttl_seconds is None) == (not operation.forever):
        raise InvalidRequest(f"{field} needs either ttlSeconds or forever", f"{field}.ttlSeconds")
    if op == "check" and operation.expect is None:
        raise InvalidRequest(f"{field}.expect is required: the version, or 0 for no such key", f"{field}.expect")
    value = None
    if op in ("put", "putIfAbsent"):
        if operation.value is UNSET:
            raise InvalidRequest(f"{field}.value is required", f"{field}.value")
        value = bytes(operation.value).decode()
        if len(operation.value) > MAX_VALUE_BYTES:
            raise InvalidRequest(f"{field}.value has more than {MAX_VALUE_BYTES} bytes", f"{field}.value")
    expected = 0 if op == "putIfAbsent" else operation.expect
    return KeyChange(
        change="put" if op == "putIfAbsent" else op,  # type: ignore[arg-type]
        namespace=operation.ns,
        key=key,
        value=value,
        ttl_s=operation.ttl_seconds if writes else None,
        expected=expected,
        delta=operation.delta,
        least=operation.min,
        most=operation.max,
        required=operation.required,
    )


async def _read(operation: KeyOperation, context: Context) -> KeyResult:
    broker, most = context.broker, context.settings.limits.max_answer_bytes // MOST_OPERATIONS
    if operation.op == "getPrefix":
        limit = MOST_ROWS if operation.limit is None else max(1, min(operation.limit, MOST_ROWS))
        rows = await broker.keys.page(
            *(operation.ns, operation.prefix or "", operation.after or "", limit + 1),
            with_values=not operation.keys_only,
            max_bytes=most,
        )
        shown = [row for row in rows[:limit] if operation.keys_only or not row.omitted] or rows[:1]
        truncated = len(shown) < len(rows)
        return KeyResult(
            rows=[_row(row, operation.keys_only) for row in shown],
            truncated=truncated,
            next_after=shown[-1].key if truncated else None,
        )
    wanted = [operation.key or ""] if operation.op == "get" else list(dict.fromkeys(operation.keys or ()))
    rows = await broker.keys.find(operation.ns, wanted, max(most, MAX_VALUE_BYTES))
    if operation.op == "get":
        if not rows:
            return KeyResult(found=False, key=operation.key or "")
        row = _row(rows[0], keys_only=False)
        return KeyResult(
            found=True,
            key=row.key,
            value=row.value,
            version=row.version,
            expires_at=row.expires_at,
            updated_at=row.updated_at,
        )
    there = {row.key for row in rows}
    return KeyResult(
        rows=[_row(row, keys_only=False) for row in rows if not row.omitted],
        missing=[key for key in wanted if key not in there],
        truncated=any(row.omitted for row in rows),
    )


def _row(row: StoredValue, keys_only: bool) -> KeyRow:
    return KeyRow(
        key=row.key,
        version=row.version,
        expires_at=optional_iso_millis(row.expires_at),
        updated_at=iso_millis(row.updated_at),
        value=UNSET if keys_only or row.value is None else Raw(row.value.encode()),
    )


def _rolled_back(operations: Sequence[KeyOperation], failed: KeyConditionFailed, value: Raw | UnsetType) -> KeyResults:
    results = [KeyResult(key=one.key or UNSET, applied=False, reason="rolled_back") for one in operations]
    guilty = results[failed.index]
    guilty.reason = failed.reason
    guilty.version = UNSET if failed.version is None else failed.version
    guilty.value = value
    return KeyResults(results=results, failed_index=failed.index)


def _check_lock(operation: LockBody, field: str) -> None:
    check_name(operation.name, f"{field}.name")
    if len(LOCK_NAMESPACE + operation.name) > 255:
        raise InvalidRequest(f"{field}.name must have at most 250 characters", f"{field}.name")
    if operation.owner is not None:
        check_name(operation.owner, f"{field}.owner")
    if operation.op in ("acquire", "renew") and operation.ttl_seconds is None:
        raise InvalidRequest(f"{field}.ttlSeconds is required", f"{field}.ttlSeconds")
    if operation.op in ("renew", "release") and operation.token is None:
        raise InvalidRequest(f"{field}.token is required", f"{field}.token")


async def _lock(operation: LockBody, request: Request, context: Context) -> LockResult:
    locks = context.broker.keys
    if operation.op == "get":
        holders = await locks.holders(operation.name)
        return LockResult(held=bool(holders), holders=[_holder(one) for one in holders])
    made = await locks.change_lock(
        LockOperation(
            change=operation.op,
            name=operation.name,
            owner=operation.owner or uuid7_text(),
            ttl_s=operation.ttl_seconds,
            limit=min(operation.limit, MOST_PERMITS),
            slot=operation.slot,
            token=operation.token,
        )
    )
    result = LockResult()
    setattr(result, {"acquire": "acquired", "renew": "renewed", "release": "released"}[operation.op], made.done)
    if not made.done:
        result.reason = "held" if operation.op == "acquire" else "lost"
        # Their tokens would let the caller end what others hold.
        if operation.op != "release" and _may_read(LOCK_NAMESPACE + operation.name, request):
            result.holders = [_holder(one) for one in await locks.holders(operation.name)]
    elif made.token is not None and made.slot is not None:
        result.slot, result.token, result.owner = made.slot, made.token, made.owner or UNSET
        result.already = True if made.already else UNSET
        namespace = LOCK_NAMESPACE + operation.name
        result.guard = KeyGuard(op="check", ns=namespace, key=str(made.slot), expect=made.token, required=True)
    return result


class _Holding(msgspec.Struct):
    owner: str | None = None
    since: str | None = None


def _holder(row: StoredValue) -> LockHolder:
    held = msgspec.json.decode(row.value or "{}", type=_Holding)
    return LockHolder(
        slot=int(row.key),
        owner=held.owner,
        token=row.version,
        since=held.since,
        expires_at=optional_iso_millis(row.expires_at),
        renewed_at=iso_millis(row.updated_at),
    )


ROUTES = (
    Route("GET", "/api/v1/kv", list_key_namespaces, Role.READ_ONLY, scope=listing),
    Route("GET", "/api/v1/locks", list_locks, Role.READ_ONLY, scope=listing),
    Route("POST", "/api/v1/kv", keys, Role.READ_WRITE, scope=_scope_of_keys),
    Route("POST", "/api/v1/locks", locks, Role.READ_WRITE, scope=_scope_of_locks),
)
