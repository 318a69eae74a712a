"""The night on call: ten troubles at once on real servers.

For each, the clicks from the overview to its cause, and from there to the mend: at most three and two.
docs/how-to/on-call.md has the same table, and `queen doctor` the same words.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import jwt
import pytest
from cluster.processes import QUEEN, ServeProcess, environment
from integration.queen import age_messages
from playwright.sync_api import Browser, Locator, Page, expect

from dashboard.axe import serious_findings
from dashboard.browser import PATIENCE_MS, outside, visit
from dashboard.conftest import two_servers
from dashboard.scene import Shop
from dashboard.steps import confirm, dialog, press, told

if TYPE_CHECKING:
    from conftest import Postgres

JWT_SECRET = "a secret of more than thirty-two bytes"
DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "on-call.md"
GROUPS = 200
MOST_TO_CAUSE, MOST_TO_MEND = 3, 2
AGED_S = 9000  # said as "2 h", for half an hour: as long as these tests may take on a busy machine
STUCK = {"X-Queen-Consumer": "name=billing-worker&host=till-4&process=77"}


@dataclass
class Night:
    url: str
    database: str
    administrator: str
    shop: Shop
    token: str
    peer: ServeProcess
    expired: str
    doctor: list[dict[str, str]]

    def is_said_by_doctor(self, *words: str) -> bool:
        return any(all(word in finding["sentence"] for word in words) for finding in self.doctor)


class Walk:
    """Somebody who begins at the overview and uses nothing but what the page shows."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.to_cause = self.to_mend = 0
        self._mends = False
        page.goto("/#/")

    def trouble(self, *words: str) -> Locator:
        found = self.page.get_by_role("list", name="What needs attention").get_by_role("listitem")
        for word in words:
            found = found.filter(has_text=word)
        return found

    def look(self, *words: str) -> None:
        """Follow the link of the trouble that has these words."""
        expect(self.trouble(*words)).to_have_count(1)
        self.trouble(*words).get_by_role("link", name="Look").click()
        self._count()

    def cause_is_known(self) -> None:
        self._mends = True

    def press(self, button: str, *, of: str, within: Locator | None = None) -> None:
        press(within or self.page, button, of=of)
        self._count()

    def confirm(self, button: str) -> None:
        confirm(self.page, button)
        self._count()

    def _count(self) -> None:
        if self._mends:
            self.to_mend += 1
        else:
            self.to_cause += 1

    def is_over(self, *words: str) -> None:
        """The overview does not mention it any more, or not soon."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            self.page.goto("/#/")
            self.page.reload()
            expect(self.page.locator(".health")).to_be_visible()
            if self.trouble(*words).count() == 0:
                return
            assert time.monotonic() < deadline, f"still there: {words}"


@contextmanager
def held_transaction(url: str) -> Iterator[None]:
    """Somebody has begun a transaction in psql and gone to bed."""
    over, begun = threading.Event(), threading.Event()

    async def hold() -> None:
        session = await asyncpg.connect(url, server_settings={"application_name": "psql of ann"})
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        begun.set()
        await asyncio.to_thread(over.wait)
        with suppress(asyncpg.PostgresError, OSError, asyncpg.InterfaceError):
            await session.close()

    thread = threading.Thread(target=lambda: asyncio.run(hold()))
    thread.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        over.set()
        thread.join()


def plant(shop: Shop, database: str) -> str:
    """Everything but the lost peer and the held horizon. Returns the token that has expired."""

    async def age(queue: str) -> None:
        sql = await asyncpg.connect(database)
        await age_messages(sql, queue, AGED_S)
        await sql.execute("UPDATE queen.consumers SET seen_at = now() - make_interval(secs => $1)", AGED_S)
        await sql.execute(
            "UPDATE queen.partition_consumers SET last_consumed_at = now() - make_interval(secs => $1)", AGED_S
        )
        await sql.close()

    # A consumer that died with a long lease.
    shop.configure("invoices", leaseTime=7200)
    shop.push("invoices", "acme", 1, 2, 3)
    answer = shop.http.get("/api/v1/pop/queue/invoices", params={"consumerGroup": "billing", "batch": 3}, headers=STUCK)
    assert answer.status_code == 200
    # A message that no consumer can process.
    shop.configure("payments", retryLimit=9, retryDelay=3_600_000)
    for partition in ("globex", "initech"):
        shop.push("payments", partition, {"n": 1}, {"n": 2}, name="payment")
    shop.read("payments", "ledger", partition="initech", batch=2)
    shop.fail("payments", "ledger", "globex", "no such currency: XXY")
    # A window that pushes keep open.
    shop.configure("readings", windowBuffer=900)
    shop.pop("readings", "charts")
    shop.push("readings", "sensor-7", 1)
    # A group that somebody has paused.
    shop.push("mails", "p", 1)
    shop.read("mails", "smtp")
    shop.push("mails", "p", 2)
    shop.call("POST", "/api/v1/pause", {"queue": "mails", "consumerGroup": "smtp", "reason": "provider is moving"})
    # A queue that takes no more.
    shop.configure("uploads", maxSize=5)
    shop.push("uploads", "p", *range(5))
    shop.ack(shop.pop("uploads", "scanner"), "retry")
    # A group that nobody reads for, among hundreds: its consumer was at the server that is lost.
    shop.push("events", "p", 2)
    for number in range(GROUPS):
        if number != 137:
            assert len(shop.pop("events", f"group-{number:03}", autoAck=True, batch=2)) == 2
    # Dead letters of many causes; most are of one.
    shop.configure("orders", retryLimit=0)
    shop.push("orders", "p", *range(40), name="order")
    causes = "disk full", "no route to host", "permission denied", "bad checksum", "unknown country", "too large"
    for number, message in enumerate(shop.pop("orders", "shop", "p", batch=40)):
        error = causes[number % 6] if number % 2 else f"the stock service answers 503 after {number} ms"
        shop.ack([message], "dlq", error)
    # A token that expired while it was in use.
    made = shop.call("POST", "/api/v1/tokens", {"name": "till", "role": "read-write", "expiresInSeconds": 2})
    till = httpx.Client(base_url=shop.http.base_url, headers={"Authorization": f"Bearer {made['token']}"})
    assert till.get("/api/v1/session").status_code == 200
    for queue in ("invoices", "payments", "readings", "mails", "uploads", "events"):
        outside(age(queue))
    shop.push("readings", "sensor-7", 2)
    until(lambda: till.get("/api/v1/session").status_code == 401)
    till.close()
    return str(made["token"])


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def judged(url: str, token: str) -> list[dict[str, str]]:
    """What `queen doctor` finds."""
    told = subprocess.run(
        [sys.executable, "-c", QUEEN, "doctor", "--json"],
        env=environment(QUEEN_URL=url, QUEEN_TOKEN=token),
        capture_output=True,
        check=False,
    )
    findings: list[dict[str, str]] = json.loads(told.stdout)["findings"]
    return findings


@pytest.fixture(scope="module")
def night(browser: Browser, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    database = outside(postgres.create())
    token = jwt.encode({"sub": "ann", "role": "admin", "exp": time.time() + 864_000}, JWT_SECRET, "HS256")
    with ExitStack() as stack:
        stack.callback(lambda: outside(postgres.drop(database)))
        servers = stack.enter_context(
            two_servers(
                folder,
                database,
                JWT_ENABLED="true",
                JWT_SECRET=JWT_SECRET,
                QUEEN_SYNC_HEARTBEAT_MS="200",
                QUEEN_SYNC_DEAD_THRESHOLD_MS="2000",
                QUEEN_HORIZON_WARNING_S="1",
            )
        )
        shop = Shop(servers[0].url, token)
        stack.callback(shop.http.close)
        until(lambda: shop.call("GET", "/api/v1/live")["serversAlive"] == 2)
        shop.push("events", "p", 1)
        other_shop = Shop(servers[1].url, token)
        assert other_shop.read("events", "group-137") == 1
        other_shop.call("GET", "/api/v1/troubles")  # which notes who has popped
        other_shop.http.close()
        servers[1].kill()
        expired = plant(shop, database)
        stack.enter_context(held_transaction(database))
        shop.push("unrelated", "p", 1)  # a transaction that is newer than the one that is held
        until(lambda: shop.call("GET", "/api/v1/live")["serversDead"] == 1)
        shop.refresh()
        until(lambda: any(one["kind"] == "horizon" for one in shop.call("GET", "/api/v1/troubles")["troubles"]))
        doctor = judged(servers[0].url, token)
        administrator = postgres.administrator_of(database)
        yield Night(servers[0].url, database, administrator, shop, token, servers[1], expired, doctor)


@pytest.fixture
def walk(browser: Browser, night: Night) -> Iterator[Walk]:
    with visit(browser, night.url) as page:
        page.add_init_script(f"sessionStorage.setItem('queen.token', {json.dumps(night.token)})")
        yield Walk(page)


def the_table() -> dict[str, tuple[int, int]]:
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\| (\d) \|[^|]+\| (\d) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {name: (int(cause), int(mend)) for name, cause, mend in rows}


def arrived(walk: Walk, trouble: str) -> None:
    """As many clicks as the documentation says, and no more than are allowed."""
    assert (walk.to_cause, walk.to_mend) == the_table()[trouble]
    assert walk.to_cause <= MOST_TO_CAUSE
    assert walk.to_mend <= MOST_TO_MEND


def test_dead_consumer(walk: Walk, night: Night) -> None:
    walk.look("Group billing is 2 h behind in invoices / acme")
    why = walk.page.get_by_role("region", name="Why is nothing delivered?")
    expect(why).to_contain_text("Held by billing-worker on till-4, process 77")
    walk.cause_is_known()
    walk.press("Release the lease", of="partition", within=why)
    walk.confirm("Release the lease")
    told(walk.page, "3 messages will be delivered again")
    assert night.shop.read("invoices", "billing", batch=3) == 3
    walk.is_over("invoices")
    arrived(walk, "dead consumer")
    assert night.is_said_by_doctor("Group billing is 2 h behind", "billing-worker on till-4, process 77")


def test_poison_message(walk: Walk, night: Night) -> None:
    walk.look("1 partition of payments has a failing head", "no such currency: XXY")
    why = walk.page.get_by_role("region", name="Why is nothing delivered?")
    expect(why).to_contain_text("The message at the head failed once")
    expect(why).to_contain_text("no such currency: XXY")
    walk.cause_is_known()
    walk.press("Put the head to the dead letters", of="partition")
    walk.confirm("To the dead letters")
    told(walk.page, "Message moved to the dead letters")
    [message] = night.shop.pop("payments", "ledger", "globex")
    assert message["transactionId"] == "payment-2"
    night.shop.ack([message])
    walk.is_over("payments has a failing head")
    arrived(walk, "poison message")
    assert night.is_said_by_doctor("1 partition of payments has a failing head", "no such currency: XXY")


def test_open_window(walk: Walk, night: Night) -> None:
    assert night.shop.pop("readings", "charts") == []
    walk.look("The window of readings / sensor-7 has been open for 2 h", "windowBuffer")
    expect(walk.page.get_by_role("region", name="Why is nothing delivered?")).to_contain_text("Gathering")
    walk.cause_is_known()
    walk.press("Change these settings", of="queues")
    dialog(walk.page).get_by_label("Gather until nothing came").fill("0")
    walk.confirm("Change them")
    told(walk.page, "1 setting is changed.")
    assert night.shop.read("readings", "charts", batch=2) == 2
    walk.is_over("readings")
    arrived(walk, "open window")
    assert night.is_said_by_doctor("The window of readings / sensor-7 has been open")


def test_paused_group(walk: Walk, night: Night) -> None:
    assert night.shop.pop("mails", "smtp") == []
    walk.look("mails: Group 'smtp' is paused", "by ann", "provider is moving")
    paused = walk.page.get_by_role("region", name="Paused", exact=True)
    expect(paused).to_contain_text("provider is moving")
    walk.cause_is_known()
    walk.press("Resume", of="pauses", within=paused)
    walk.confirm("Resume")
    told(walk.page, "It is resumed.")
    assert night.shop.read("mails", "smtp") == 1
    walk.is_over("mails")
    arrived(walk, "paused group")
    assert night.is_said_by_doctor("Group 'smtp' is paused", "provider is moving")


def test_full_queue(walk: Walk, night: Night) -> None:
    more = {"items": [{"queue": "uploads", "partition": "p", "payload": 6}]}
    [refused] = night.shop.call("POST", "/api/v1/push", more)
    assert refused["status"] == "failed"
    walk.look("Queue uploads is full: 5 of 5", "Its slowest group is scanner, with 5 unread")
    expect(walk.page.get_by_role("alert")).to_contain_text("The queue is full: 5 of 5 messages")
    walk.cause_is_known()
    walk.press("Raise the limit", of="queues")
    dialog(walk.page).get_by_label("Size limit").fill("500")
    walk.confirm("Change them")
    told(walk.page, "1 setting is changed.")
    [stored] = night.shop.call("POST", "/api/v1/push", more)
    assert stored["status"] == "queued"
    walk.is_over("uploads is full")
    arrived(walk, "full queue")
    assert night.is_said_by_doctor("Queue uploads is full", "scanner")


def test_held_horizon(walk: Walk, night: Night) -> None:
    walk.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    held = walk.trouble("psql of ann", "has kept dead rows from being removed")
    expect(held).to_have_count(1)
    walk.cause_is_known()
    walk.press("Copy the statement", of="overview", within=held)
    told(walk.page, "Copied.")
    statement = walk.page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(r"SELECT pg_terminate_backend\(\d+\)", statement)

    async def execute() -> None:
        session = await asyncpg.connect(night.administrator)
        await session.execute(statement)
        await session.close()

    outside(execute())
    walk.is_over("psql of ann")
    arrived(walk, "held horizon")


def test_lost_peer(walk: Walk, night: Night) -> None:
    walk.look("1 server is silent and counted as dead: queen-2")
    members = walk.page.get_by_role("region", name="Members").last
    expect(members.get_by_role("row", name=re.compile("^queen-2"))).to_contain_text("Silent")
    expect(walk.page.get_by_role("region", name="Members").first).to_contain_text("start the silent server again")
    walk.cause_is_known()
    night.peer.launch()
    night.peer.until_up()
    expect(members.get_by_role("row", name=re.compile("^queen-2"))).to_contain_text("Alive")
    walk.is_over("queen-2")
    arrived(walk, "lost peer")
    assert night.is_said_by_doctor("1 silent: queen-2")


def test_expired_token(walk: Walk, night: Night) -> None:
    walk.look("The token till was in use and expired")
    row = walk.page.get_by_role("region", name="Tokens").last.get_by_role("row", name=re.compile("^till"))
    expect(row).to_contain_text("Expired")
    walk.cause_is_known()
    walk.press("Make a new one", of="access", within=row)
    walk.confirm("Make it")
    shown = walk.page.get_by_role("dialog", name="The token till")
    new = shown.get_by_label("Token").input_value()
    assert serious_findings(walk.page) == []
    answers = [
        httpx.get(f"{night.url}/api/v1/session", headers={"Authorization": f"Bearer {one}"}).status_code
        for one in (night.expired, new)
    ]
    assert answers == [401, 200]
    press(shown, "Close", of="access")
    walk.is_over("token till")
    arrived(walk, "expired token")
    assert night.is_said_by_doctor("The token till was in use and expired")
    refused = [one["sentence"] for one in judged(night.url, night.expired) if one["name"] == "token"]
    assert refused == ["the server refuses the token: Token expired"]


def test_lagging_group_among_hundreds(walk: Walk, night: Night) -> None:
    walk.look("Group group-137 is 2 h behind in events / p", "Nobody reads: its last consumer was ledger-worker")
    expect(walk.page.get_by_role("heading", name="group-137")).to_be_visible()
    expect(walk.page.get_by_role("region", name="Why is nothing delivered?")).to_contain_text("can be popped now")
    readers = walk.page.get_by_role("region", name="Consumers", exact=True)
    expect(readers).to_contain_text("Nobody reads.")
    expect(readers).to_contain_text(re.compile(r"The last was ledger-worker on till-4, process 77, 2\.\d h ago"))
    walk.cause_is_known()
    walk.press("Skip to the end", of="groups")
    expect(dialog(walk.page)).to_contain_text("1 unread message will be skipped")
    walk.confirm("Skip the messages")
    told(walk.page, "The group was moved in")
    walk.is_over("group-137")
    arrived(walk, "lagging group among hundreds")
    assert night.is_said_by_doctor("Group group-137 is 2 h behind in events / p")


def test_dead_letters_of_one_cause_among_many(walk: Walk, night: Night) -> None:
    walk.look("20 dead letters of one cause", "the stock service answers 503")
    expect(walk.page.locator(".letter")).to_have_count(20)
    expect(walk.page.locator(".letter").filter(has_text="the stock service answers 503")).to_have_count(20)
    walk.cause_is_known()
    walk.press("Redrive all 20", of="dead_letters")
    walk.confirm("Deliver again")
    told(walk.page, "20 messages will be delivered again.")
    assert night.shop.read("orders", "shop", batch=40) == 20
    walk.is_over("the stock service")
    arrived(walk, "dead letters of one cause among many")
    assert night.is_said_by_doctor("20 dead letters of one cause", "the stock service answers 503")
