"""The cost of a token and of its grants is measured for the requests that come most often."""

from __future__ import annotations

from queen_bench.token_check import MEASURED, token_costs


async def test_every_kind_is_measured() -> None:
    costs = await token_costs(rounds=3, requests=20)
    assert set(costs) == {f"{name}_{kind}_us" for name in ("token", "grants", "limits") for kind in MEASURED}
    assert all(isinstance(cost, float) for cost in costs.values())
