"""What the on-call person presses: leases, queues, settings, test messages, dead letters by selection, copies."""

from __future__ import annotations

import json
import re
from datetime import datetime

from playwright.sync_api import Page, expect

from dashboard.axe import serious_findings
from dashboard.conftest import Served
from dashboard.steps import confirm, dead_letters, dialog, fresh, press, told, type_name


def test_release_a_lease(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("held")
    shop.configure(queue, retryLimit=0)
    shop.push(queue, "p", 1, 2, name="m")
    held = shop.pop(queue, "workers", "p", batch=2)
    assert shop.pop(queue, "workers", "p") == []
    page.goto(f"/#/queues/{queue}/partitions/p")
    press(page, "Release", of="partition")
    expect(dialog(page)).to_contain_text("its acknowledgements are refused")
    confirm(page, "Release the lease")
    told(page, "The lease has ended; 2 messages will be delivered again.")
    expect(page.get_by_role("button", name="Release", exact=True)).to_have_count(0)
    again = shop.pop(queue, "workers", "p", batch=2)
    assert [message["transactionId"] for message in again] == ["m-1", "m-2"]
    refused = shop.http.post(f"/api/v1/lease/{held[0]['leaseId']}/finish", json={})
    assert refused.status_code == 404
    assert shop.call("GET", "/api/v1/dlq", queue=queue)["total"] == 0


def test_create_a_queue(page: Page, served: Served) -> None:
    queue = fresh("made")
    page.goto("/#/queues")
    press(page, "Create a queue", of="queues")
    dialog(page).get_by_label("Name", exact=True).fill("orders")
    confirm(page, "Create it")
    expect(dialog(page).get_by_role("alert")).to_have_text("There is a queue orders already.")
    dialog(page).get_by_label("Name", exact=True).fill(queue)
    dialog(page).get_by_label("Namespace").fill("shop")
    dialog(page).get_by_text("Settings", exact=True).click()
    dialog(page).get_by_label("Lease, in seconds").fill("45")
    dialog(page).get_by_label("A lease that expires counts").check()
    confirm(page, "Create it")
    told(page, f"The queue {queue} was created.")
    expect(page.get_by_role("heading", name=queue)).to_be_visible()
    made = served.shop.call("GET", f"/api/v1/status/queues/{queue}")["queue"]
    assert (made["namespace"], made["options"]["leaseTime"]) == ("shop", 45)
    assert made["options"]["dlqAfterMaxRetries"]
    assert made["options"]["retryLimit"] == 3


def test_change_settings(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("changed")
    shop.configure(queue, "shop", leaseTime=60, ttl=3600, deadLetterQueue=True)
    page.goto(f"/#/queues/{queue}")
    press(page, "Change settings", of="queues")
    confirm(page, "Change them")
    expect(dialog(page).get_by_role("alert")).to_have_text("Nothing is changed yet.")
    dialog(page).get_by_label("Retries of a message").fill("")
    confirm(page, "Change them")
    expect(dialog(page).get_by_role("alert")).to_contain_text("needs a number")
    dialog(page).get_by_label("Retries of a message").fill("7")
    dialog(page).get_by_label("Do not deliver after").fill("")
    dialog(page).get_by_label("What expires becomes").uncheck()
    # Somebody else changes something meanwhile: it stays.
    shop.configure(queue, leaseTime=99)
    confirm(page, "Change them")
    told(page, "3 settings are changed.")
    expect(page.get_by_role("region", name="Settings")).to_contain_text("7, 1 s apart")
    about = shop.call("GET", f"/api/v1/status/queues/{queue}")["queue"]
    names = ("leaseTime", "retryLimit", "ttl", "deadLetterQueue")
    assert [about["options"][name] for name in names] == [99, 7, None, False]
    assert about["namespace"] == "shop"


def test_push_a_message(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("tried")
    shop.configure(queue)
    page.goto(f"/#/queues/{queue}")
    press(page, "Push a message", of="queues")
    dialog(page).get_by_label("Partition").fill("eu")
    dialog(page).get_by_label("Payload").fill("{nonsense")
    confirm(page, "Push it")
    expect(dialog(page).get_by_role("alert")).to_contain_text("The payload is no JSON")
    dialog(page).get_by_label("Payload").fill('{"amount": 12345678901234567890}')
    dialog(page).get_by_label("transactionId").fill("test-1")
    dialog(page).get_by_label("Headers").fill('{"country": "IT"}')
    confirm(page, "Push it")
    told(page, "Message test-1 is stored.")
    [message] = shop.pop(queue, "g", "eu")
    assert (message["data"], message["headers"]) == ({"amount": 12345678901234567890}, {"country": "IT"})
    press(page, "Push a message", of="queues")
    dialog(page).get_by_label("Partition").fill("eu")
    dialog(page).get_by_label("transactionId").fill("test-1")
    confirm(page, "Push it")
    told(page, "Message test-1 was there already.")


def test_redrive_those_that_are_selected(page: Page, served: Served) -> None:
    queue = fresh("mails")
    dead_letters(served.shop, queue, 4)
    page.goto(f"/#/dead-letters?queue={queue}")
    page.get_by_label("Select mail-2").check()
    page.get_by_label("Select mail-4").check()
    press(page, "Redrive 2 selected", of="dead_letters")
    confirm(page, "Deliver again")
    told(page, "2 messages will be delivered again.")
    expect(page.locator(".letter")).to_have_count(2)
    back = {message["transactionId"] for message in served.shop.pop(queue, "smtp", batch=10, partitions=10)}
    assert back == {"mail-2", "mail-4"}
    press(page, "Select all shown", of="dead_letters")
    expect(page.get_by_label("Select mail-1")).to_be_checked()
    expect(page.get_by_role("button", name="Redrive 2 selected")).to_be_visible()
    press(page, "Select none", of="dead_letters")
    expect(page.get_by_label("Select mail-1")).not_to_be_checked()


def test_redrive_those_of_one_cause_among_many(page: Page, served: Served) -> None:
    """By the server, in the order of their messages, also if they are many."""
    shop, queue = served.shop, fresh("mails")
    shop.configure(queue, retryLimit=0)
    shop.push(queue, "p", *range(1, 31), name="mail")
    letters = shop.pop(queue, "smtp", "p", batch=30)
    for number, message in enumerate(letters, 1):
        shop.ack([message], "dlq", f"TIMEOUT after {number} s" if number % 2 else "550 unknown")
    page.goto(f"/#/dead-letters?queue={queue}")
    expect(page.locator(".letter")).to_have_count(25)
    page.get_by_label("Error").fill("timeout")
    press(page, "Redrive all 15", of="dead_letters")
    confirm(page, "Deliver again")
    told(page, "15 messages will be delivered again.")
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()
    back = [message["transactionId"] for message in shop.pop(queue, "smtp", "p", batch=30)]
    assert back == [f"mail-{number}" for number in range(1, 31, 2)]
    assert shop.call("GET", "/api/v1/dlq", queue=queue)["total"] == 15


def test_redrive_those_of_one_cause_in_several_queues(page: Page, served: Served) -> None:
    shop, cause = served.shop, fresh("cause")
    queues = [fresh("mails"), fresh("texts")]
    for queue in queues:
        shop.push(queue, "p", 1, 2, name="m")
        first, second = shop.pop(queue, "smtp", "p", batch=2)
        shop.ack([first], "dlq", f"{cause} timed out")
        shop.ack([second], "dlq", "550 unknown")
    page.goto("/#/dead-letters")
    page.get_by_label("Error").fill(cause)
    press(page, "Redrive all 2", of="dead_letters")
    confirm(page, "Deliver again")
    told(page, "2 messages will be delivered again.")
    assert [shop.call("GET", "/api/v1/dlq", queue=queue)["total"] for queue in queues] == [1, 1]
    assert [shop.pop(queue, "smtp", "p")[0]["transactionId"] for queue in queues] == ["m-1", "m-1"]


def test_a_payload_is_seen_in_the_list_and_copied(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("seen")
    shop.push(queue, "p", {"amount": 12345678901234567890, "items": [1, None, "x" * 200]}, name="m")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/#/messages?queue={queue}")
    page.get_by_label("Payloads").select_option("in the list")
    row = page.get_by_role("region", name="Messages").locator("tbody tr")
    expect(row).to_contain_text('{"amount": 12345678901234567890, "items": [1, null, "xxx')
    expect(row).to_contain_text("x…")
    row.get_by_role("link", name="m", exact=True).click()
    press(page.get_by_role("region", name="Payload"), "Copy", of="ui")
    told(page, "Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert json.loads(copied) == {"amount": 12345678901234567890, "items": [1, None, "x" * 200]}


def test_redrive_bury_and_delete_one_message(page: Page, served: Served) -> None:
    """Also if its partition has very many dead letters."""
    shop, queue = served.shop, fresh("one")
    shop.push(queue, "p", *range(202), name="m")
    first, *others = shop.pop(queue, "g", "p", batch=202)
    shop.ack([first], "dlq", "no")
    shop.ack(others, "dlq", "no")
    where = f"{first['partitionId']}/m-1"
    page.goto(f"/#/messages/{where}")
    about = page.get_by_role("region", name="About")
    expect(about).to_contain_text("Dead letter")
    press(page, "Redrive", of="messages")
    expect(dialog(page)).to_contain_text("m-1")
    confirm(page, "Deliver again")
    told(page, "Message will be delivered again")
    expect(about).to_contain_text("Pending")
    [again] = shop.pop(queue, "g", "p", batch=10)
    assert again["transactionId"] == "m-1"
    shop.ack([again], "retry")
    press(page, "To the dead letters", of="messages")
    confirm(page, "To the dead letters")
    told(page, "Message moved to the dead letters")
    expect(about).to_contain_text("Dead letter")
    expect(page.get_by_role("button", name="To the dead letters")).to_have_count(0)
    assert shop.pop(queue, "g") == []
    letters = shop.call("GET", "/api/v1/dlq", queue=queue, limit=1)
    assert (letters["total"], letters["messages"][0]["transactionId"]) == (202, "m-1")
    press(page, "Delete", of="messages")
    confirm(page, "Delete the message")
    told(page, "Message deleted")
    expect(page.get_by_role("heading", level=1)).to_have_text("Partitionp")
    assert shop.http.get(f"/api/v1/messages/{where}").status_code == 404
    assert shop.call("GET", "/api/v1/dlq", queue=queue)["total"] == 201


def test_delete_a_dead_letter_and_look_through_the_others(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("mails")
    shop.push(queue, "p", *range(28), name="mail")
    first, *others = shop.pop(queue, "smtp", "p", batch=28)
    shop.ack([first], "dlq", "no such mailbox")
    shop.ack(others, "dlq", "timed out")
    page.goto(f"/#/dead-letters?queue={queue}&fingerprint=no%20such%20mailbox")
    shown = page.locator(".letter")
    expect(shown).to_have_count(1)
    press(page, "Delete", of="dead_letters")
    expect(dialog(page)).to_contain_text("mail-1")
    confirm(page, "Delete the message")
    told(page, "Message deleted")
    expect(page.get_by_text("No dead letter matches.")).to_be_visible()
    assert shop.http.get(f"/api/v1/messages/{first['partitionId']}/mail-1").status_code == 404
    assert shop.call("GET", "/api/v1/dlq", queue=queue)["total"] == 27
    press(page, "Every error", of="dead_letters")
    expect(shown).to_have_count(25)
    press(page, "Next", of="ui")
    expect(shown).to_have_count(2)
    press(page, "Previous", of="ui")
    expect(shown).to_have_count(25)
    # When the last page is redriven, the one before it is the last.
    press(page, "Next", of="ui")
    expect(shown).to_have_count(2)
    press(page, "Select all shown", of="dead_letters")
    press(page, "Redrive 2 selected", of="dead_letters")
    confirm(page, "Deliver again")
    told(page, "2 messages will be delivered again.")
    expect(shown).to_have_count(25)
    expect(page.get_by_text("No dead letter")).to_have_count(0)


def test_clear_one_partition(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("cleared")
    for partition in ("eu-1", "eu-2"):
        shop.push(queue, partition, 1)
        for group in ("one", "other"):
            shop.ack(shop.pop(queue, group, partition), "retry")
    page.goto(f"/#/queues/{queue}/partitions/eu-1?group=other")
    told_of = page.locator(".explanation-head")
    expect(told_of).to_have_count(1)
    expect(told_of).to_contain_text("for other")
    press(page, "Every group", of="partition")
    expect(told_of).to_have_count(2)
    expect(told_of.first).to_contain_text("for one")
    press(page, "Clear", of="partition")
    type_name(page, "eu-1", "Delete the messages")
    told(page, "1 message was deleted.")
    expect(page.locator(".tile-value").first).to_have_text("0")
    left = shop.pop(queue, "one", batch=10, partitions=10)
    assert [message["partition"] for message in left] == ["eu-2"]


def test_choose_the_group_of_a_queue_and_the_queue_of_a_group(page: Page, served: Served) -> None:
    shop, name = served.shop, fresh("chosen")
    for queue in (f"{name}-first", f"{name}-second"):
        shop.push(queue, "p", 1)
        shop.ack(shop.pop(queue, f"{name}-late"), "retry")
    shop.read(f"{name}-first", "quick")
    shop.refresh()
    page.goto(f"/#/queues/{name}-first")
    told_of = page.locator(".explanation-head")
    expect(told_of).to_contain_text(f"for {name}-late")
    press(page, "quick", of="queues")
    expect(told_of).to_contain_text("for quick")
    expect(told_of).to_contain_text("Up to date")
    page.goto(f"/#/groups/{name}-late?queue={name}-first")
    about = page.locator(".page-head .note")
    expect(about).to_have_text(f"in queue {name}-first")
    press(page, f"{name}-second", of="groups")
    expect(about).to_have_text(f"in queue {name}-second")


def test_remove_a_quota(page: Page, served: Served) -> None:
    shop, namespace = served.shop, fresh("tenant")
    shop.call("POST", "/api/v1/quotas", {"namespace": namespace, "maxMessages": 7})
    page.goto("/#/access")
    row = page.get_by_role("region", name="Quotas").last.get_by_role("row", name=re.compile(f"^{namespace} "))
    expect(row).to_contain_text("0 of 7")
    press(row, "Remove", of="access")
    confirm(page, "Remove it")
    told(page, f"{namespace} has no quota any more.")
    expect(row).to_have_count(0)
    left = {quota["namespace"] for quota in shop.call("GET", "/api/v1/quotas")["quotas"]}
    assert "devices" in left
    assert namespace not in left


def test_deleting_a_group_asks_for_its_name(page: Page, served: Served) -> None:
    shop, queue, group = served.shop, fresh("kept"), fresh("leavers")
    shop.push(queue, "p", 1)
    shop.read(queue, group)
    page.goto(f"/#/groups/{group}?queue={queue}")
    press(page, "Forget", of="groups")
    type_name(page, group, "Delete the group")
    told(page, "The group was deleted.")
    assert len(shop.pop(queue, group)) == 1


def test_what_differs_between_attempts(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("tried")
    shop.configure(queue, retryLimit=9, retryDelay=0)
    shop.push(queue, "p", {"n": 1}, name="m")
    for host, error in (("a", "timeout after 3 s"), ("a", "timeout after 30 s"), ("b", "timeout after 30 s")):
        who = {"X-Queen-Consumer": f"name=ledger&host={host}&process=7"}
        answer = shop.http.get(f"/api/v1/pop/queue/{queue}", params={"consumerGroup": "g"}, headers=who)
        shop.ack(answer.json()["messages"], "failed", error)
    [message] = shop.call("GET", "/api/v1/messages", queue=queue)["messages"]
    page.goto(f"/#/messages/{message['partitionId']}/m")
    rows = page.get_by_role("region", name="Attempts that failed").last.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("on a then")
    expect(rows.nth(0).locator("mark")).to_have_count(0)
    expect(rows.nth(1)).to_contain_text("details of the error")
    expect(rows.nth(1).locator("mark")).to_have_text("30")
    expect(rows.nth(2).locator("td").last).to_have_text("–")
    assert serious_findings(page) == []


def test_pause_one_group(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("shared")
    shop.push(queue, "p", 1)
    for group in ("one", "other"):
        shop.ack(shop.pop(queue, group), "retry")
    shop.refresh()
    page.goto(f"/#/groups/one?queue={queue}")
    press(page, "Pause", of="groups")
    dialog(page).get_by_label("Reason").fill("repairs")
    confirm(page, "Pause the group")
    told(page, "The group is paused.")
    assert shop.pop(queue, "one") == []
    assert len(shop.pop(queue, "other")) == 1
    paused = page.get_by_role("region", name="Paused", exact=True)
    expect(paused).to_contain_text("repairs")
    press(paused, "Resume", of="pauses")
    confirm(page, "Resume")
    told(page, "It is resumed.")
    assert len(shop.pop(queue, "one")) == 1


def test_skip_what_is_unread(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("skipped")
    shop.push(queue, "p", *range(5))
    shop.read(queue, "g", batch=2)
    shop.refresh()
    page.goto(f"/#/groups/g?queue={queue}")
    press(page, "Skip to the end", of="groups")
    expect(dialog(page)).to_contain_text("In 1 partition: no finished message will be delivered again; 3 unread")
    confirm(page, "Skip the messages")
    told(page, "The group was moved in 1 partition")
    assert shop.pop(queue, "g") == []


def test_make_a_token(page: Page, served: Served) -> None:
    name = fresh("till")
    # As over HTTP from another machine: the browser gives the page no clipboard.
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto("/#/access")
    press(page, "Make a token", of="access")
    dialog(page).get_by_label("Name").fill(name)
    dialog(page).get_by_label("Role").select_option("read-only")
    dialog(page).get_by_label("Valid for").fill("30")
    confirm(page, "Make it")
    shown = page.get_by_role("dialog", name=f"The token {name}")
    expect(shown.get_by_label("Token")).to_have_value(re.compile("^queen_"))
    token = shown.get_by_label("Token").input_value()
    press(shown, "Copy", of="access")
    told(page, "Copied.")
    press(shown, "Close", of="access")
    expect(shown).to_have_count(0)
    page.get_by_label("Subject").focus()
    page.keyboard.press("Control+V")
    expect(page.get_by_label("Subject")).to_have_value(token)
    page.get_by_label("Subject").fill("")
    row = page.get_by_role("region", name="Tokens").last.get_by_role("row", name=re.compile(f"^{name}"))
    expect(row).to_contain_text("read-only")
    [made] = [one for one in served.shop.call("GET", "/api/v1/tokens")["tokens"] if one["name"] == name]
    assert (made["valid"], made["role"]) == (True, "read-only")
    life = datetime.fromisoformat(made["expiresAt"]) - datetime.fromisoformat(made["createdAt"])
    assert life.days in (29, 30)


def test_look_up_keys_and_the_holders_of_a_lock(page: Page, served: Served) -> None:
    shop, namespace, lock = served.shop, fresh("settings"), fresh("report")
    put = {"op": "put", "ns": namespace, "forever": True}
    changes = [put | {"key": f"{kind}-{n:03}", "value": {"n": n}} for kind in ("rate", "other") for n in range(60)]
    shop.call("POST", "/api/v1/kv", {"operations": changes[:100]})
    shop.call("POST", "/api/v1/kv", {"operations": changes[100:]})
    acquire = {"op": "acquire", "name": lock, "owner": "office-7", "ttlSeconds": 600}
    shop.call("POST", "/api/v1/locks", {"operations": [acquire]})
    page.goto("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Keys and locks").click()
    expect(page.get_by_role("region", name="Held locks")).to_contain_text("office-7")
    page.get_by_role("region", name="Namespaces").get_by_role("link", name=namespace).click()
    expect(page.get_by_role("searchbox", name="Namespace")).to_have_value(namespace)
    rows = page.get_by_role("region", name="Keys", exact=True).locator("tbody tr")
    expect(rows).to_have_count(100)
    page.get_by_role("link", name="The next ones").click()
    expect(rows).to_have_count(20)
    page.get_by_label("Key begins with").fill("rate-00")
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text('{"n": 0}')
    page.get_by_role("searchbox", name="Lock").fill(lock)
    expect(page.get_by_role("region", name="Holders")).to_contain_text("office-7")
    page.get_by_role("searchbox", name="Lock").fill("nobody")
    expect(page.get_by_text("Nobody holds it.")).to_be_visible()
    page.get_by_role("searchbox", name="Lock").fill("")
    page.get_by_role("region", name="Held locks").get_by_role("link", name=lock).click()
    expect(page.get_by_role("region", name="Holders")).to_contain_text("office-7")
