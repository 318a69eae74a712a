"""Pauses and policies, made and changed in the browser."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from dashboard.axe import serious_findings
from dashboard.conftest import Served
from dashboard.steps import confirm, dialog, fresh, press, told


def policy(served: Served, queue: str, group: str | None = None) -> dict[str, Any]:
    """What is set, without what is not."""
    rows = served.shop.call("GET", "/api/v1/policies", queue=queue)["policies"]
    found = [row for row in rows if row["consumerGroup"] == group]
    parts = ("retry", "breaker", "limits", "fairness")
    return {part: row[part] for row in found for part in parts if row[part] is not None}


def test_pause_one_partition_of_a_group(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("crossing")
    for partition in ("p", "q"):
        shop.push(queue, partition, 1)
    for group in ("one", "other"):
        shop.ack(shop.pop(queue, group, partitions=2, batch=2), "retry")
    page.goto(f"/#/queues/{queue}/partitions/p")
    row = page.get_by_role("region", name="Groups", exact=True).get_by_role("row", name="one")
    press(row, "Pause", of="partition")
    expect(dialog(page)).to_contain_text("Pause p for one?")
    dialog(page).get_by_label("Reason").fill("repairs")
    confirm(page, "Pause the partition")
    told(page, "The partition is paused for this group.")
    expect(row).to_contain_text("Paused")
    expect(row.get_by_role("button", name="Pause")).to_have_count(0)
    assert shop.pop(queue, "one", "p") == []
    assert len(shop.pop(queue, "one", "q")) == len(shop.pop(queue, "other", "p")) == 1
    page.goto(f"/#/queues/{queue}")
    paused = page.get_by_role("region", name="Paused", exact=True)
    expect(paused).to_contain_text("one, partition p")
    press(paused, "Resume", of="pauses")
    confirm(page, "Resume")
    told(page, "It is resumed.")
    assert len(shop.pop(queue, "one", "p")) == 1


def test_set_change_and_take_back_policies(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("ruled")
    shop.push(queue, "acme:1", 1)
    page.goto(f"/#/queues/{queue}")
    press(page, "Change policies", of="queues")
    form = dialog(page)
    for part in ("When a message fails", "Pause a group by itself", "Limits", "Shares"):
        form.get_by_text(part, exact=True).click()
    form.get_by_label("It is tried again after").select_option("list")
    form.get_by_label("The pauses, in ms").fill("1000, 5000")
    form.get_by_label("Retries before it is given up").fill("0")
    form.get_by_label("When more than so many").fill("4")
    form.get_by_label("of the last so many").fill("9")
    form.get_by_label("Of each key: leases at once").fill("2")
    form.get_by_label("Of each key: messages a second").fill("0.5")
    assert serious_findings(page) == []
    confirm(page, "Set them")
    expect(form).to_contain_text("limits perKey need fairness")
    form.get_by_label("Keys are what names of partitions have before").fill(":")
    form.get_by_label("Weights of keys").fill('{"acme": 2')
    confirm(page, "Set them")
    expect(form).to_contain_text("“Weights of keys, as a JSON object of numbers” is no JSON")
    form.get_by_label("Weights of keys").fill('{"acme": 2.5}')
    confirm(page, "Set them")
    told(page, "4 policies are changed.")
    made = {
        "retry": {"strategy": "list", "delaysMs": [1000, 5000], "limit": 0},
        "breaker": {"failures": 4, "of": 9, "pauseSeconds": 30},
        "limits": {"perKey": {"leases": 2, "rate": 0.5}},
        "fairness": {"separator": ":", "weights": {"acme": 2.5}},
    }
    assert policy(served, queue) == made
    expect(page.get_by_role("region", name="Settings")).to_contain_text("weights: acme 2.5")
    expect(page.get_by_role("region", name="Settings")).to_contain_text("2 leases at once; 0.5 messages a second")

    press(page, "Change policies", of="queues")
    confirm(page, "Set them")
    expect(form).to_contain_text("Nothing is changed yet.")
    shop.call("POST", "/api/v1/policies", {"queue": queue, "breaker": {"failures": 1, "of": 2}})  # by somebody else
    form.get_by_label("It is tried again after").select_option("")
    form.get_by_label("The pauses, in ms").fill("")
    form.get_by_label("Retries before it is given up").fill("")
    confirm(page, "Set them")
    told(page, "1 policy is changed.")
    del made["retry"]
    assert policy(served, queue) == made | {"breaker": {"failures": 1, "of": 2, "pauseSeconds": 30}}


def test_policies_of_a_group(page: Page, served: Served) -> None:
    shop, queue = served.shop, fresh("ruled")
    shop.push(queue, "p", 1)
    shop.read(queue, "ledger")
    shop.refresh()
    shop.call("POST", "/api/v1/policies", {"queue": queue, "limits": {"leases": 9}})
    page.goto(f"/#/groups/ledger?queue={queue}")
    press(page, "Policies", of="groups")
    form = dialog(page)
    expect(form.get_by_text("Shares", exact=True)).to_have_count(0)
    form.get_by_text("Limits", exact=True).click()
    expect(form.get_by_label("Leases at once", exact=True)).to_have_value("")  # those of the queue are another policy
    form.get_by_label("Messages at once after a pause", exact=True).fill("5")
    confirm(page, "Set them")
    expect(form).to_contain_text("leases, rate or perKey is required")
    form.get_by_label("Messages a second", exact=True).fill("20")
    confirm(page, "Set them")
    told(page, "1 policy is changed.")
    assert policy(served, queue, "ledger") == {"limits": {"rate": 20, "burst": 5}}
    assert policy(served, queue) == {"limits": {"leases": 9}}
    expect(page.get_by_role("region", name="Policies")).to_contain_text("20 messages a second; 5 at once")
