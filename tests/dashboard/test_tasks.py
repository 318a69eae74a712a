"""What people come for, done with mouse and keyboard from the first page to the last click."""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.axe import serious_findings
from dashboard.browser import SCREENSHOTS, outside, visit
from dashboard.conftest import Served
from dashboard.scene import HARM, HARMFUL_QUEUE, Shop
from dashboard.steps import confirm, dead_letters, dialog, fresh, press, told, type_name


def failing_head(shop: Shop, queue: str) -> None:
    shop.configure(queue, retryLimit=3, retryDelay=3_600_000)
    for partition in ("quick", "stuck"):
        shop.push(queue, partition, {"n": 1}, {"n": 2}, name="invoice")
    shop.read(queue, "ledger", partition="quick", batch=10)
    head = shop.fail(queue, "ledger", "stuck", "the bank says no")
    shop.trace(head, "error", {"answer": "503 from the bank"}, "ledger")
    shop.refresh()


def test_see_what_a_policy_keeps_back(page: Page, served: Served) -> None:
    queue = fresh("parked")
    served.shop.configure(queue)
    served.shop.push(queue, "p", {"n": 1}, {"n": 2}, name="invoice")
    served.shop.call(
        "POST",
        "/api/v1/policies",
        {
            "queue": queue,
            "retry": {"poison": "park", "limit": 0},
            "breaker": {"failures": 4, "of": 9},
            "limits": {"leases": 3, "rate": 100, "perKey": {"leases": 1, "rate": 20}},
            "fairness": {"separator": ":", "weights": {"acme": 2}},
        },
    )
    served.shop.fail(queue, "ledger", "p", "the bank says no")
    served.shop.refresh()
    page.goto(f"/#/queues/{queue}")
    kept = page.get_by_role("region", name="Kept back")
    expect(kept).to_contain_text("Parked")
    settings = page.get_by_role("region", name="Settings")
    expect(settings).to_contain_text("park; limit 0; paused after more than 4 of 9")
    expect(settings).to_contain_text(
        "3 leases at once; 100 messages a second; for each key one lease at once; 20 messages a second"
    )
    expect(settings).to_contain_text("keys before : take turns; weights: acme 2")
    expect(page.get_by_role("region", name="Why is nothing delivered?")).to_contain_text("parks its partition")
    kept.get_by_role("link", name=re.compile("^invoice")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("invoice")


def test_choose_which_messages_a_group_gets_and_pause_it(page: Page, served: Served) -> None:
    queue, shop = fresh("chosen"), served.shop
    shop.configure(queue)
    shop.push(queue, "p", {"n": 1}, name="invoice")
    shop.read(queue, "ledger", partition="p")
    shop.refresh()
    page.goto(f"/#/groups/ledger?queue={queue}")
    press(page, "Which messages", of="groups")
    dialog(page).get_by_label("Only those that fit").fill("payload.n >")
    confirm(page, "Change it")
    expect(dialog(page)).to_contain_text("expected")
    dialog(page).get_by_label("Only those that fit").fill("payload.n > 1")
    dialog(page).get_by_label("Only the newest of each partition").check()
    confirm(page, "Change it")
    told(page, "The group goes by it from its next pop on.")
    shop.push(queue, "p", {"n": 1}, {"n": 2}, {"n": 3}, name="second")
    [message] = shop.pop(queue, "ledger", batch=10)
    assert message["data"] == {"n": 3}
    expect(page.get_by_role("region", name="Filter")).to_contain_text("payload.n > 1")
    expect(page.get_by_role("region", name="Conflation")).to_contain_text("only the newest message")
    press(page, "Pause", of="groups")
    confirm(page, "Pause the group")
    told(page, "The group is paused.")
    expect(page.get_by_role("region", name="Why is nothing delivered?")).to_contain_text("paused")


def test_see_timers_and_cancel_one(page: Page, served: Served) -> None:
    queue, shop = fresh("timed"), served.shop
    shop.configure(queue)
    operation: dict[str, Any] = {"op": "schedule", "queue": queue, "data": {"n": 1}}
    once = operation | {"timerKey": "once", "delayMs": 3_600_000}
    operations = [once, operation | {"timerKey": "daily", "schedule": "0 4 * * *", "timeZone": "Europe/Rome"}]
    shop.call("POST", "/api/v1/timers", {"operations": operations})
    page.goto(f"/#/queues/{queue}")
    timers = page.get_by_role("region", name="Timers", exact=True)
    expect(timers).to_contain_text("0 4 * * *")
    press(timers.get_by_role("row", name=re.compile("once")).first, "Cancel", of="queues")
    confirm(page, "Cancel the timer")
    told(page, "The timer is cancelled.")
    expect(timers.get_by_role("row", name=re.compile("once"))).to_have_count(0)
    assert shop.call("GET", f"/api/v1/timers/{queue}")["rows"][0]["timerKey"] == "daily"


def test_pause_a_queue_and_resume_what_a_breaker_has_paused(page: Page, served: Served) -> None:
    queue, shop = fresh("paused"), served.shop
    shop.configure(queue, retryLimit=100, retryDelay=0)
    shop.push(queue, "p", {"n": 1}, name="invoice")
    shop.call("POST", "/api/v1/policies", {"queue": queue, "breaker": {"failures": 0, "of": 5, "pauseSeconds": 3600}})
    shop.fail(queue, "ledger", "p", "the bank says no")
    page.goto(f"/#/queues/{queue}")
    paused = page.get_by_role("region", name="Paused")
    expect(paused).to_contain_text("1 of the last 1 messages failed")
    press(page, "Pause", of="queues")
    dialog(page).get_by_label("Reason").fill("repairs")
    confirm(page, "Pause the queue")
    told(page, "The queue is paused.")
    expect(paused).to_contain_text("repairs")
    for who in ("breaker", "repairs"):
        press(paused.get_by_role("row", name=re.compile(who)), "Resume", of="pauses")
        confirm(page, "Resume")
        told(page, "It is resumed.")
        expect(paused.get_by_role("row", name=re.compile(who))).to_have_count(0)
    [message] = shop.pop(queue, "ledger", "p")
    assert message["transactionId"].startswith("invoice")


def test_find_why_a_partition_is_stuck_and_move_on(page: Page, served: Served) -> None:
    queue = fresh("stuck")
    failing_head(served.shop, queue)
    page.goto("/")
    page.get_by_role("searchbox", name="Search").first.fill(queue)
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Queues").get_by_role("link", name=queue).click()
    row = page.get_by_role("row", name=re.compile("^stuck "))
    expect(row).to_contain_text("Retrying, 1 failed")
    expect(page.get_by_role("row", name=re.compile("^quick "))).to_contain_text("Up to date")
    row.get_by_role("link", name="stuck").click()
    why = page.get_by_role("region", name="Why is nothing delivered?")
    expect(why).to_contain_text("The message at the head failed once")
    expect(why).to_contain_text("3 attempts are left")
    expect(why).to_contain_text("What to do:")
    expect(why).to_contain_text("the bank says no")
    expect(why).to_contain_text("ledger-worker on till-4, process 77")
    page.get_by_role("link", name="See the message at the head").click()
    failed = page.get_by_role("region", name="Attempts that failed", exact=True).first
    expect(failed).to_contain_text("the bank says no")
    expect(failed).to_contain_text("ledger-worker on till-4")
    expect(page.get_by_role("heading", name="invoice-1")).to_be_visible()
    expect(page.get_by_role("region", name="Payload")).to_contain_text('"n": 1')
    expect(page.get_by_role("region", name="History")).to_contain_text("503 from the bank")
    page.go_back()
    press(page, "Put the head to the dead letters", of="partition")
    expect(dialog(page)).to_contain_text("invoice-1")
    confirm(page, "To the dead letters")
    told(page, "Message moved to the dead letters")
    expect(why).to_contain_text("Ready")
    [message] = served.shop.pop(queue, "ledger", "stuck")
    assert message["transactionId"] == "invoice-2"


def test_the_overview_leads_to_failing_heads_and_to_dead_letters_of_one_cause(page: Page, served: Served) -> None:
    queue, shop = fresh("webhooks"), served.shop
    shop.configure(queue, retryLimit=3, retryDelay=3_600_000)
    for partition in ("one", "two", "calm"):
        shop.push(queue, partition, {"n": 1}, name="hook")
    for partition in ("one", "two"):
        shop.fail(queue, "senders", partition, "410 gone")
    broken = fresh("broken")
    shop.configure(broken, retryLimit=0)
    for number in range(3):
        shop.push(broken, f"p{number}", number)
        shop.fail(broken, "senders", f"p{number}", f"receiver {number} is away")
    shop.refresh()
    page.goto("/")
    worry = page.get_by_role("listitem").filter(has_text=f"2 partitions of {queue} have a failing head")
    worry.get_by_role("link", name="Look").click()
    shown = page.get_by_role("region", name="Partitions").last
    expect(shown.get_by_role("link", name="one", exact=True)).to_be_visible()
    expect(shown.get_by_role("link", name="two", exact=True)).to_be_visible()
    expect(shown.get_by_role("link", name="calm", exact=True)).to_have_count(0)
    page.get_by_label("Show").select_option("all, by name")
    expect(shown.get_by_role("link", name="calm", exact=True)).to_be_visible()
    page.goto("/#/groups?only=failing&sort=failing")
    expect(page.get_by_role("region", name="Consumer groups")).to_contain_text(queue)
    page.get_by_label("Show").select_option("leased")
    expect(page.get_by_role("main")).not_to_contain_text(queue)
    page.get_by_label("Show").select_option("all")
    expect(page.get_by_role("main")).to_contain_text(queue)
    shop.push(held := fresh("held"), "p", 1)
    shop.pop(held, "holders", "p")
    shop.refresh()
    page.get_by_label("Show").select_option("leased")
    page.get_by_label("First").select_option("most leases")
    expect(page.get_by_role("main")).to_contain_text(held)
    page.get_by_label("Show").select_option("with dead letters")
    expect(page.get_by_role("main")).to_contain_text(broken)
    expect(page.get_by_role("main")).not_to_contain_text(held)
    page.goto("/#/queues")
    page.get_by_label("Show").select_option("leased")
    page.get_by_label("First").select_option("most leases")
    expect(page.get_by_role("link", name=held, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=broken, exact=True)).to_have_count(0)
    page.get_by_label("Show").select_option("with dead letters")
    expect(page.get_by_role("link", name=broken, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=held, exact=True)).to_have_count(0)
    page.goto("/")
    page.get_by_role("region", name="Dead letters by error").get_by_role("link", name=re.compile("^receiver")).click()
    expect(page.locator(".chips")).to_contain_text("receiver * is away")
    expect(page.locator(".letter")).to_have_count(3)


def test_the_overview_names_what_it_counts_as_errors(page: Page) -> None:
    """A consumer that reports a failure has made no error: what counts is what the server refused."""
    page.goto("/#/")
    tile = page.locator(".tile", has_text="Errors in the last hour")
    expect(tile).to_contain_text(re.compile(r"\d+ database errors?, [\d,]+ refused acks?, [\d,]+ dead letters?"))


def test_one_field_finds_queues_partitions_groups_and_messages(page: Page, served: Served) -> None:
    queue, shop = fresh("haystack"), served.shop
    shop.push(queue, "needle-7", 1, name="needle-message")
    shop.read(queue, "needle-group", partition="needle-7")
    shop.call("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": 1, "headers": {"needle": "IT"}}]})
    shop.refresh()
    page.goto("/")
    field = page.get_by_role("searchbox", name="Search").first
    field.fill("needle")
    offered = page.get_by_role("navigation", name="Suggestions")
    for text in (f"{queue} / needle-7", f"needle-group in {queue}", f"needle-message in {queue} / needle-7"):
        expect(offered.get_by_text(text, exact=True)).to_be_visible()
    assert serious_findings(page) == []
    field.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("needle-7")
    expect(offered).to_have_count(0)
    field.fill("needle:IT")
    field.press("Enter")
    expect(page.get_by_role("region", name="Messages").first).to_contain_text("Header")
    page.get_by_role("region", name="Messages").get_by_role("link", name=queue).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(queue)


