"""How long the longest files of tests take, so that parallel workers begin with them.

Only the order matters: measured on two cores that other work shared, and scaled. A new long file belongs here.
"""

from __future__ import annotations

from pathlib import PurePath

_FILES_S = {
    "pipeline/test_chaos.py": 64,
    "pipeline/test_supervised.py": 60,
    "dashboard/test_tasks.py": 60,
    "integration/test_twins.py": 70,
    "integration/test_twins_of_code.py": 50,
    "integration/test_embedded.py": 59,
    "cli/test_verify.py": 60,
    "dashboard/test_pages.py": 50,
    "dashboard/test_night_on_call.py": 35,
    "pipeline/test_command.py": 50,
    "pipeline/test_kinds.py": 50,
    "pipeline/test_sql.py": 60,
    "integration/test_openapi.py": 48,
    "chaos/test_mixed.py": 45,
    "chaos/test_failover.py": 45,
    "integration/test_payload_fidelity.py": 44,
    "integration/test_stepped_operations.py": 42,
    "integration/test_bad_input.py": 36,
    "integration/test_ack_properties.py": 35,
    "pipeline/test_tutorial.py": 35,
    "integration/test_coordinator.py": 34,
    "bench/test_command.py": 34,
    "integration/test_cli.py": 31,
    "integration/test_concurrency.py": 28,
    "simulation/test_cluster.py": 25,
    "simulation/test_coordinator.py": 15,
    "integration/test_silence.py": 20,
    "bench/test_peers.py": 19,
    "integration/test_fuzz_http.py": 20,
    "integration/test_operations.py": 19,
    "integration/test_explain_properties.py": 17,
    "integration/test_telemetry.py": 14,
    "integration/test_subscription.py": 13,
    "integration/test_retention.py": 12,
    "integration/test_lease.py": 11,
    "integration/test_http_protocol.py": 11,
    "integration/test_outage.py": 12,
    "client/test_buffer.py": 11,
    "integration/test_pop.py": 10,
    "migration/test_rolling.py": 65,
    "migration/test_upgrade.py": 15,
    "migration/test_migrations.py": 10,
    "integration/test_lookup.py": 10,
    "integration/test_locked_rows.py": 10,
    "client/test_verbs.py": 9,
    "integration/test_push.py": 9,
    "integration/test_plans.py": 9,
    "integration/test_statistics.py": 9,
    "integration/test_foreign_pages.py": 9,
    "cli/test_top.py": 7,
    "integration/test_messages.py": 7,
    "integration/test_authentication.py": 7,
    "integration/test_configure.py": 7,
    "integration/test_queue_options.py": 7,
    "client/test_testing.py": 6,
    "client/test_signals.py": 6,
    "integration/test_delete.py": 6,
    "client/test_push.py": 6,
    "integration/test_long_poll.py": 6,
}
# Of a file that is not named above.
_FOLDERS_S = {
    "chaos": 40,
    "frameworks": 15,
    "pipeline": 30,
    "dashboard": 25,
    "cluster": 20,
    "acceptance": 20,
    "wheel": 15,
}


def expected_s(path: PurePath) -> int:
    """Seconds of a file, whose path is relative to the folder of the tests; 0 if it is short."""
    return _FILES_S.get(path.as_posix(), _FOLDERS_S.get(path.parts[0], 0))
