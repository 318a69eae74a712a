from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.messages import Request, Response
from queenmq.http.refusals import WrongMethod, error_response
from queenmq.http.roles import Role
from queenmq.http.router import Router

GROUP = "/api/v1/consumer-groups/{group}"
LAGGING = "/api/v1/consumer-groups/lagging"
SEEK = "/api/v1/consumer-groups/{group}/queues/{queue}/seek"
POP = "/api/v1/pop/queue/{queue}"
POP_PARTITION = "/api/v1/pop/queue/{queue}/partition/{partition}"


async def nothing(request: Request) -> Response:
    return Response(204)


@pytest.fixture(scope="module")
def router() -> Router:
    router = Router()
    for method, pattern, role in (
        ("GET", "/health", Role.PUBLIC),
        ("POST", "/api/v1/push", Role.READ_WRITE),
        ("GET", POP, Role.READ_WRITE),
        ("GET", POP_PARTITION, Role.READ_WRITE),
        ("GET", LAGGING, Role.READ_ONLY),
        ("GET", GROUP, Role.READ_ONLY),
        ("DELETE", GROUP, Role.ADMIN),
        ("POST", SEEK, Role.READ_WRITE),
    ):
        router.add(method, pattern, nothing, role)
    return router


def test_an_exact_path_is_found_with_its_role(router: Router) -> None:
    request = Request("POST", "/api/v1/push")
    route = router.resolve(request)
    assert (route.pattern, route.role, route.handler) == ("/api/v1/push", Role.READ_WRITE, nothing)
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
    assert router.resolve(request).pattern == pattern
    assert request.params == params


def test_head_has_no_route_of_its_own_unless_added() -> None:
    router = Router()
    router.add("GET", "/a/{b}", nothing, Role.PUBLIC)
    router.add("HEAD", "/a/{b}", nothing, Role.ADMIN)
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
    with pytest.raises(WrongMethod) as caught:
        router.resolve(Request(method, path))
    assert caught.value.status == 405
    assert error_response(caught.value).headers == ((b"Allow", allow.encode()),)


def test_a_segment_that_is_not_utf8(router: Router) -> None:
    with pytest.raises(InvalidRequest):
        router.resolve(Request("GET", "/api/v1/pop/queue/%ff"))


def test_a_route_is_added_once(router: Router) -> None:
    with pytest.raises(ValueError, match="already served"):
        router.add("GET", "/api/v1/consumer-groups/{other}", nothing, Role.PUBLIC)
    with pytest.raises(ValueError, match="already served"):
        router.add("GET", "/health", nothing, Role.PUBLIC)


def test_all_routes_are_listed(router: Router) -> None:
    listed = [(route.method, route.pattern) for route in router.routes()]
    assert len(listed) == 8
    assert listed == sorted(listed, key=lambda item: (item[1], item[0]))
    assert ("DELETE", GROUP) in listed
    assert ("GET", "/health") in listed


@given(st.text(min_size=1).filter(lambda name: name.isprintable()), st.text(min_size=1))
def test_every_escaped_name_comes_back(queue: str, partition: str) -> None:
    router = Router()
    router.add("GET", POP_PARTITION, nothing, Role.PUBLIC)
    path = f"/api/v1/pop/queue/{quote(queue, safe='')}/partition/{quote(partition, safe='')}"
    request = Request("GET", path)
    router.resolve(request)
    assert request.params == (queue, partition)