def test_a_lease_says_who_and_until_when(page: Page, served: Served) -> None:
    queue = fresh("leased")
    served.shop.push(queue, "p", 1, 2)
    [message] = served.shop.pop(queue, "workers", "p", batch=1)
    page.goto(f"/#/queues/{queue}/partitions/p")
    why = page.get_by_role("region", name="Why is nothing delivered?")
    expect(why).to_contain_text("Leased")
    expect(why).to_contain_text(message["leaseId"])
    expect(page.get_by_role("region", name="Groups of this partition")).to_contain_text("Leased: 1")
    expect(why).to_contain_text("Held by ledger-worker on till-4, process 77")
    page.get_by_role("region", name="Groups of this partition").get_by_role("link", name="workers").click()
    reading = page.get_by_role("region", name="Consumers of this group")
    expect(reading.get_by_role("row", name=re.compile("^ledger-worker on till-4, process 77 127.0.0.1"))).to_have_count(
        1
    )
    expect(reading.get_by_role("link", name="p", exact=True)).to_have_count(1)


@pytest.mark.parametrize("retry_delay", [0, 3_600_000], ids=["at once", "after a pause"])
def test_a_head_that_failed_can_be_given_up_at_any_time(page: Page, served: Served, retry_delay: int) -> None:
    queue = fresh("bad")
    served.shop.configure(queue, retryLimit=3, retryDelay=retry_delay)
    served.shop.push(queue, "p", 1, 2, name="m")
    give_up = page.get_by_role("button", name="Put the head to the dead letters")
    page.goto(f"/#/queues/{queue}/partitions/p?group=g")
    why = page.get_by_role("region", name="Why is nothing delivered?")
    expect(why).to_contain_text("Never started")
    expect(give_up).to_have_count(0)
    served.shop.fail(queue, "g", "p", "no")
    expect(why).to_contain_text("failed once")
    press(page, "Put the head to the dead letters", of="partition")
    confirm(page, "To the dead letters")
    told(page, "Message moved to the dead letters")
    [message] = served.shop.pop(queue, "g", "p")
    assert message["transactionId"] == "m-2"


