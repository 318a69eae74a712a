from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.errors import InvalidRequest, MethodNotAllowed, NotFound
from queenmq.http.app import Router
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.httpserver.messages import Request, Response
from queenmq.httpserver.refusals import error_response

GROUP = "/api/v1/consumer-groups/{group}"
LAGGING = "/api/v1/consumer-groups/lagging"
SEEK = "/api/v1/consumer-groups/{group}/queues/{queue}/seek"
POP = "/api/v1/pop/queue/{queue}"
POP_PARTITION = "/api/v1/pop/queue/{queue}/partition/{partition}"


async def nothing(request: Request, context: Context) -> Response:
    return Response(204)


ROUTES = [
    Route(method, path, nothing, role)
    for method, path, role in (
        ("GET", "/health", Role.PUBLIC),
        ("POST", "/api/v1/push", Role.READ_WRITE),
        ("GET", POP, Role.READ_WRITE),
        ("GET", POP_PARTITION, Role.READ_WRITE),
        ("GET", LAGGING, Role.READ_ONLY),
        ("GET", GROUP, Role.READ_ONLY),
        ("DELETE", GROUP, Role.ADMIN),
        ("POST", SEEK, Role.READ_WRITE),
    )
]


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(ROUTES)


def test_an_exact_path_is_found_with_its_role(router: Router) -> None:
    request = Request("POST", "/api/v1/push")
    route = router.resolve(request)
    assert (route.path, route.role, route.handler) == ("/api/v1/push", Role.READ_WRITE, nothing)
    assert request.params == ()


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/api/v1/pop/queue/orders", POP, ("orders",)),
        ("GET", "/api/v1/pop/queue/orders/partition/p-1", POP_PARTITION, ("orders", "p-1")),
        ("GET", "/api/v1/pop/queue/a%2Fb/partition/%C3%A9%20x", POP_PARTITION, ("a/b", "é x")),
        ("GET", "/api/v1/pop/queue/a+b", POP, ("a+b",)),
        ("GET", "/api/v1/pop/queue/100%", POP, ("100%",)),
        ("GET", LAGGING, LAGGING, ()),
        ("GET", "/api/v1/consumer-groups/g", GROUP, ("g",)),
        ("DELETE", LAGGING, GROUP, ("lagging",)),
        ("POST", "/api/v1/consumer-groups/lagging/queues/q/seek", SEEK, ("lagging", "q")),
        ("HEAD", "/health", "/health", ()),
        ("HEAD", "/api/v1/pop/queue/orders", POP, ("orders",)),
    ],
)
def test_patterns(router: Router, method: str, path: str, pattern: str, params: tuple[str, ...]) -> None:
    request = Request(method, path)
    assert router.resolve(request).path == pattern
    assert request.params == params


def test_head_has_no_route_of_its_own_unless_added() -> None:
    router = Router([Route("GET", "/a/{b}", nothing, Role.PUBLIC), Route("HEAD", "/a/{b}", nothing, Role.ADMIN)])
    assert router.resolve(Request("HEAD", "/a/x")).role is Role.ADMIN


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "*",
        "health",
        "/health/",
        "//health",
        "/api/v1/pop/queue/",
        "/api/v1/pop/queue//partition/p",
        "/api/v1/pop/queue/q/partition",
        "/api/v1/pop/queue/q/partition/p/more",
        "/%68ealth",
        "/api/v1/pop/queue",
    ],
)
def test_unknown_paths(router: Router, path: str) -> None:
    with pytest.raises(NotFound) as caught:
        router.resolve(Request("GET", path))
    assert caught.value.body() == {"error": "Not found", "code": "not_found"}


@pytest.mark.parametrize("path", ["/api/v1/ephemeral/push", "/api/v1/partitions/changed", "/api/v1/migration/start"])
def test_what_published_clients_know_and_is_left_out(router: Router, path: str) -> None:
    with pytest.raises(NotFound) as caught:
        router.resolve(Request("POST", path))
    assert caught.value.body()["code"] == "not_supported"
    assert str(caught.value).endswith("(docs/design/left-out.md)")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/api/v1/push", "OPTIONS, POST"),
        ("DELETE", "/health", "GET, HEAD, OPTIONS"),
        ("PUT", LAGGING, "DELETE, GET, HEAD, OPTIONS"),
        ("HEAD", "/api/v1/push", "OPTIONS, POST"),
    ],
)
def test_another_method(router: Router, method: str, path: str, allow: str) -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        router.resolve(Request(method, path))
    assert caught.value.status == 405
    assert error_response(caught.value).headers == ((b"Allow", allow.encode()),)


def test_a_segment_that_is_not_utf8(router: Router) -> None:
    with pytest.raises(InvalidRequest):
        router.resolve(Request("GET", "/api/v1/pop/queue/%ff"))


@pytest.mark.parametrize("path", ["/api/v1/consumer-groups/{other}", "/health"])
def test_a_route_is_there_once(path: str) -> None:
    with pytest.raises(ValueError, match="already served"):
        Router([*ROUTES, Route("GET", path, nothing, Role.PUBLIC)])


@given(st.text(min_size=1).filter(lambda name: name.isprintable()), st.text(min_size=1))
def test_every_escaped_name_comes_back(queue: str, partition: str) -> None:
    router = Router([Route("GET", POP_PARTITION, nothing, Role.PUBLIC)])
    path = f"/api/v1/pop/queue/{quote(queue, safe='')}/partition/{quote(partition, safe='')}"
    request = Request("GET", path)
    router.resolve(request)
    assert request.params == (queue, partition)
