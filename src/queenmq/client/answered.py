"""How the calls of `queen.admin` say what they return, once for both twins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from queenmq.client.verbs import path_of

if TYPE_CHECKING:
    from queenmq.client.admin import Admin, BlockingAdmin

P = ParamSpec("P")
T = TypeVar("T")

Ask = Callable[[str, str, Any, Mapping[str, Any] | None], Any]


class Answer(Generic[T]):
    """What a call returns: an awaitable of the answer in `Queen.admin`, the answer in `BlockingQueen.admin`."""


if TYPE_CHECKING:

    class call(Generic[P, T]):
        """A method whose result depends on the twin: a type parameter of the class could not be given parameters."""

        def __init__(self, method: Callable[Concatenate[Any, P], Answer[T]]) -> None: ...

        @overload
        def __get__(self, admin: Admin, kind: type[Admin]) -> Callable[P, Awaitable[T]]: ...
        @overload
        def __get__(self, admin: BlockingAdmin, kind: type[BlockingAdmin]) -> Callable[P, T]: ...
        def __get__(self, admin: Any, kind: Any) -> Any: ...

else:

    def call(method):
        return method


class Calls:
    """What asks; its subclasses say what for."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def _get(self, *path: str, **params: Any) -> Answer[Any]:
        return self._asked("GET", path, None, params)

    def _post(self, *path: str, body: Any) -> Answer[Any]:
        return self._asked("POST", path, body, None)

    def _delete(self, *path: str, **params: Any) -> Answer[Any]:
        return self._asked("DELETE", path, None, params)

    def _asked(self, method: str, path: tuple[str, ...], body: Any, params: Mapping[str, Any] | None) -> Answer[Any]:
        answer: Answer[Any] = self._ask(method, path_of(*path), body, params)
        return answer