def test_the_state_of_a_partition_is_what_a_pop_would_find(page: Page, served: Served) -> None:
    shop = served.shop
    for options, word in (
        ({"delayedProcessing": 7200}, "Delayed"),
        ({"windowBuffer": 7200}, "Gathering"),
        ({}, "Ready"),
    ):
        queue = fresh("state")
        shop.configure(queue, **options)
        shop.pop(queue, "g")
        shop.push(queue, "p", 1)
        assert bool(shop.pop(queue, "g", "p")) is (word == "Ready")
        if word == "Ready":
            shop.push(queue, "q", 1)
        page.goto(f"/#/queues/{queue}")
        rows = page.get_by_role("region", name="Partitions", exact=True)
        expect(rows.get_by_role("row", name=re.compile("^q " if word == "Ready" else "^p "))).to_contain_text(word)
        expect(rows.get_by_text("Ready")).to_have_count(1 if word == "Ready" else 0)


def test_a_group_that_nobody_reads_for_is_idle(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("quiet")
    shop.push(queue, "p", 1, 2)
    [message] = shop.pop(queue, "g", "p", batch=1)
    shop.ack([message], "retry")  # gives the lease back, and finishes nothing
    shop.refresh()
    page.goto(f"/#/queues/{queue}")
    group = page.get_by_role("region", name="Consumer groups").get_by_role("row", name=re.compile("^g "))
    expect(group).to_contain_text("Idle")
    expect(group).not_to_contain_text("Reading")
    shop.pop(queue, "g", "p", batch=1)
    shop.refresh()
    expect(group).to_contain_text("Reading")


def test_moments_and_commands_in_sentences_are_made_readable(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("said")
    shop.push(queue, "p", 1)
    shop.pop(queue, "g", "p")
    page.goto(f"/#/groups/g?queue={queue}")
    why = page.locator(".explanation")
    expect(why).to_contain_text(re.compile(r"messages of this partition until (\d\d:\d\d:\d\d|\d+ \w+, \d\d:\d\d)\."))
    expect(why.locator("p time").first).to_have_attribute("datetime", re.compile("Z$"))
    shop.call("POST", "/api/v1/pause", {"queue": queue, "consumerGroup": "g"})
    page.reload()
    expect(why.locator(".advice code")).to_have_text(["POST /api/v1/resume", "queen queues resume"])
    expect(why).not_to_contain_text("`")
    shop.call("POST", "/api/v1/resume", {"queue": queue, "consumerGroup": "g"})


def test_a_group_that_is_paused_says_only_that(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("paused")
    shop.push(queue, "p", 1)
    shop.ack(shop.pop(queue, "g", "p"), "retry")
    shop.call("POST", "/api/v1/pause", {"queue": queue, "consumerGroup": "g"})
    shop.refresh()
    page.goto(f"/#/queues/{queue}")
    group = page.get_by_role("region", name="Consumer groups").get_by_role("row", name=re.compile("^g "))
    expect(group).to_contain_text("Paused")
    expect(group).not_to_contain_text("Idle")
    page.goto(f"/#/groups/g?queue={queue}")
    tiles = page.locator(".tile")
    expect(tiles.filter(has_text="State")).to_contain_text("Paused")
    expect(tiles.filter(has_text="Started")).to_contain_text("from the first message")


def test_redrive_a_dead_letter(page: Page, served: Served) -> None:
    queue = fresh("mails")
    dead_letters(served.shop, queue, 2)
    page.goto("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Dead letters").click()
    page.get_by_label("Queue", exact=True).fill(queue)
    letter = page.get_by_role("listitem").filter(has_text="550 mailbox 1 unknown")
    expect(page.locator(".letter")).to_have_count(2)
    letter.get_by_text("Payload").click()
    expect(letter).to_contain_text('"mail": 1')
    press(letter, "Redrive", of="dead_letters")
    expect(dialog(page)).to_contain_text("mail-1")
    confirm(page, "Deliver again")
    told(page, "Message will be delivered again")
    expect(page.locator(".letter")).to_have_count(1)
    [message] = served.shop.pop(queue, "smtp", "p1")
    assert message["transactionId"] == "mail-1"


def test_redrive_all_of_a_queue(page: Page, served: Served) -> None:
    queue = fresh("mails")
    dead_letters(served.shop, queue, 4)
    page.goto(f"/#/dead-letters?queue={queue}")
    press(page, "Redrive all 4", of="dead_letters")
    confirm(page, "Deliver again")
    told(page, "4 messages will be delivered again")
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()
    assert len(served.shop.pop(queue, "smtp", batch=10, partitions=10)) == 4


def test_a_refusal_is_shown_in_the_words_of_the_server(page: Page, served: Served) -> None:
    queue = fresh("mails")
    dead_letters(served.shop, queue, 1)
    page.goto(f"/#/dead-letters?queue={queue}")
    press(page, "Redrive", of="dead_letters")
    [letter] = served.shop.call("GET", "/api/v1/dlq", queue=queue)["messages"]
    served.shop.call("POST", f"/api/v1/messages/{letter['partitionId']}/mail-1/retry", {})
    confirm(page, "Deliver again")
    expect(dialog(page).get_by_role("alert")).to_have_text("Dead letter not found")
    press(dialog(page), "Cancel", of="ui")
    expect(dialog(page)).to_have_count(0)


@pytest.mark.parametrize(("option", "again"), [("To the beginning", ["m-1", "m-2", "m-3"]), ("To the end", [])])
def test_rewind_a_group(page: Page, served: Served, option: str, again: list[str]) -> None:
    queue, group = fresh("replayed"), fresh("readers")
    shop = served.shop
    shop.push(queue, "p", 1, 2, 3, name="m")
    shop.read(queue, group, batch=1 if option == "To the end" else 10)
    shop.refresh()
    page.goto("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Groups").click()
    page.get_by_label("Search groups").fill(group)
    rows = page.get_by_role("region", name="Consumer groups").locator("tbody tr")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name=group).click()
    press(page, "Rewind or skip", of="groups")
    dialog(page).get_by_text(option).click()
    confirm(page, "Move the group")
    told(page, "The group was moved in 1 partition")
    assert [message["transactionId"] for message in shop.pop(queue, group, batch=10)] == again


def test_rewind_a_group_to_a_moment_in_one_partition(page: Page, served: Served) -> None:
    queue = fresh("replayed")
    shop = served.shop
    for partition in ("a", "b"):
        shop.push(queue, partition, 1, name="m")
        shop.read(queue, "readers", partition=partition)
    page.goto(f"/#/queues/{queue}/partitions/a")
    press(page, "Seek", of="partition")
    expect(dialog(page).locator("input:checked")).to_have_count(0)
    expect(dialog(page).get_by_role("button", name="Move the group")).to_be_disabled()
    dialog(page).get_by_text("To the end").click()
    expect(dialog(page)).to_contain_text(
        "no finished message will be delivered again; no unread message will be skipped"
    )
    dialog(page).get_by_text("To a time").click()
    dialog(page).get_by_label("Moment", exact=True).fill("2020-01-01T00:00")
    dialog(page).get_by_label("Moment", exact=True).blur()
    expect(dialog(page)).to_contain_text("1 message that the group has finished will be delivered again")
    confirm(page, "Move the group")
    told(page, "The group was moved.")
    [message] = shop.pop(queue, "readers", batch=10, partitions=10)
    assert message["partition"] == "a"


def test_a_large_queue_is_paged_and_searched(page: Page) -> None:
    page.goto("/#/queues/devices")
    rows = page.get_by_role("region", name="Partitions", exact=True).locator("tbody tr")
    expect(rows).to_have_count(50)
    press(page, "Next", of="ui")
    expect(rows.first).to_contain_text("sensor-051")
    page.get_by_label("Search partitions").fill("SOR-12")
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text("sensor-120")
    expect(page.get_by_label("Search partitions")).to_be_focused()


def test_clear_and_delete_a_queue(page: Page, served: Served) -> None:
    queue = fresh("doomed")
    served.shop.push(queue, "p", 1, 2, 3)
    page.goto(f"/#/queues/{queue}")
    press(page, "Clear", of="queues")
    expect(dialog(page)).to_be_visible()
    assert serious_findings(page) == []
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    press(page, "Clear", of="queues")
    type_name(page, queue, "Delete the messages")
    told(page, "3 messages were deleted.")
    assert served.shop.pop(queue, "g") == []
    press(page, "Delete", of="queues")
    type_name(page, queue, "Delete the queue")
    told(page, "The queue was deleted.")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    page.goto(f"/#/queues/{queue}")
    expect(page.get_by_role("alert")).to_contain_text("Queue not found")


def test_a_failed_push_is_cancelled(page: Page) -> None:
    page.goto("/#/operations?status=failed")
    press(page, "Cancel", of="operations")
    confirm(page, "Drop the messages")
    told(page, "It was cancelled.")
    expect(page.get_by_text("No operation.")).to_be_visible()


async def put_off_a_clear(database: str, queue: str) -> str:
    """As it is when a step of it has failed and the next attempt is far away. Returns its id."""
    sql = await asyncpg.connect(database)
    operation = await sql.fetchval(
        """
        INSERT INTO queen.operation_queue (id, kind, queue_name, queue_id, parameters, total, next_attempt_at)
        SELECT gen_random_uuid(), 'clear', name, id, '{}', 2, now() + interval '1 day' FROM queen.queues WHERE name = $1
        RETURNING id
        """,
        queue,
    )
    await sql.close()
    return str(operation)


def test_an_operation_is_stopped_and_retried(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("cleared")
    shop.push(queue, "p", 1, 2)
    operation = outside(put_off_a_clear(served.database, queue))
    page.goto(f"/#/operations/{operation}")
    progress = page.get_by_role("region", name="Progress")
    press(page, "Cancel", of="operations")
    confirm(page, "Stop it")
    told(page, "Cancelled before anything was done")
    expect(progress).to_contain_text("Cancelled")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    assert shop.call("GET", f"/api/v1/operations/{operation}")["status"] == "cancelled"
    press(page, "Retry", of="operations")
    confirm(page, "Retry now")
    told(page, "It waits for its turn.")
    expect(progress).to_contain_text("Completed")
    expect(page.get_by_role("button", name="Retry", exact=True)).to_have_count(0)
    assert shop.pop(queue, "g") == []


def test_maintenance_is_switched_and_seen_at_once(page: Page, served: Served) -> None:
    page.goto("/#/cluster")
    row = page.locator(".switch-row").filter(has_text="Pop maintenance")
    press(row, "Switch on", of="cluster")
    confirm(page, "Switch on")
    try:
        expect(row).to_contain_text("Consumers get no messages")
        assert served.shop.call("GET", "/api/v1/system/maintenance/pop")["popMaintenanceMode"]
        page.goto("/#/")
        expect(page.get_by_role("list", name="What needs attention")).to_contain_text("Pop maintenance is on")
        page.goto("/#/cluster")
        press(row, "Switch off", of="cluster")
        confirm(page, "Switch off")
        expect(row).to_contain_text("Consumers get their messages")
        assert not served.shop.call("GET", "/api/v1/system/maintenance/pop")["popMaintenanceMode"]
    finally:
        served.shop.call("POST", "/api/v1/system/maintenance/pop", {"enabled": False})
    page.goto("/#/")
    expect(page.locator(".health")).not_to_contain_text("Pop maintenance")


def test_figures_come_in_live(page: Page, served: Served) -> None:
    queues = served.shop.call("GET", "/api/v1/live")["backlog"]["queues"]
    page.goto("/")
    tile = page.locator(".tile").filter(has_text="Stored messages")
    expect(tile).to_contain_text(f" {queues} queues")
    served.shop.push(fresh("live"), "p", 1)
    expect(tile).to_contain_text(f" {queues + 1} queues")


# No page asks again by itself.
NO_POLLS = """
const later = window.setTimeout;
window.setTimeout = (work, ms, ...more) => (ms === 5000 ? 0 : later(work, ms, ...more));
"""


def test_try_again_after_a_refusal(page: Page, served: Served) -> None:
    queue = fresh("late")
    page.add_init_script(NO_POLLS)
    page.goto(f"/#/queues/{queue}")
    expect(page.get_by_role("alert")).to_contain_text("Queue not found")
    served.shop.configure(queue)
    press(page, "Try again", of="app")
    expect(page.get_by_role("heading", name=queue)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_without_the_server_it_says_so_and_comes_back(page: Page) -> None:
    page.goto("/#/queues")
    live = page.locator(".live")
    expect(live).to_have_text("Live")
    page.context.set_offline(True)
    page.keyboard.press("r")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    expect(page.locator(".stale")).to_contain_text("devices")
    page.context.set_offline(False)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".stale")).to_have_count(0)
    expect(live).to_have_text("Live")


# A server that accepts and says nothing: what comes is swallowed, and what is asked fails only when it is given up.
SILENCE = """
const ask = window.fetch;
window.fetch = async (where, given) => {
  const given_up = (reject) => given?.signal?.addEventListener("abort", () => reject(new Error("aborted")));
  if (window.silent) return new Promise((_, reject) => given_up(reject));
  const answer = await ask(where, given);
  if (!String(where).includes("/api/v1/live")) return answer;
  const quiet = new TransformStream({ transform: (chunk, to) => { if (!window.silent) to.enqueue(chunk); } });
  return new Response(answer.body.pipeThrough(quiet), answer);
};
"""


def test_what_a_lost_server_said_last_is_not_shown_as_the_present(browser: Browser, served: Served) -> None:
    """Also if nothing is refused: the stream is open and silent."""
    with visit(browser, served.url) as page:
        page.add_init_script(SILENCE)
        page.goto("/")
        expect(page.locator(".live")).to_have_text("Live")
        expect(page.get_by_text("all alive")).to_be_visible()
        page.evaluate("window.silent = true")
        expect(page.locator(".live")).to_have_text("Not connected")
        expect(page.get_by_role("alert")).to_contain_text("This page has lost its server.")
        expect(page.get_by_role("alert")).to_contain_text("What is shown below is from")
        expect(page.get_by_text("all alive")).to_have_count(0)
        expect(page.get_by_text("All is well")).to_have_count(0)
        expect(page.locator(".stale")).to_have_count(1)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "lost-light.png", full_page=True)
        page.evaluate("window.silent = false")
        expect(page.locator(".live")).to_have_text("Live")
        expect(page.locator(".stale")).to_have_count(0)


def test_the_keyboard_is_enough(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("?")
    expect(dialog(page)).to_contain_text("Next and previous row")
    assert serious_findings(page) == []
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    press(page, "Keyboard", of="app")
    press(dialog(page), "Close", of="app")
    expect(dialog(page)).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    expect(page.get_by_role("link", name="devices")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tbody tr").nth(1).get_by_role("link").first).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("payments")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Search: payments")).to_be_visible()


def test_the_theme_is_switched_and_remembered(page: Page) -> None:
    page.goto("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    press(page, "Dark or light", of="app")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark


def test_nothing_from_a_message_becomes_part_of_the_page(page: Page, served: Served) -> None:
    page.goto("/#/queues")
    page.get_by_label("Search queues").fill("onerror")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name=HARMFUL_QUEUE).click()
    expect(page.get_by_role("heading", name=HARMFUL_QUEUE)).to_be_visible()
    page.get_by_role("region", name="Partitions", exact=True).get_by_role("link", name=HARM).click()
    expect(page.get_by_role("heading", name=HARM)).to_be_visible()
    page.get_by_role("region", name="Messages").get_by_role("link", name=HARM).first.click()
    expect(page.get_by_role("region", name="Payload")).to_contain_text(f'"text": "{HARM}"')
    expect(page.locator("main script, main img, main iframe")).to_have_count(0)
    page.goto("/#/dead-letters?queue=emails")
    letter = page.locator(".letter").filter(has_text="mail-4")
    expect(letter).to_contain_text(HARM)
    page.goto(f"/#/search?q={HARM}")
    expect(page.get_by_role("heading", name=f"Search: {HARM}")).to_be_visible()
    expect(page.locator("main script, main img, main iframe")).to_have_count(0)
    assert page.evaluate("document.title").endswith("· Queen")


def test_numbers_are_shown_as_they_were_pushed(page: Page) -> None:
    page.goto("/#/queues/payments/partitions/globex")
    page.get_by_role("link", name="invoice-1").click()
    expect(page.get_by_role("region", name="Payload")).to_contain_text("12345678901234567890")


def test_a_phone_has_everything_behind_a_menu(browser: Browser, served: Served) -> None:
    with visit(browser, served.url, phone=True) as page:
        page.goto("/")
        menu = page.get_by_role("navigation", name="Pages")
        expect(menu).to_be_hidden()
        press(page, "Menu", of="app", touch=True)
        menu.get_by_role("link", name="Dead letters").tap()
        expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        expect(menu).to_be_hidden()
