"""One message from push over pop to ack, through the real server and a real PostgreSQL."""

from __future__ import annotations

import httpx


async def test_a_pushed_message_is_popped_and_acknowledged(http: httpx.AsyncClient) -> None:
    pushed = await http.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": {"n": 1}}]})
    assert pushed.status_code == 201
    popped = await http.get("/api/v1/pop/queue/orders")
    [message] = popped.json()["messages"]
    assert message["data"] == {"n": 1}
    ack = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
    acked = await http.post("/api/v1/ack", json=ack)
    assert acked.json()[0]["success"] is True
    assert (await http.get("/api/v1/pop/queue/orders")).status_code == 204
