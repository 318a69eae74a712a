"""The chart in deploy/helm, rendered as Helm does it, makes what deploy/kubernetes has, and what Kubernetes takes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from gotpl.exts.helm import HelmTemplateEngine

import queenmq
from queenmq import config

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "queen"
TEMPLATES = {f"queen/templates/{path.name}": path.read_text() for path in sorted((CHART / "templates").iterdir())}
SECRETS = {"QUEEN_SYNC_SECRET": "0" * 64, "JWT_SECRET": "s" * 32, "PG_PASSWORD": "p"}


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(values)
    for name, change in changes.items():
        made[name] = merged(made[name], change) if isinstance(change, dict) and made.get(name) else change
    return made


def rendered(release: str = "queen", **changes: Any) -> dict[str, dict[str, Any]]:
    """What an installation with these values has, by kind and name. A value that is not there is an error."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    context = {
        "Values": merged(yaml.safe_load((CHART / "values.yaml").read_text()), changes),
        "Chart": {"Name": chart["name"], "AppVersion": chart["appVersion"], "Version": chart["version"]},
        "Release": {"Name": release, "Namespace": "default"},
        "Template": {"BasePath": "queen/templates"},
    }
    shown = [name for name in TEMPLATES if name.endswith((".yaml", ".txt"))]
    texts = HelmTemplateEngine.from_sources(TEMPLATES, strict=True).render(dict.fromkeys(shown, context))
    found = [
        document
        for name, text in texts.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]
    for document in found:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in found}


def of_pods(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    [name] = [one for one in found if one.startswith("ConfigMap/")]
    return dict(found[name]["data"])


def test_it_makes_what_the_manifests_have() -> None:
    plain = {
        f"{document['kind']}/{document['metadata']['name']}": document
        for document in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "queen.yaml").read_text())
    }
    found = rendered()
    assert found.keys() == plain.keys()
    assert {"PG_PORT": "5432"} | of_pods(plain) == of_pods(found)
    pod, theirs = (one["StatefulSet/queen"]["spec"]["template"]["spec"]["containers"][0] for one in (found, plain))
    assert {name: pod[name] for name in ("image", "args", "ports", "env", "securityContext", "resources")} == {
        name: theirs[name] for name in ("image", "args", "ports", "env", "securityContext", "resources")
    }
    assert pod["image"] == f"queen:{queenmq.__version__}"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replicas": 1},
        {"tls": {"secretName": "queen-tls"}},
        {"ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "t", "annotations": {"a": "b"}}},
        {"postgres": {"cidr": "10.0.0.0/8"}, "journal": {"storageClass": "fast", "size": "5Gi"}},
        {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
        {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "k", "operator": "Exists"}]},
        {"imagePullSecrets": [{"name": "registry"}], "image": {"repository": "r.example/queen", "tag": "x"}},
        {"settings": {"LOG_LEVEL": "debug", "NUM_WORKERS": 2}},
    ],
    ids=str,
)
def test_servers_start_with_whatever_is_chosen(changes: dict[str, Any]) -> None:
    found = rendered("events", **changes)
    [pod] = found["StatefulSet/events"]["spec"]["template"]["spec"]["containers"]
    given = of_pods(found)
    for name in ("QUEEN_TLS_CERT_FILE", "QUEEN_TLS_KEY_FILE"):
        assert (name in given) == ("tls" in changes)
    settings = config.load({name: value for name, value in given.items() if "TLS" not in name} | SECRETS)
    assert settings.auth.enabled
    replicas = found["StatefulSet/events"]["spec"]["replicas"]
    assert len(settings.cluster.peers) == (replicas if replicas > 1 else 0)
    assert pod["livenessProbe"]["httpGet"]["scheme"] == ("HTTPS" if "tls" in changes else "HTTP")
    assert ("Ingress/events" in found) == ("ingress" in changes)
    selectors = [one["spec"]["selector"] for kind, one in found.items() if kind.startswith("Service/")]
    labels = found["StatefulSet/events"]["spec"]["template"]["metadata"]["labels"]
    assert all(selector == labels for selector in selectors)


def test_two_installations_do_not_meet() -> None:
    one, other = rendered("one"), rendered("other")
    assert not one.keys() & other.keys()
    assert one["Service/one"]["spec"]["selector"] != other["Service/other"]["spec"]["selector"]


def test_pods_begin_anew_when_a_setting_changes() -> None:
    def annotations(**changes: Any) -> dict[str, str]:
        found: dict[str, str] = rendered(**changes)["StatefulSet/queen"]["spec"]["template"]["metadata"]["annotations"]
        return found

    assert annotations() != annotations(settings={"LOG_LEVEL": "debug"})
