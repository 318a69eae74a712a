"""The examples in deploy/ are well-formed, safe by default, and name only what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml

import queenmq
from queenmq import config
from queenmq.cli.main import main
from queenmq.cli.pipelines import COMMANDS
from queenmq.http.answers.groups import GroupListed
from queenmq.http.routes import groups
from queenmq.pipeline.declaration import read
from queenmq.pipeline.kinds import KINDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "queen.service"
PIPELINES_UNIT = DEPLOY / "systemd" / "queen-pipelines.service"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
KNOWN = {name.split("`")[1] for name in config.markdown_tables().splitlines() if name.startswith("| `")}
SECRETS = {"DATABASE_URL", "PG_PASSWORD", "JWT_SECRET", "QUEEN_SYNC_SECRET", "QUEEN_ENCRYPTION_KEY"}
INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}


def loaded(name: str) -> Any:
    """A program of .ci as a module."""
    loader = SourceFileLoader(name, str(ROOT / ".ci" / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def unit(path: Path = UNIT) -> dict[str, list[str]]:
    """The settings of a unit, each with its values in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def container() -> list[tuple[str, str]]:
    """The instructions of the container file; lines that go on are joined."""
    joined = re.sub(r"\\\n\s*", "", CONTAINERFILE.read_text())
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def said(instruction: str) -> list[str]:
    return [rest for word, rest in container() if word == instruction]


