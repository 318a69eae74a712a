"""The dashboard of a server that demands tokens: asked for once, kept in the tab, and shown only what they allow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import jwt
import pytest
from cluster.processes import ServeProcess
from httpx import URL
from playwright.sync_api import Browser, Page, expect

from dashboard.axe import serious_findings
from dashboard.browser import outside, visit
from dashboard.provider import CLIENT, Provider, provider
from dashboard.scene import Shop
from dashboard.steps import confirm, press

if TYPE_CHECKING:
    from conftest import Postgres

LOOKS = {"light": {}, "dark": {"dark": True}, "phone": {"phone": True}}
# Of a server that does not say what the token is for.
SESSION = {"tokens": True, "subject": "alice", "role": "read-write"}
SECRET = "a secret of more than thirty-two bytes"


def token(people: Provider, role: str, *grants: dict[str, list[str]]) -> str:
    """Of a service, beside those of the provider: the same issuer is demanded of all."""
    claims = {"sub": "alice", "role": role, "iss": people.url, "aud": CLIENT, "exp": time.time() + 86_400}
    return jwt.encode(claims | ({"queen": grants} if grants else {}), SECRET, "HS256")


@pytest.fixture(scope="module")
def people() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(
    browser: Browser, postgres: Postgres, people: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tokens")
    url = outside(postgres.create())
    with ExitStack() as stack:
        stack.callback(lambda: outside(postgres.drop(url)))
        server = ServeProcess(
            folder,
            "guarded",
            DATABASE_URL=url,
            JWT_ENABLED="true",
            JWT_SECRET=SECRET,
            JWT_ALGORITHM="auto",
            JWT_JWKS_URL=f"{people.url}/keys",
            JWT_ISSUER=people.url,
            JWT_AUDIENCE=CLIENT,
            QUEEN_OIDC_ISSUER=people.url,
            QUEEN_OIDC_CLIENT_ID=CLIENT,
            DB_POOL_SIZE="6",
            FILE_BUFFER_DIR=str(folder / "journal"),
        )
        stack.callback(server.make_sure_it_is_gone)
        server.launch()
        server.until_up()
        shop = Shop(server.url, token(people, "admin"))
        stack.callback(shop.http.close)
        shop.push("orders", "eu", 1)
        shop.pop("orders", "billing")
        yield server.url


@pytest.fixture
def page(browser: Browser, guarded: str, people: Provider) -> Iterator[Page]:
    with visit(browser, guarded, provider=people.url) as opened:
        yield opened


def sign_in(page: Page, given: str) -> None:
    page.get_by_label("Token").last.fill(given)
    press(page, "Go on", of="app")


def test_a_token_is_asked_for_and_kept_in_the_tab_only(page: Page, people: Provider) -> None:
    page.goto("/")
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("This server requires a token: one that Queen has made (queen_…), or a JWT (eyJ…).")
    expect(asked.get_by_label("Token")).to_have_attribute("placeholder", "queen_… or eyJ…")
    expect(page.get_by_text("This page has lost its server.")).to_have_count(0)  # it has only not let anybody in
    expect(page.locator(".who")).to_have_text("")
    sign_in(page, "nonsense")
    expect(page.get_by_role("dialog")).to_contain_text("The server says: Malformed token")
    sign_in(page, token(people, "admin"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".live")).to_have_text("Live")
    expect(page.locator(".who")).to_have_text("alice: admin")
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    expect(page.locator(".live")).to_have_text("Live")
    press(page, "Sign out", of="app")
    expect(page.get_by_role("dialog")).to_contain_text("This server requires a token")


@pytest.mark.parametrize("look", LOOKS)
def test_everybody_can_sign_in(browser: Browser, guarded: str, people: Provider, look: str) -> None:
    """Whoever does not see, or sees badly: with the box for a token, the button to the provider, and a refusal."""
    with visit(browser, guarded, provider=people.url, **LOOKS[look]) as page:
        page.goto("/")
        asked = page.get_by_role("dialog")
        expect(asked.get_by_label("Token")).to_be_visible()
        expect(asked.get_by_role("button", name="Sign in at")).to_be_visible()
        assert serious_findings(page) == []
        sign_in(page, "nonsense")
        expect(asked).to_contain_text("The server says: Malformed token")
        assert serious_findings(page) == []
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"it can be scrolled sideways by {wide} pixels"


@pytest.mark.parametrize(
    ("role", "clears", "seeks"), [("read-only", 0, 0), ("read-write", 0, 1), ("admin", 1, 1)], ids=str
)
def test_a_token_sees_the_buttons_that_it_may_press(
    page: Page, people: Provider, role: str, clears: int, seeks: int
) -> None:
    page.goto("/#/queues/orders/partitions/eu")
    sign_in(page, token(people, role))
    expect(page.get_by_role("region", name="Why is nothing delivered?")).to_contain_text("Leased")
    expect(page.get_by_role("button", name="Clear")).to_have_count(clears)
    expect(page.get_by_role("button", name="Seek")).to_have_count(seeks)
    page.goto("/#/cluster")
    expect(page.get_by_role("region", name="Maintenance")).to_be_visible()
    expect(page.get_by_role("button", name="Switch on")).to_have_count(2 * clears)


@pytest.mark.parametrize("known", [True, False], ids=["told by the session", "told by the stream"])
def test_a_token_for_some_queues_gets_no_live_figures(page: Page, people: Provider, known: bool) -> None:
    """They are about all queues. That is no failure: what the token may see is there, and the rest says why not."""
    limited = token(people, "read-write", {"queues": ["ord*"], "groups": ["billing"]})
    if not known:
        page.route("**/api/v1/session", lambda route: route.fulfill(json=SESSION))
    page.goto("/")
    sign_in(page, limited)
    expect(page.locator(".live")).to_have_text("No live figures")
    expect(page.locator(".live")).to_have_attribute(
        "title", "Your token gets no live figures: it is for some queues, and they are about all."
    )
    main = page.get_by_role("main")
    if known:
        expect(main).to_contain_text("The overview is about all queues, and your token is only for some.")
        expect(main).to_contain_text("It is for queues ord*; groups billing.")
        assert serious_findings(page) == []
    expect_no_trouble(page)
    for where, shown in (
        ("queues", "orders"),
        ("queues/orders", "billing"),
        ("queues/orders/partitions/eu", "Leased"),
        ("groups", "billing"),
        ("groups/billing?queue=orders", "orders"),
        ("messages?queue=orders", "eu"),
        ("dead-letters?queue=orders", "No dead letter matches."),
        ("access", "Quotas"),
        *([("operations", "No operation.")] if known else []),
    ):
        page.goto(f"/#/{where}")
        expect(main).to_contain_text(shown)
        expect_no_trouble(page)
    for where in ("messages", "dead-letters", "traces", "cluster"):
        page.goto(f"/#/{where}")
        expect(main).to_contain_text("Your token may not see this page.")
        expect(main).to_contain_text("The token may not read all queues: name one that it is for.")
        expect_no_trouble(page)
    assert serious_findings(page) == []
    main.get_by_role("link", name="Queues").click()
    expect(main).to_contain_text("orders")


def test_another_token_for_all_queues_gets_live_figures(page: Page, people: Provider) -> None:
    """The restricted one has ended, and its person gives another."""
    page.goto("/")
    sign_in(page, token(people, "read-write", {"queues": ["ord*"]}))
    expect(page.locator(".live")).to_have_text("No live figures")
    page.evaluate("sessionStorage.setItem('queen.token', 'nonsense')")
    page.goto("/#/queues")
    sign_in(page, token(people, "read-only", {"groups": ["billing"]}))  # Reading is not by group.
    expect(page.locator(".live")).to_have_text("Live")
    page.goto("/#/")
    expect(page.get_by_text("Unread messages")).to_be_visible()


def expect_no_trouble(page: Page) -> None:
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".stale")).to_have_count(0)


def test_an_administrator_sees_tokens_quotas_and_the_audit_log(page: Page, guarded: str, people: Provider) -> None:
    shop = Shop(guarded, token(people, "admin"))
    made = shop.http.post("/api/v1/tokens", json={"name": "till", "role": "read-write", "expiresInSeconds": 60})
    assert made.status_code == 201
    page.goto("/#/access")
    sign_in(page, token(people, "admin"))
    tokens = page.get_by_role("region", name="Tokens").last
    expect(tokens).to_contain_text("till")
    expect(page.get_by_text(made.json()["token"])).to_have_count(0)
    press(tokens, "Revoke", of="access")
    confirm(page, "Revoke it")
    expect(tokens).to_contain_text("Revoked")
    assert (
        shop.http.get("/api/v1/session", headers={"Authorization": f"Bearer {made.json()['token']}"}).status_code == 401
    )

    press(page, "Set a quota", of="access")
    page.get_by_label("Namespace").fill("orders")
    page.get_by_label("Messages").fill("5000")
    page.get_by_label("Requests a second").fill("700")
    page.get_by_label("Long polls").fill("20")
    confirm(page, "Set it")
    quotas = page.get_by_role("region", name="Quotas").last
    for shown in ("1 of 5,000", "700", "0 of 20"):
        expect(quotas).to_contain_text(shown)

    log = page.get_by_role("region", name="Audit log").last
    for action in ("POST /api/v1/quotas", "DELETE /api/v1/tokens/{tokenId}", "POST /api/v1/tokens"):
        expect(log).to_contain_text(action)
    page.get_by_label("Action").fill("DELETE")
    expect(log).not_to_contain_text("POST /api/v1/quotas")
    expect(log).to_contain_text("alice (admin)")
    shop.http.close()


def test_others_see_quotas_only(page: Page, people: Provider) -> None:
    page.goto("/#/access")
    sign_in(page, token(people, "read-only"))
    expect(page.get_by_role("region", name="Quotas").first).to_be_visible()
    expect(page.get_by_role("region", name="Tokens")).to_have_count(0)
    expect(page.get_by_role("region", name="Audit log")).to_have_count(0)
    expect(page.get_by_role("button", name="Set a quota")).to_have_count(0)


def test_somebody_signs_in_at_the_provider_and_comes_back(page: Page, people: Provider) -> None:
    page.goto("/#/queues/orders")
    press(page, f"Sign in at {URL(people.url).netloc.decode()}", of="app")
    before = people.issued
    page.get_by_role("link", name="Sign in as alice").click()
    expect(page.locator(".who")).to_have_text("alice: admin")
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    assert people.issued == before + 1
    assert page.evaluate("location.search + location.hash") == "#/queues/orders"
    assert page.evaluate("[localStorage.length, Object.keys(sessionStorage)]") == [0, ["queen.token"]]
    page.reload()
    expect(page.locator(".live")).to_have_text("Live")
    press(page, "Sign out", of="app")
    expect(page.get_by_role("dialog")).to_contain_text("or give a token")
    assert people.issued == before + 1


def test_a_refusal_of_the_provider_is_shown(page: Page, people: Provider) -> None:
    page.goto("/")
    press(page, f"Sign in at {URL(people.url).netloc.decode()}", of="app")
    page.get_by_role("link", name="Refuse").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("The provider refused: access_denied")


def test_a_code_that_nobody_asked_for_is_not_used(page: Page, people: Provider) -> None:
    """Else a stranger could have somebody work in the stranger's name."""
    before = people.issued
    page.goto("/?code=stolen&state=made-up")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Nobody asked for this sign-in")
    assert people.issued == before
    assert page.evaluate("location.search") == ""
