"""The cost of a token and of its grants is measured for the requests that come most often."""

from __future__ import annotations

import pytest

from queen_bench.token_check import MEASURED, token_costs, token_ratios


async def test_every_kind_is_measured() -> None:
    costs = await token_costs(rounds=3, requests=20)
    assert set(costs) == {f"{name}_{kind}_us" for name in ("token", "grants", "limits") for kind in MEASURED}
    assert all(isinstance(cost, float) for cost in costs.values())


# Without a token, the application spends 1.4 microseconds on a push or an ack and 3.5 on a pop. A token adds 1 to each
# of them, its grants another 1.1, and limits up to 2: these bounds are twice that.
@pytest.mark.parametrize(("kind", "of_a_push"), [("push", 1.0), ("ack", 1.0), ("pop", 0.4)])
async def test_a_token_that_is_remembered_costs_little(kind: str, of_a_push: float) -> None:
    ratios = await token_ratios(rounds=15, requests=200)
    for name, most in (("token", 1.5), ("grants", 3.4), ("limits", 5.6)):
        assert ratios[f"{name}_{kind}"] < most * of_a_push, ratios