def manifests(file: str = "queen.yaml") -> dict[str, dict[str, Any]]:
    """By kind and name."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in documents}


def options_of(name: str) -> set[str]:
    """Of a command of `queen pipeline`."""
    [found] = [one for one in COMMANDS if one.name == name]
    return {option for parameter in found.params for option in parameter.opts}


def is_a_command(*arguments: str) -> bool:
    return main([*arguments, "--help"]) == 0


# systemd


def test_the_unit_names_what_exists() -> None:
    settings = unit()
    program, *arguments = settings["ExecStart"][0].split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(program).name in scripts
    assert is_a_command(*arguments)
    given = [pair.partition("=")[0] for line in settings["Environment"] for pair in line.split()]
    assert set(given) <= KNOWN - SECRETS
    assert int(settings["TimeoutStopSec"][0]) > config.Settings().http.shutdown_grace_s
    assert settings["User"] == ["queen"]
    assert (settings["NoNewPrivileges"], settings["ProtectSystem"]) == (["true"], ["strict"])
    assert settings["StateDirectory"] == ["queen"]  # /var/lib/queen, which the environment names


def test_the_environment_file_names_settings_and_no_secret_has_a_value() -> None:
    lines = (DEPLOY / "systemd" / "queen.env").read_text().splitlines()
    pairs = dict(match.groups() for line in lines if (match := re.fullmatch(r"#?([A-Z_]+)=(.*)", line)))
    assert pairs.keys() <= KNOWN
    assert {name for name, value in pairs.items() if name in SECRETS and value} <= {"DATABASE_URL"}
    active = {
        name: value for line in lines if "=" in line and line[0] != "#" for name, _, value in [line.partition("=")]
    }
    assert config.load(active).http.host == "127.0.0.1"


def test_the_unit_of_pipelines_drains_before_it_is_killed() -> None:
    settings = unit(PIPELINES_UNIT)
    _, *arguments = settings["ExecStart"][0].split()
    assert is_a_command(*arguments[:2])
    assert set(arguments[2::2]) <= options_of("run")
    assert int(settings["TimeoutStopSec"][0]) > int(arguments[arguments.index("--drain") + 1])
    assert settings["KillMode"] == ["mixed"]  # SIGTERM is for the supervisor alone
    assert "MemoryDenyWriteExecute" not in settings  # Java compiles
    assert {name: unit()[name] for name in settings if name.startswith(("Protect", "Private", "NoNew", "System"))} == {
        name: settings[name] for name in settings if name.startswith(("Protect", "Private", "NoNew", "System"))
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", [UNIT, PIPELINES_UNIT], ids=lambda path: path.name)
def test_systemd_understands_the_unit(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/queen/bin/queen", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if path.name in line] == []


# Container


def test_the_container_is_built_of_what_exists() -> None:
    assert {word for word, _ in container()} <= INSTRUCTIONS | {"ENTRYPOINT", "CMD"}
    images = [image.split()[0] for image in said("FROM")]
    assert all(re.fullmatch(r"[\w/.-]+:\d+\.\d+\.\d+-[\w.-]+", image) for image in images), "pin the base image"
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for copied in said("COPY"):
        if not copied.startswith("--from="):
            assert all((ROOT / source).exists() for source in copied.split()[:-1]), copied
            assert all(source.removeprefix("./").startswith(tuple(sent)) for source in copied.split()[:-1]), copied
    program = json.loads(said("ENTRYPOINT")[-1])
    assert program == ["queen"]
    assert is_a_command(*json.loads(said("CMD")[-1]))


def test_the_container_installs_what_the_server_needs_by_hash() -> None:
    supply = loaded("supply")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(supply.IMAGE_EXTRAS) <= extras.keys()
    needed = subprocess.run(
        [sys.executable, "-c", supply.NEEDED, *supply.IMAGE_EXTRAS], capture_output=True, text=True, check=True
    ).stdout.split()
    lock = (ROOT / "constraints.lock").read_text()
    assert supply.IMAGE_LOCK.read_text() == supply.image_lock(lock, needed), "run .ci/supply lock"
    assert {"asyncpg", "click", "setuptools", "PyYAML"} <= set(needed)
    locked = re.findall(r"^(\S+)==", supply.IMAGE_LOCK.read_text(), re.MULTILINE)
    assert {supply.plain(name) for name in needed} == {supply.plain(name) for name in locked}
    assert "pyspark" not in needed
    installs = [line for line in " ".join(said("RUN")).split("&&") if "pip install" in line]
    assert all("--no-deps" in line and ("--require-hashes" in line or line.split()[-1] == ".") for line in installs)


# Compose


def test_compose_runs_what_exists() -> None:
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = found["services"]
    assert services.keys() == {"queen", "postgres", "prometheus", "grafana"}
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+", service["image"]), "pin the image"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in found["volumes"] or (ROOT / source).exists(), volume
        needs = service.get("depends_on", {})
        assert set(needs) <= services.keys()
    queen = services["queen"]
    assert (ROOT / queen["build"]["dockerfile"]) == CONTAINERFILE
    given = {name: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", value) for name, value in queen["environment"].items()}
    assert given.keys() <= KNOWN
    settings = config.load(given | {"HOST": "0.0.0.0"})
    assert settings.database.host == "postgres"
    assert int(queen["stop_grace_period"].removesuffix("s")) > settings.http.shutdown_grace_s
    theirs = services["postgres"]["environment"]
    assert (theirs["POSTGRES_DB"], theirs["POSTGRES_USER"], theirs["POSTGRES_PASSWORD"]) == tuple(
        queen["environment"][name] for name in ("PG_DB", "PG_USER", "PG_PASSWORD")
    )
    assert "postgres" not in str(services["postgres"].get("ports", ""))


def test_what_compose_monitors_is_queen() -> None:
    scrape = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    ours = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scrape["scrape_configs"][0]["metrics_path"] == ours["scrape_configs"][0]["metrics_path"]
    assert scrape["scrape_configs"][0]["dns_sd_configs"][0]["names"] == ["queen"]
    source = yaml.safe_load((DEPLOY / "compose" / "grafana" / "datasources" / "prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((DEPLOY / "compose" / "grafana" / "dashboards" / "queen.yml").read_text())
    mounted = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana:{boards['providers'][0]['options']['path']}:ro" in mounted


def test_the_container_runs_as_nobody_special_and_has_no_secret() -> None:
    words = [word for word, _ in container()]
    assert said("USER") == ["10001"]
    assert words.index("USER") < words.index("ENTRYPOINT")
    variables = dict(pair.split("=", 1) for line in said("ENV") for pair in line.split())
    assert variables.keys() - {"PATH"} <= KNOWN - SECRETS
    assert variables["QUEEN_DATA_DIR"] == said("VOLUME")[0]
    assert variables["FILE_BUFFER_DIR"].startswith(said("VOLUME")[0])
    settings = config.Settings()
    assert said("EXPOSE") == [f"{settings.http.port}/tcp {settings.cluster.udp_port}/udp"]
    assert not re.search(r"ADD |curl|latest|sudo", CONTAINERFILE.read_text())


def test_the_health_check_of_the_container_is_python() -> None:
    [check] = said("HEALTHCHECK")
    program, flag, code = json.loads(check.partition("CMD ")[2])
    assert (program, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")


# Kubernetes


def test_the_manifests_are_what_kubernetes_wants() -> None:
    for document in manifests().values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    broken = manifests()["StatefulSet/queen"]
    broken["spec"]["replicaz"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_the_supervisors_of_pipelines_run_what_exists() -> None:
    found = manifests("queen-pipelines.yaml")
    for document in found.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    declared = read(found["ConfigMap/queen-pipelines"]["data"]["pipelines.yaml"], KINDS)
    pod = found["Deployment/queen-pipelines"]["spec"]["template"]["spec"]
    [supervisor], [first] = pod["containers"], pod["initContainers"]
    for container in (supervisor, first):
        assert is_a_command(*container["args"][:2])
        assert {one for one in container["args"] if one.startswith("--")} <= options_of(container["args"][1])
        assert container["image"] == f"queen-pipelines:{queenmq.__version__}"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["envFrom"] == [{"configMapRef": {"name": "queen"}}]
    arguments = supervisor["args"]
    assert pod["terminationGracePeriodSeconds"] > int(arguments[arguments.index("--drain") + 1])
    [port] = supervisor["ports"]
    assert arguments[arguments.index("--listen") + 1] == f"0.0.0.0:{port['containerPort']}"
    assert supervisor["livenessProbe"]["httpGet"]["path"] == "/live"
    assert supervisor["readinessProbe"]["httpGet"]["path"] == "/health"
    mounts = [mount["mountPath"] for mount in supervisor["volumeMounts"]]
    assert all(any(one.plan.checkpoint.startswith(mount) for mount in mounts) for one in declared)


def test_the_container_of_pipelines_is_that_of_the_server_with_spark() -> None:
    text = CONTAINERFILE.with_name("Containerfile.pipelines").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r'"\.\[([\w,]+)\]"', text)[0].split(",")
    assert "pipeline" in named
    assert set(named) <= extras.keys()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == [image.split()[0] for image in said("FROM")]
    assert is_a_command(*json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[-1])[:2])
    assert "USER 10001" in text


def test_keda_asks_for_what_queen_answers() -> None:
    found = manifests("keda.yaml")
    scaled, secret = found["ScaledObject/invoices"]["spec"], found["TriggerAuthentication/invoices"]["spec"]
    [trigger] = scaled["triggers"]
    assert (trigger["type"], trigger["metadata"]["authMode"]) == ("metrics-api", "bearer")
    path = urlsplit(trigger["metadata"]["url"])
    assert path.path in {route.path for route in groups.ROUTES if route.method == "GET"}
    assert f"Service/{path.hostname}" in manifests()
    asked = re.fullmatch(r'#\((\w+)=="([^"]+)"\)#\|#\((\w+)=="([^"]+)"\)\.(\w+)', trigger["metadata"]["valueLocation"])
    first, group, second, queue, figure = asked.groups()
    assert {first, second, figure} <= set(GroupListed.__struct_encode_fields__)
    assert parse_qs(path.query) == {"queue": [queue], "search": [group]}, "the page must not end before the group"
    assert int(trigger["metadata"]["targetValue"]) > 0
    assert trigger["authenticationRef"]["name"] == "invoices"
    guide = (ROOT / "docs" / "how-to" / "workers.md").read_text()
    [deployment] = [
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    ]
    kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)
    assert deployment["metadata"]["name"] == scaled["scaleTargetRef"]["name"]
    [given] = secret["secretTargetRef"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"][1]["valueFrom"]["secretKeyRef"] == {"name": given["name"], "key": given["key"]}
    assert deployment["spec"]["template"]["metadata"]["labels"]["queen-client"] == "true"


def test_the_settings_of_the_pods_can_be_used() -> None:
    found = manifests()
    given = dict(found["ConfigMap/queen"]["data"])
    [pod] = found["StatefulSet/queen"]["spec"]["template"]["spec"]["containers"]
    assert given.keys() <= KNOWN - SECRETS
    assert {variable["name"] for variable in pod["env"]} <= KNOWN
    secret = {v["name"] for v in pod["env"] if "secretKeyRef" in v["valueFrom"]}
    assert secret == {"PG_PASSWORD", "QUEEN_SYNC_SECRET", "JWT_SECRET"}
    settings = config.load(given | {"QUEEN_SYNC_SECRET": "0" * 64, "JWT_SECRET": "s" * 32, "PG_PASSWORD": "p"})
    assert settings.auth.enabled
    assert (
        found["StatefulSet/queen"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        > settings.http.shutdown_grace_s
    )
    mounts = [mount["mountPath"] for mount in pod["volumeMounts"]]
    assert str(settings.server.data_dir) in mounts
    assert any(str(settings.journal.folder).startswith(mount) for mount in mounts)


def test_the_pods_find_each_other() -> None:
    found = manifests()
    pods = found["StatefulSet/queen"]["spec"]
    service = found[f"Service/{pods['serviceName']}"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    peers = config.load(found["ConfigMap/queen"]["data"]).cluster.peers
    assert peers == tuple(
        (f"queen-{n}.{pods['serviceName']}", config.Settings().cluster.udp_port) for n in range(pods["replicas"])
    )
    labels = pods["template"]["metadata"]["labels"]
    assert (
        service["selector"] == found["Service/queen"]["spec"]["selector"] == labels == pods["selector"]["matchLabels"]
    )
    assert found["PodDisruptionBudget/queen"]["spec"]["selector"]["matchLabels"] == labels
    identity = {v["name"]: v["valueFrom"].get("fieldRef") for v in pods["template"]["spec"]["containers"][0]["env"]}
    assert identity["QUEEN_SERVER_ID"] == {"fieldPath": "metadata.name"}


def test_the_probes_ask_for_what_needs_no_token() -> None:
    [pod] = manifests()["StatefulSet/queen"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert pod[probe]["httpGet"]["path"] in config.Settings().auth.skip_paths
        assert ports[pod[probe]["httpGet"]["port"]] == config.Settings().http.port
    assert pod["image"] == f"queen:{queenmq.__version__}"
    assert pod["securityContext"]["readOnlyRootFilesystem"] is True


def test_pods_stay_ready_while_the_database_is_away() -> None:
    """Pushes reach their journals then. Those that have never reached it stop a rollout."""
    [pod] = manifests()["StatefulSet/queen"]["spec"]["template"]["spec"]["containers"]
    asked = {kind: pod[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert asked == {"startup": "/health", "readiness": "/metrics", "liveness": "/metrics"}


def test_every_variable_that_a_file_names_exists() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".json":
            named = set(
                re.findall(r"\b((?:QUEEN|PG|DB|JWT|FILE|LOG|NUM|OTEL|DATABASE)_[A-Z_]*[A-Z])\b", path.read_text())
            )
            assert named <= KNOWN, path


def test_the_network_policy_lets_in_what_is_needed_only() -> None:
    found = manifests()
    policy, pods = found["NetworkPolicy/queen"]["spec"], found["StatefulSet/queen"]["spec"]["template"]["metadata"]
    assert policy["podSelector"]["matchLabels"].items() <= pods["labels"].items()
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert all(rule["from"] for rule in policy["ingress"])
    ports = {(port["port"], port["protocol"]) for rule in policy["ingress"] for port in rule["ports"]}
    assert ports == {(6632, "TCP"), (6634, "UDP")}


def test_no_documented_command_has_a_password_in_its_arguments() -> None:
    """Every user of a machine can see the arguments of processes."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *DEPLOY.rglob("*.md")]
    for document in documents:
        for line in document.read_text().splitlines():
            command = line.strip().removeprefix("$ ")
            if re.match(r"(queen|psql|pg_dump|pg_restore|docker|pgbench|kubectl) ", command):
                assert not re.search(r"://[^/\s:@]+:[^@\s]+@|--password[= ]|PG_PASSWORD=\w", command), (document, line)


def test_the_lock_fits_the_constraints() -> None:
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    lock = (ROOT / "constraints.lock").read_text()
    assert re.findall(r"^(\S+==\S+) ", lock, re.MULTILINE) == pinned
    entries = re.split(r"^\S+==\S+ ", lock, flags=re.MULTILINE)[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
