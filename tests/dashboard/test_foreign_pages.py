"""A page of another origin, in a real browser, against a server without tokens: it can do nothing, and read nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from dashboard.browser import PATIENCE_MS, visit
from dashboard.conftest import Served

PAGE = b"<!doctype html><title>a page of somebody else</title><iframe name=frame></iframe>"

# Everything that a page can make a browser send without being asked, and what it would like to read.
ATTACK = """
async ([server, queue]) => {
  const told = {};
  const attempt = async (name, path, options) => {
    try {
      const answer = await fetch(server + path, options);
      told[name] = answer.type === "opaque" ? "opaque" : answer.status;
    } catch (error) {
      told[name] = "blocked";
    }
  };
  const item = JSON.stringify({items: [{queue, payload: "from a foreign page"}]});
  const text = {"Content-Type": "text/plain"}, json = {"Content-Type": "application/json"};
  const pop = `/api/v1/pop/queue/${queue}?autoAck=true&consumerGroup=`;
  await attempt("blind push", "/api/v1/push", {method: "POST", mode: "no-cors", headers: text, body: item});
  await attempt("blind pop", pop + "blind", {mode: "no-cors"});
  await attempt("push", "/api/v1/push", {method: "POST", headers: text, body: item});
  await attempt("push with a preflight", "/api/v1/push", {method: "POST", headers: json, body: item});
  await attempt("pop", pop + "read", {});
  await attempt("delete", `/api/v1/resources/queues/${queue}`, {method: "DELETE"});
  await attempt("read", "/api/v1/resources/queues", {});
  await attempt("health", "/health", {});
  await new Promise((done) => {
    const image = new Image();
    image.onload = image.onerror = done;
    image.src = server + pop + "image";
  });
  told.stream = await new Promise((done) => {
    const source = new EventSource(server + "/api/v1/live");
    source.onmessage = () => { source.close(); done("read"); };
    source.onerror = () => { source.close(); done("blocked"); };
  });
  told.socket = await new Promise((done) => {
    const socket = new WebSocket(server.replace("http", "ws") + "/api/v1/live");
    socket.onopen = () => done("open");
    socket.onerror = () => done("blocked");
  });
  await new Promise((done) => {
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: server + "/api/v1/push", enctype: "text/plain", target: "frame"});
    const field = document.createElement("input");
    field.name = item.slice(0, -1) + ', "x": "';
    field.value = '"}';
    form.append(field);
    document.body.append(form);
    document.querySelector("iframe").onload = done;
    form.submit();
  });
  return told;
}
"""


@contextmanager
def page_of(name: str) -> Iterator[str]:
    """The URL of a page of somebody else, on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://{name}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", ["evil.localhost", "127.0.0.1"], ids=["another site", "another port"])
def test_a_page_of_another_origin(browser: Browser, served: Served, name: str) -> None:
    queue = f"foreign-{name}"
    served.shop.push(queue, "Default", "mine")
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    with page_of(name) as url:
        page = context.new_page()
        page.goto(url)
        told = page.evaluate(ATTACK, [served.url, queue])
        context.close()
    assert set(told.values()) <= {"blocked", "opaque"}, told
    for group in ("blind", "read", "image"):
        assert [m["data"] for m in served.shop.pop(queue, group, batch=10)] == ["mine"], group


def test_the_servers_own_page(page: Page, served: Served) -> None:
    """What its own pages send is served, whichever of its names the browser knows."""
    page.goto("/")
    own = "() => fetch('/api/v1/push', {method: 'POST', body: JSON.stringify({items: [{queue: 'own', payload: 1}]})})"
    assert page.evaluate(f"({own})().then(answer => answer.status)") == 201


def test_the_servers_page_under_another_of_its_names(browser: Browser, served: Served) -> None:
    with visit(browser, served.url.replace("127.0.0.1", "localhost")) as page:
        page.goto("/")
        assert page.evaluate("() => fetch('/api/v1/resources/overview').then(answer => answer.status)") == 200
