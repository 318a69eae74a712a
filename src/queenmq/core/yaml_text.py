"""YAML that people write to declare something: strict where YAML is lenient. No I/O."""

from __future__ import annotations

from typing import Any


def parse_yaml(text: str) -> Any:
    """What a text says. Raises ValueError with the line if it is not YAML, a key comes twice, or a key is not text."""
    import yaml

    loader_class: Any = type("Loader", (yaml.SafeLoader,), {})
    loader_class.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
    try:
        return yaml.load(text, loader_class)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ValueError(f"{line}{problem}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _mapping(loader: Any, node: Any) -> dict[str, Any]:
    import yaml

    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or key in made:
            why = f"{key} is there twice" if isinstance(key, str) else f"a key must be a text: write {key!r} in quotes"
            raise yaml.constructor.ConstructorError(None, None, why, key_node.start_mark)
        made[key] = loader.construct_object(value_node, deep=True)
    return made
