"""What must be true of what the chart renders. Enters: a command and files, by ci/chart. Leaves: lines `ok: ...` or `FAILED: ...`.

Reads no template and starts nothing: it sees what a cluster would be given.
"""

import json
import re
import sys

import yaml

NAMELESS = {"Namespace", "PriorityClass", "CSIDriver", "ClusterRole", "ClusterRoleBinding", "PersistentVolume", "StorageClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
WRITES = {"create", "update", "patch", "delete", "deletecollection", "*"}
failed = False


def check(name, complaint):
    """One line for the count of ci/test; `complaint` is empty if all is well."""
    global failed
    failed = failed or bool(complaint)
    print(f"FAILED: {name}: {complaint}" if complaint else f"ok: {name}")


def read(path):
    with open(path) as file:
        return [it for it in yaml.safe_load_all(file) if it]


def key(it):
    return it["kind"], it["metadata"].get("namespace", ""), it["metadata"]["name"]


def pod_of(it):
    return it["spec"]["template"] if it["kind"] in ("DaemonSet", "Deployment", "Job") else None


def leaves(value, path=""):
    """Each scalar, empty list or empty map with its path."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value


class Rendered:
    """The objects of one rendering."""

    def __init__(self, path):
        self.objects = read(path)
        self.by_key = {key(it): it for it in self.objects}

    def one(self, kind, name):
        found = [it for it in self.objects if it["kind"] == kind and it["metadata"]["name"] == name]
        if len(found) != 1:
            raise SystemExit(f"FAILED: {len(found)} objects {kind} {name} where one is expected")
        return found[0]

    def containers(self, kind, name):
        return {it["name"]: it for it in pod_of(self.one(kind, name))["spec"]["containers"]}

    def rules(self, account):
        """(apiGroup, resource, verb, resourceNames, namespace or "") of everything bound to a service account."""
        for binding in self.objects:
            if not binding["kind"].endswith("RoleBinding") or all(s["name"] != account for s in binding["subjects"]):
                continue
            kind = binding["roleRef"]["kind"]
            namespace = binding["metadata"].get("namespace", "")
            role = self.by_key.get((kind, namespace if kind == "Role" else "", binding["roleRef"]["name"]), {"rules": []})
            for rule in role["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            yield group, resource, verb, tuple(rule.get("resourceNames", ())), namespace


def form(what, rendered):
    """What every object must have, and what they say of each other."""
    wrong = []
    if len(rendered.by_key) != len(rendered.objects):
        wrong.append("an object is there twice")
    for it in rendered.objects:
        where = f"{it['kind']} {it['metadata']['name']}"
        if not it.get("apiVersion"):
            wrong.append(f"{where} has no apiVersion")
        if (it["kind"] in NAMELESS) == ("namespace" in it["metadata"]):
            wrong.append(f"{where}: namespace {it['metadata'].get('namespace')}")
        if it["kind"].endswith("RoleBinding"):
            ref = it["roleRef"]
            namespace = it["metadata"].get("namespace", "") if ref["kind"] == "Role" else ""
            if (ref["kind"], namespace, ref["name"]) not in rendered.by_key and not ref["name"].startswith("system:openshift:scc:"):
                wrong.append(f"{where} binds {ref['name']}, which is not there")
            wrong += [
                f"{where}: no account {s['name']}"
                for s in it["subjects"]
                if ("ServiceAccount", s["namespace"], s["name"]) not in rendered.by_key
            ]
        pod = pod_of(it)
        if not pod:
            continue
        spec, labels = pod["spec"], pod["metadata"]["labels"]
        wanted = it["spec"].get("selector", {}).get("matchLabels", {})
        if any(labels.get(name) != value for name, value in wanted.items()):
            wrong.append(f"{where} does not select its own pods")
        account = spec.get("serviceAccountName")
        if account is None and spec.get("automountServiceAccountToken") is not False:
            wrong.append(f"{where}: it names no account, and has the token of another")
        if account and ("ServiceAccount", it["metadata"]["namespace"], account) not in rendered.by_key:
            wrong.append(f"{where}: no account {account}")
        if spec.get("enableServiceLinks") is not False:
            wrong.append(f"{where}: variables of Services could set those of our programs")
        volumes = [volume["name"] for volume in spec.get("volumes", [])]
        ports = [port["containerPort"] for c in spec["containers"] for port in c.get("ports", [])]
        if len(set(ports)) != len(ports):
            wrong.append(f"{where}: containers of one pod share its ports, and one is there twice")
        for c in spec["containers"] + spec.get("initContainers", []):
            names = [variable["name"] for variable in c.get("env", [])]
            if len(set(names)) != len(names):
                wrong.append(f"{where}/{c['name']}: a variable is there twice")
            wrong += [f"{where}/{c['name']}: no volume {m['name']}" for m in c.get("volumeMounts", []) if m["name"] not in volumes]
            for probe in ("livenessProbe", "readinessProbe"):
                port = c.get(probe, {}).get("httpGet", {}).get("port")
                if port and port not in [p["name"] for p in c.get("ports", [])]:
                    wrong.append(f"{where}/{c['name']}: no port {port} for its {probe}")
            if not re.fullmatch(r"([^:/\s]+(:[0-9]+)?/)?[^:@\s]+(:[^:@\s]+|@sha256:[0-9a-f]+)", c["image"]):
                wrong.append(f"{where}/{c['name']}: image {c['image']!r}")
    check(f"{what}: objects are whole and name each other", "; ".join(wrong))


def rights(what, rendered, node, controller, release, pods, secrets, headroom=False):
    """No right is wider than what its holder does. `secrets`: the namespaces whose Secrets may be got; "" is the whole cluster.

    `headroom`: workloads may reserve room, for which their label and gate are patched.
    """
    attachments = ("s3.csi.scality.com", "mountpoints3podattachments")
    of_node = set(rendered.rules(node))
    of_controller = set(rendered.rules(controller))
    writes = {(g, r) for g, r, verb, _, _ in of_node if verb in WRITES}
    allowed = {("", "events"), ("events.k8s.io", "events"), ("", "nodes")}
    check(f"{what}: a node writes nothing but Events, and one taint of its Node", writes - allowed and str(writes))
    of_nodes = {verb for group, resource, verb, _, _ in of_node if resource == "nodes"}
    policy = rendered.one("ValidatingAdmissionPolicy", "s3-csi-driver-node-taint")["spec"]
    binding = rendered.one("ValidatingAdmissionPolicyBinding", "s3-csi-driver-node-taint")["spec"]
    good = of_nodes == {"get", "patch"} and policy["failurePolicy"] == "Fail" and binding["validationActions"] == ["Deny"]
    good = good and policy["matchConditions"][0]["expression"].endswith(f':{node}"')
    good = good and "authentication.kubernetes.io/node-name" in policy["validations"][0]["expression"]
    check(f"{what}: a policy holds a node's driver to its own node and that taint", "" if good else f"{of_nodes} {policy}")
    expected = {(*attachments, verb, (), "") for verb in ("get", "list", "watch")}
    expected |= {("", "pods", verb, (), pods) for verb in ("get", "list", "watch")}
    expected |= {("coordination.k8s.io", "leases", "get", ("scality-csi-controller",), release)}
    check(f"{what}: a node reads attachments, and pods only where Mountpoint Pods are", str(expected - of_node) if expected - of_node else "")
    wide = {it for it in of_controller if it[1] == "pods" and it[2] in WRITES and it[4] != pods}
    allowed = {("", "pods", "patch", (), "")} if headroom else set()
    check(f"{what}: the controller writes pods only where Mountpoint Pods are{', and patches others' if headroom else ''}", str(wide) if wide != allowed else "")
    secret = [it for it in of_node if it[1] == "secrets"] + [it for it in of_controller if it[1] == "secrets" and it[2] != "get"]
    star = [it for it in of_node | of_controller if "*" in it[:3]]
    check(f"{what}: only the provisioner gets Secrets, it lists none, and nothing is allowed by a star", str(secret + star) if secret + star else "")
    where = {it[4] for it in of_controller if it[1] == "secrets"}
    check(f"{what}: Secrets are got where they may be named", "" if where == set(secrets) else str(where))
    needs = {(*attachments, verb, (), "") for verb in ("get", "list", "watch", "create", "patch", "delete")}
    needs |= {("", "pods", verb, (), pods) for verb in ("get", "create", "patch", "delete")}
    needs |= {("", r, verb, (), "") for r in ("pods", "persistentvolumes", "persistentvolumeclaims") for verb in ("list", "watch")}
    needs |= {("events.k8s.io", "events", verb, (), "") for verb in ("create", "patch")}
    needs |= {("coordination.k8s.io", "leases", "create", (), release)}
    needs |= {("coordination.k8s.io", "leases", verb, ("scality-csi-controller",), release) for verb in ("get", "patch")}
    # The provisioner's and the controller service's.
    needs |= {("", "persistentvolumes", verb, (), "") for verb in ("get", "create", "update", "patch", "delete")}
    needs |= {("", "persistentvolumeclaims", verb, (), "") for verb in ("get", "update")}
    needs |= {("storage.k8s.io", r, verb, (), "") for r in ("storageclasses", "csinodes") for verb in ("get", "list", "watch")}
    needs |= {("", "namespaces", "get", (it,), "") for it in ("kube-system", pods)}
    needs |= {("", "nodes", "get", (), "")}
    needs |= {("", "serviceaccounts", verb, (), "") for verb in ("list", "watch")}
    needs |= {("coordination.k8s.io", "leases", verb, ("s3-csi-scality-com",), release) for verb in ("get", "update")}
    check(f"{what}: the controller may do its work", str(needs - of_controller) if needs - of_controller else "")


def default(what, path, version):
    """The driver as it is installed by who says nothing but the endpoint."""
    rendered = Rendered(path)
    form(what, rendered)
    rights(what, rendered, "s3-csi-driver-sa", "s3-csi-driver-controller-sa", "kube-system", "mount-s3", [""])
    spec = rendered.one("CSIDriver", "s3.csi.scality.com")["spec"]
    wanted = {
        "attachRequired": False,
        "podInfoOnMount": True,
        "requiresRepublish": True,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Persistent"],
        "tokenRequests": [{"audience": "sts.amazonaws.com", "expirationSeconds": 3600}],
    }
    check(f"{what}: the CSIDriver", "" if spec == wanted else str(spec))

    architectures(what, rendered, ["amd64"])
    jobs = [pod_of(it)["spec"] for it in rendered.objects if it["kind"] == "Job"]
    good = jobs and all(it.get("priorityClassName") == "system-cluster-critical" and it["containers"][0].get("resources", {}).get("requests") for it in jobs)
    check(f"{what}: Jobs have resources, and start on a cluster that is full", "" if good else str(jobs))
    labels = rendered.one("Namespace", "mount-s3")["metadata"]["labels"]
    keeps = rendered.one("Namespace", "mount-s3")["metadata"]["annotations"].get("helm.sh/resource-policy")
    check(f"{what}: uninstalling ends no mount", "" if keeps == "keep" else str(keeps))
    modes = {mode: labels.get(f"pod-security.kubernetes.io/{mode}") for mode in ("enforce", "warn", "audit")}
    check(f"{what}: Mountpoint Pods live under the standard `restricted`", "" if set(modes.values()) == {"restricted"} else str(modes))
    classes = [it["metadata"]["name"] for it in rendered.objects if it["kind"] == "PriorityClass"]
    check(f"{what}: one priority class", "" if classes == ["mount-s3-critical"] else str(classes))

    node = rendered.containers("DaemonSet", "s3-csi-node")
    check(f"{what}: a node has driver, holder, registrar and liveness probe", "" if list(node) == ["s3-plugin", "s3-holder", "node-driver-registrar", "liveness-probe"] else str(list(node)))
    holder = node["s3-holder"]
    context, (mount,) = holder["securityContext"], holder["volumeMounts"]
    # A mount of its own would be a private copy, or touch the host's.
    good = context["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]} and not context.get("privileged") and mount["mountPropagation"] == "HostToContainer"
    good = good and not holder.get("ports") and holder["livenessProbe"]["exec"]["command"] == holder["command"] + ["--check"]
    check(f"{what}: the holder may reach files and sockets of pods, and nothing else", "" if good else str(holder))
    driver = node["s3-plugin"]
    mounts = {m["mountPath"]: m for m in driver["volumeMounts"]}
    check(
        f"{what}: what the driver mounts, the host sees",
        "" if mounts["/var/lib/kubelet"].get("mountPropagation") == "Bidirectional" and driver["securityContext"]["privileged"] else str(mounts),
    )
    of_host = pod_of(rendered.one("DaemonSet", "s3-csi-node"))["spec"]["volumes"]
    volumes = {v["name"]: v["hostPath"]["path"] for v in of_host if "hostPath" in v}
    paths = {
        "kubelet-dir": "/var/lib/kubelet",
        "plugin-dir": "/var/lib/kubelet/plugins/s3.csi.scality.com/",
        "registration-dir": "/var/lib/kubelet/plugins_registry/",
    }
    check(f"{what}: folders of the host", "" if volumes == paths else str(volumes))
    env = {it["name"]: it for it in driver["env"]}
    items = [{"key": name, "path": name} for name in ("access_key_id", "secret_access_key", "session_token")]
    wanted = {"name": "driver-credentials", "secret": {"secretName": "s3-secret", "optional": True, "items": items}}
    of_controller = pod_of(rendered.one("Deployment", "s3-csi-controller"))["spec"]["volumes"]
    mounts_of_keys = [
        [m for m in c["volumeMounts"] if m["name"] == "driver-credentials"]
        for c in (driver, rendered.containers("Deployment", "s3-csi-controller")["s3-csi-controller"])
    ]
    # A file that is mounted by subPath would stay as it was at the start.
    good = wanted in of_host and wanted in of_controller and all(len(m) == 1 and "subPath" not in m[0] and m[0]["readOnly"] for m in mounts_of_keys)
    good = good and all(env["DRIVER_CREDENTIALS_DIRECTORY"]["value"] == m[0]["mountPath"] for m in mounts_of_keys)
    good = good and not any("secretKeyRef" in json.dumps(it) for it in driver["env"])
    check(f"{what}: credentials are files that follow the Secret", "" if good else f"{of_host} {of_controller} {mounts_of_keys}")
    values = (env["AWS_ENDPOINT_URL"]["value"], env["AWS_REGION"]["value"], env["KUBELET_PATH"]["value"], env["CSI_ENDPOINT"]["value"])
    wanted = ("https://ring.example.test", "eu-west-1", "/var/lib/kubelet", "unix:/csi/csi.sock")
    check(f"{what}: what the driver is told", "" if values == wanted else str(values))
    registrar = "--kubelet-registration-path=/var/lib/kubelet/plugins/s3.csi.scality.com/csi.sock"
    check(f"{what}: the registrar names the socket as the host has it", "" if registrar in node["node-driver-registrar"]["args"] else str(node["node-driver-registrar"]["args"]))
    probes = [driver.get("livenessProbe"), node["liveness-probe"].get("livenessProbe"), node["liveness-probe"]["args"]]
    ready = driver.get("readinessProbe", {}).get("httpGet", {}).get("path")
    check(f"{what}: readiness is whether new mounts can be made", "" if ready == "/readyz" else str(ready))
    periods = [driver[it].get("periodSeconds", 10) for it in ("livenessProbe", "readinessProbe", "startupProbe") if it in driver]
    check(f"{what}: no probe wakes a driver at rest more often than every ten seconds", "" if len(periods) >= 2 and min(periods) >= 10 else str(periods))
    good = probes[0]["httpGet"]["path"] == "/healthz" and driver["ports"][0]["containerPort"] == 9808 and not probes[1] and "--health-port=9808" not in probes[2]
    check(f"{what}: only the driver's own /healthz restarts it", "" if good else str(probes))

    controller = rendered.one("Deployment", "s3-csi-controller")
    containers = rendered.containers("Deployment", "s3-csi-controller")
    check(
        f"{what}: two controller pods of controller service, reconciler and provisioner",
        "" if controller["spec"]["replicas"] == 2 and list(containers) == ["s3-csi-controller", "s3-pod-reconciler", "csi-provisioner"] else f"{controller['spec']['replicas']} of {list(containers)}",
    )
    annotations = pod_of(controller)["metadata"]["annotations"]
    check(f"{what}: kubectl logs shows the reconciler", "" if annotations.get("kubectl.kubernetes.io/default-container") == "s3-pod-reconciler" else str(annotations))
    contexts = [c["securityContext"] for c in containers.values()]
    good = all(c["runAsNonRoot"] and c["readOnlyRootFilesystem"] and c["capabilities"] == {"drop": ["ALL"]} for c in contexts)
    check(f"{what}: nothing in the controller pod has a privilege", "" if good else str(contexts))
    reconciler, service, provisioner = (containers[it] for it in ("s3-pod-reconciler", "s3-csi-controller", "csi-provisioner"))
    # The socket may be used by its owner alone.
    users = {c["securityContext"]["runAsUser"] for c in (service, provisioner)}
    folders = [{m["mountPath"]: m["name"] for m in c["volumeMounts"]} for c in (service, provisioner)]
    good = len(users) == 1 and all(it["/csi"] == "socket-dir" for it in folders) and "--csi-address=/csi/csi.sock" in provisioner["args"]
    check(f"{what}: controller service and provisioner meet at one socket", "" if good else f"{users} {folders} {provisioner['args']}")
    flags = {"--extra-create-metadata", "--leader-election", "--timeout=60s"}
    check(f"{what}: the provisioner says what claims are called, and one of two works", "" if flags <= set(provisioner["args"]) else str(provisioner["args"]))
    told = {it["name"]: it.get("value", it.get("valueFrom")) for it in service["env"]}
    of_node = {it["name"]: it.get("value", it.get("valueFrom")) for it in driver["env"]}
    shared = [name for name in of_node if name.startswith("AWS_")] + ["DRIVER_CREDENTIALS_DIRECTORY"]
    good = told["CSI_CONTROLLER_ONLY"] == "true" and shared and all(told[name] == of_node[name] for name in shared)
    check(f"{what}: the controller service has the node's store and keys", "" if good else str(told))
    probes = [service["livenessProbe"]["httpGet"], service["readinessProbe"]["httpGet"]]
    good = [it["path"] for it in probes] == ["/healthz", "/readyz"] and {p["name"]: p["containerPort"] for p in service["ports"]} == {"csi-healthz": 9808}
    check(f"{what}: the controller service is probed", "" if good else str(probes))
    images = {c["image"] for c in (driver, reconciler, service)} | {it["value"] for it in reconciler["env"] if it["name"] == "MOUNTPOINT_IMAGE"}
    check(f"{what}: one image of this release everywhere", "" if images == {f"registry.test/team/mountpoint-s3-csi-driver:{version}"} else str(images))

    hooks = {it["metadata"]["name"]: it["metadata"]["annotations"]["helm.sh/hook"] for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})}
    test = {name: hooks.pop(name) for name in ("s3-csi-test", "s3-csi-test-mount-s3")}
    check(f"{what}: helm test makes a volume and writes", "" if set(test.values()) == {"test"} else str(test))
    check_job = rendered.one("Job", "s3-csi-check-unused")["spec"]
    good = hooks.pop("s3-csi-check-unused") == "pre-delete" and check_job["backoffLimit"] == 0
    seen = {("s3.csi.scality.com", "mountpoints3podattachments"), ("", "pods"), ("", "persistentvolumes")}
    good = good and {(*it, "list", (), "") for it in seen} <= set(rendered.rules("s3-csi-crd"))
    command = rendered.containers("Job", "s3-csi-check-unused")["check-unused"]["command"]
    keep = rendered.containers("Job", "s3-csi-check-unused")["check-unused"].get("args", [])
    check(f"{what}: a refused uninstall names the revision to go back to", "" if len(keep) == 1 and re.fullmatch(r"--keep-by=helm rollback \S+ [1-9][0-9]* --namespace \S+", keep[0]) else str(keep))
    check(f"{what}: uninstalling asks first whether volumes are in use", "" if good and command == ["/bin/scality-csi-controller", "check-unused"] else str(check_job))
    good = hooks == {"s3-csi-crd": "pre-install,pre-upgrade,pre-delete", "s3-csi-install-crd": "pre-install,pre-upgrade"}
    command = rendered.containers("Job", "s3-csi-install-crd")["install-crd"]["command"]
    good = good and command == ["/bin/scality-csi-controller", "install-crd"]
    check(f"{what}: the CRD is applied before all else, and stays when the release goes", "" if good else f"{hooks} {command}")
    crd = {(verb, names) for _, resource, verb, names, _ in rendered.rules("s3-csi-crd") if resource == "customresourcedefinitions"}
    unnamed = {verb for verb, names in crd if not names}
    check(f"{what}: who applies the CRD may change no other", "" if unnamed == {"create"} and ("delete" not in {v for v, _ in crd}) else str(crd))
    # Immutable in Kubernetes: an upgrade from 2.2.0 fails if they differ.
    selectors = [rendered.one(*it)["spec"]["selector"]["matchLabels"] for it in (("DaemonSet", "s3-csi-node"), ("Deployment", "s3-csi-controller"))]
    common = {"app.kubernetes.io/name": "scality-mountpoint-s3-csi-driver", "app.kubernetes.io/instance": "mount-s3"}
    roles = {key(it)[2]: it["roleRef"]["name"] for it in rendered.objects if it["kind"].endswith("RoleBinding")}
    good = (
        selectors == [{"app": "s3-csi-node", **common}, {"app": "s3-csi-controller", **common}]
        and roles["mountpoint-s3-csi-node-binding"] == "s3-csi-driver-cluster-role"
        and roles["s3-csi-driver-controller-cluster-role-binding"] == "s3-csi-driver-controller-cluster-role"
    )
    check(f"{what}: what can't be changed by an upgrade is as in 2.2", "" if good else f"{selectors} {roles}")


def every_value(what, path, values, defaults):
    """Each value of `values` shows in what is rendered, and no value of the chart is left out."""
    rendered = Rendered(path)
    form(what, rendered)
    rights(what, rendered, "set-node-sa", "set-controller-sa", "kube-system", "set-mount-namespace", ["set-secret-namespace"], headroom=True)
    architectures(what, rendered, ["arm64"])
    mounts = [m["mountPath"] for m in rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]["volumeMounts"] if m["name"] == "set-node-volume"]
    check(f"{what}: the driver's container has the additional volume", "" if mounts == ["/set/mount"] else str(mounts))
    classes = {it["metadata"]["name"]: (it["value"], it["preemptionPolicy"]) for it in rendered.objects if it["kind"] == "PriorityClass"}
    wanted = {"set-priority": (1000000000, "Never"), "set-preempting": (999999999, "PreemptLowerPriority"), "set-headroom": (-10, "Never")}
    policy, binding = rendered.one("ValidatingAdmissionPolicy", "s3-csi-driver-headroom")["spec"], rendered.one("ValidatingAdmissionPolicyBinding", "s3-csi-driver-headroom")["spec"]
    good = policy["failurePolicy"] == "Fail" and binding["validationActions"] == ["Deny"] and policy["matchConditions"][0]["expression"].endswith(':set-controller-sa"')
    check(f"{what}: a policy holds the reconciler to label and gate of workloads", "" if good else f"{policy} {binding}")
    check(f"{what}: only Mountpoint Pods with reserved room preempt, and headroom pods give way to all", "" if classes == wanted else str(classes))
    (values,), (defaults,) = read(values), read(defaults)
    text = json.dumps(rendered.objects)
    words = {str(value) for _, value in leaves(rendered.objects)} | {name for it in rendered.objects for path, _ in leaves(it) for name in path.split(".")}
    missing = []
    for path, value in leaves(values):
        if path == "experimental.reserveHeadroomForMountpointPods":
            shown = "MOUNTPOINT_HEADROOM_IMAGE" in words
        elif isinstance(value, (bool, dict, list)) or value in (None, "1"):
            # A map whose keys are the value is looked for by its last key; switches have facts of their own.
            shown = isinstance(value, bool) or path.split(".")[-1] in text
        elif path == "node.mountpointInstallPath" or path.startswith(("metrics.serviceMonitor.", "shared.")):
            shown = True  # of another mounter, and in place of PodMonitors: they have facts of their own
        else:
            shown = str(value) in words or str(value).rstrip("/") in text
        if not shown:
            missing.append(f"{path} = {value}")
    check(f"{what}: every value shows in what is rendered", "; ".join(missing))
    known = [path for path, _ in leaves(values)]
    left_out = [path for path, _ in leaves(defaults) if not any(it == path or it.startswith(path + ".") or path.startswith(it + ".") for it in known)]
    check(f"{what}: no value of the chart is left out", ", ".join(left_out))
    hooks = {it["metadata"]["annotations"]["helm.sh/hook"] for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})}
    command = rendered.containers("Job", "s3-csi-uninstall-crd")["uninstall-crd"]["command"]
    good = "post-delete" in hooks and "pre-install,pre-upgrade,pre-delete,post-delete" in hooks and command[1] == "uninstall-crd"
    check(f"{what}: cleanupCRDOnUninstall takes the CRD along", "" if good else str(hooks))
    spec = pod_of(rendered.one("DaemonSet", "s3-csi-node"))["spec"]
    told = {it["name"]: it.get("value") for it in rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]["env"]}
    check(f"{what}: the driver registers no files of caches where that is off", "" if told.get("KERNEL_READS") == "false" else str(told))
    path = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}.get("stage-dir")
    mounts = {m["name"]: m["mountPath"] for m in rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]["volumeMounts"]}
    of_reconciler = [it["name"] for it in rendered.containers("Deployment", "s3-csi-controller")["s3-pod-reconciler"]["env"]]
    good = path == mounts.get("stage-dir") == told.get("STAGE_DIRECTORY") == "/set-stage-directory" and told.get("STAGES") == "true" and {"MOUNTPOINT_STAGES", "MOUNTPOINT_STAGES_ON_NODES"} <= set(of_reconciler)
    check(f"{what}: the driver has the nodes' directory for stages, and the reconciler knows of it", "" if good else f"{path} {told}")
    check(f"{what}: no token where none is wanted", "" if spec.get("automountServiceAccountToken") is False else "it is mounted")
    driver = rendered.one("CSIDriver", "s3.csi.scality.com")
    inline = driver["metadata"]["labels"].get("security.openshift.io/csi-ephemeral-volume-profile")
    env = [it["name"] for it in rendered.containers("Deployment", "s3-csi-controller")["s3-pod-reconciler"]["env"]]
    good = driver["spec"]["volumeLifecycleModes"] == ["Persistent", "Ephemeral"] and inline == "restricted" and "INLINE_VOLUMES" in env
    check(f"{what}: inline volumes, with the profile that OpenShift asks for", "" if good else str(driver))
    audiences = [it["audience"] for it in driver["spec"]["tokenRequests"]]
    good = audiences == ["set-audience", "pods.eks.amazonaws.com"] and "POD_IDENTITY_AGENT" in env
    check(f"{what}: the kubelet brings a token for the agent, and the reconciler knows of it", "" if good else f"{audiences} {env}")
    told = {it["name"]: it.get("value") for it in rendered.containers("Deployment", "s3-csi-controller")["s3-pod-reconciler"]["env"]}
    maps = {"LABELS": "podLabels", "ANNOTATIONS": "podAnnotations", "ENV": "env", "SE_LINUX_OPTIONS": "seLinuxOptions"}
    wrong = {name: told.get(f"MOUNTPOINT_POD_{name}") for name, key in maps.items() if json.loads(told.get(f"MOUNTPOINT_POD_{name}", "null")) != values["mountpointPod"][key]}
    check(f"{what}: the reconciler is told what Mountpoint Pods have besides, as JSON", wrong and str(wrong))
    settings = ("podSecurityContext", "securityContext", "dnsPolicy", "dnsConfig", "hostAliases", "runtimeClassName", "tolerations")
    wanted = {name: values["mountpointPod"][name] for name in settings}
    check(f"{what}: and what their specification has", "" if json.loads(told.get("MOUNTPOINT_POD_TEMPLATE", "null")) == wanted else str(told.get("MOUNTPOINT_POD_TEMPLATE")))
    labels = told.get("MOUNTPOINT_HEADROOM_POD_LABELS", "null")
    check(f"{what}: and what headroom pods have", "" if json.loads(labels) == values["experimental"]["headroomPodLabels"] else labels)
    bound = rendered.one("RoleBinding", "s3-csi-driver-node-privileged")
    good = bound["roleRef"]["name"] == "system:openshift:scc:privileged" and [s["name"] for s in bound["subjects"]] == ["set-node-sa"]
    check(f"{what}: on OpenShift the driver of a node is privileged, and nobody else", "" if good else str(bound))
    told = [c for it in (("DaemonSet", "s3-csi-node"), ("Deployment", "s3-csi-controller")) for c in rendered.containers(*it).values() if "set-repository" in c["image"]]
    plain = [c["name"] for c in told if {"name": "LOG_FORMAT", "value": "json"} not in c["env"]]
    check(f"{what}: everything of ours logs JSON", str(plain) if plain or len(told) != 4 else "")
    monitors = {it["metadata"]["name"]: it["spec"] for it in rendered.objects if it["kind"] == "PodMonitor"}
    ports = {p["name"] for it in rendered.objects if it["kind"] == "Deployment" for c in pod_of(it)["spec"]["containers"] for p in c.get("ports", [])}
    jobs = {name: it["podMetricsEndpoints"][0] for name, it in monitors.items()}
    names = {name: {r["targetLabel"]: r.get("replacement") for r in it["relabelings"]} for name, it in jobs.items()}
    good = names == {"s3-csi-controller": {"job": "mount-s3-csi-controller"}, "s3-csi-node": {"job": "mount-s3-csi-node", "node": None}, "s3-csi-mountpoint-pods": {"job": "mount-s3", "persistentvolume": None, "node": None}}
    good = good and jobs["s3-csi-controller"]["port"] in ports and jobs["s3-csi-mountpoint-pods"]["port"] == "metrics"
    check(f"{what}: Prometheus finds reconcilers and engines, and these by their volume", "" if good else str(monitors))
    dashboard = json.loads(rendered.one("ConfigMap", "s3-csi-dashboard")["data"]["mount-s3-csi.json"])
    check(f"{what}: the dashboard arrives whole", "" if len(dashboard["panels"]) >= 12 else str(dashboard)[:200])
    rules = rendered.one("PrometheusRule", "s3-csi")["spec"]["groups"][0]["rules"]
    check(f"{what}: alerts have what to do", "" if rules and all({"summary", "action"} <= set(rule["annotations"]) for rule in rules) else str(rules))
    tolerated = [it.get("key") for it in spec["tolerations"]]
    check(f"{what}: only the tolerations that were asked for", "" if tolerated == ["set-node-toleration"] else str(tolerated))


def no_secrets(what, path):
    """Nobody gets a Secret."""
    rendered = Rendered(path)
    form(what, rendered)
    secret = [it for it in rendered.rules("s3-csi-driver-controller-sa") if it[1] == "secrets"]
    check(f"{what}: nobody gets one", str(secret) if secret else "")


def architectures(what, rendered, wanted):
    """Every pod that runs our image is kept to the image's architectures, whatever else its affinity asks for."""
    wrong = []
    for it in rendered.objects:
        if pod_of(it):
            terms = pod_of(it)["spec"].get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
            ours = {"key": "kubernetes.io/arch", "operator": "In", "values": wanted}
            if not terms or not all(ours in term.get("matchExpressions", []) for term in terms):
                wrong.append(f"{it['kind']} {it['metadata']['name']}: {terms}")
    check(f"{what}: pods run on {' and '.join(wanted)} alone", "; ".join(wrong))


def switches(what, path):
    """Everything that the chart makes and need not make, left out; one reconciler; few taints tolerated."""
    rendered = Rendered(path)
    kinds = {it["kind"] for it in rendered.objects if "helm.sh/hook" not in it["metadata"].get("annotations", {})}
    made = kinds & {"Namespace", "ServiceAccount", "PodDisruptionBudget", "PriorityClass"}
    check(f"{what}: nothing is made that is there", str(made) if made else "")
    arguments = rendered.containers("Deployment", "s3-csi-controller")["csi-provisioner"]["args"]
    check(f"{what}: one provisioner needs no Lease", "" if "--leader-election" not in arguments else str(arguments))
    tolerations = pod_of(rendered.one("DaemonSet", "s3-csi-node"))["spec"]["tolerations"]
    keys = [it.get("key") for it in tolerations]
    check(f"{what}: the startup taint is tolerated, and not every taint", "" if keys == ["CriticalAddonsOnly", "s3.csi.scality.com/agent-not-ready", None] and "effect" in tolerations[2] else str(tolerations))


def names_that_look_like_numbers_stay_text(what, path, *given):
    """YAML reads 2025 as a number and `on` as true, and Kubernetes takes neither for a name."""
    texts = {"name", "namespace", "resourceNames", "value", "values", "key", "secretName", "serviceAccountName", "priorityClassName", "storageClassName", "bucketName"}
    wrong, seen = [], set()
    for it in read(path):
        for at, value in leaves(it):
            last = at.split(".")[-1]
            in_words = ".labels." in at or ".annotations." in at
            if (last in texts or in_words) and not isinstance(value, str) and (it["kind"], at) != ("PriorityClass", "value"):
                wrong.append(f"{it['kind']} {it['metadata']['name']}: {at} is {value!r}")
            if isinstance(value, str):
                seen.add(value)
    check(f"{what}: they stay text", "; ".join(wrong))
    unseen = [it for it in given if it not in seen]
    check(f"{what}: each stands where it is used", f"{unseen} are nowhere" if unseen else "")


def registry(what, path, registry, digest):
    """Every image comes from one registry, under its own path there; one with a digest is pulled by it."""
    rendered = Rendered(path)
    form(what, rendered)
    pods = [pod_of(it) or (it if it["kind"] == "Pod" else None) for it in rendered.objects]
    images = {c["image"] for pod in pods if pod for c in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])}
    images |= {it["value"] for it in rendered.containers("Deployment", "s3-csi-controller")["s3-pod-reconciler"]["env"] if it["name"] == "MOUNTPOINT_IMAGE"}
    paths = {it.removeprefix(f"{registry}/").split(":")[0].split("@")[0] for it in images}
    wanted = {"team/mountpoint-s3-csi-driver", "library/busybox"} | {f"sig-storage/{it}" for it in ("csi-node-driver-registrar", "livenessprobe", "csi-provisioner")}
    check(f"{what}: each image, and of Mountpoint Pods, is in it", "" if all(it.startswith(f"{registry}/") for it in images) and paths == wanted else str(images))
    ours = {it for it in images if "mountpoint-s3-csi-driver" in it}
    check(f"{what}: ours is pulled by its digest", "" if ours == {f"{registry}/team/mountpoint-s3-csi-driver@{digest}"} else str(ours))


def uninstall_forced(what, path):
    """Nothing asks whether volumes are in use."""
    rendered = Rendered(path)
    form(what, rendered)
    hooks = {it["metadata"]["annotations"]["helm.sh/hook"] for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})}
    verbs = {verb for _, resource, verb, _, _ in rendered.rules("s3-csi-crd") if resource != "customresourcedefinitions"}
    check(f"{what}: no Job stands in its way", "" if not [it for it in hooks if "pre-delete" in it] and not verbs else f"{hooks} {verbs}")


def network(what, path):
    """Nobody connects to engines, and the driver's pods are reached by probes alone."""
    rendered = Rendered(path)
    policies = {it["metadata"]["namespace"]: it["spec"] for it in rendered.objects if it["kind"] == "NetworkPolicy"}
    check(f"{what}: a policy where each kind of pod is", "" if set(policies) == {"kube-system", "mount-s3"} else str(policies))
    check(f"{what}: Mountpoint Pods are reached by nobody and reach all", "" if policies["mount-s3"] == {"podSelector": {}, "ingress": [], "policyTypes": ["Ingress"]} else str(policies["mount-s3"]))
    ports = {port["port"] for rule in policies["kube-system"]["ingress"] for port in rule["ports"]}
    used = {p["containerPort"] for it in rendered.objects if it["kind"] in ("DaemonSet", "Deployment") for c in pod_of(it)["spec"]["containers"] for p in c.get("ports", [])}
    check(f"{what}: each port of a probe is open", "" if used <= ports else f"{used} {ports}")


def split(what, path):
    """The reconciler has a Deployment and an account of its own; who gets Secrets writes no pods, and the reverse."""
    rendered = Rendered(path)
    form(what, rendered)
    parts = {name: list(rendered.containers("Deployment", name)) for name in ("s3-csi-controller", "s3-pod-reconciler")}
    good = parts == {"s3-csi-controller": ["s3-csi-controller", "csi-provisioner"], "s3-pod-reconciler": ["s3-pod-reconciler"]}
    good = good and not pod_of(rendered.one("Deployment", "s3-pod-reconciler"))["spec"].get("volumes")
    check(f"{what}: two Deployments", "" if good else str(parts))
    service, reconciler = (set(rendered.rules(it)) for it in ("s3-csi-driver-controller-sa", "s3-csi-driver-reconciler-sa"))
    names = lambda rules, verbs=None: {r for _, r, verb, _, _ in rules if not verbs or verb in verbs}
    good = "secrets" in names(service) and not names(service) & {"pods", "mountpoints3podattachments", "serviceaccounts"}
    check(f"{what}: who gets Secrets knows no pods and no attachments", "" if good else str(service))
    good = names(reconciler, WRITES) == {"pods", "mountpoints3podattachments", "events", "leases"} and "secrets" not in names(reconciler)
    check(f"{what}: who writes pods gets no Secrets and writes no volumes", "" if good else str(reconciler))
    scraped = {it["spec"]["selector"]["matchLabels"]["app"]: [e["port"] for e in it["spec"]["podMetricsEndpoints"]] for it in rendered.objects if it["kind"] == "PodMonitor"}
    good = scraped == {"s3-pod-reconciler": ["healthz"], "s3-csi-controller": ["csi-healthz"], "s3-csi-node": ["healthz"]}
    check(f"{what}: Prometheus finds all three", "" if good else str(scraped))
    leases = {(verb, it) for _, r, verb, it, _ in reconciler if r == "leases"}
    check(f"{what}: each has its Lease", "" if ("patch", ("scality-csi-controller",)) in leases else str(leases))


def service_monitors(what, path):
    """ServiceMonitors find, by Services that have no address, the ports and jobs that PodMonitors would; engines keep their PodMonitor."""
    rendered = Rendered(path)
    form(what, rendered)
    pods = {it["metadata"]["labels"]["app"]: {p["name"] for c in it["spec"]["containers"] for p in c.get("ports", [])} for it in map(pod_of, rendered.objects) if it and "app" in it["metadata"]["labels"]}
    services = [it for it in rendered.objects if it["kind"] == "Service"]
    jobs, wrong = {}, []
    for monitor in (it for it in rendered.objects if it["kind"] == "ServiceMonitor"):
        name, spec = monitor["metadata"]["name"], monitor["spec"]
        chosen = [it for it in services if spec["selector"]["matchLabels"].items() <= it["metadata"]["labels"].items()]
        if len(chosen) != 1 or chosen[0]["spec"]["clusterIP"] != "None":
            wrong.append(f"{name} selects {len(chosen)} Services")
            continue
        app = chosen[0]["spec"]["selector"]["app"]
        ports = {port["name"]: port["targetPort"] for port in chosen[0]["spec"]["ports"]}
        wrong += [f"{name}: no port {it['port']} of {app}" for it in spec["endpoints"] if ports.get(it["port"]) not in pods[app]]
        wrong += [f"{name}: {it}" for it in spec["endpoints"] if it.get("interval") != "44s"]
        if monitor["metadata"]["labels"].get("team") != "watch":
            wrong.append(f"{name} lacks its label")
        jobs[app] = [it["relabelings"][0]["replacement"] for it in spec["endpoints"]]
    wanted = {"s3-csi-controller": ["mount-s3-csi-controller", "mount-s3-csi-controller-service"], "s3-csi-node": ["mount-s3-csi-node"]}
    check(f"{what}: Prometheus finds reconcilers, controller services and nodes", "; ".join(wrong) or ("" if jobs == wanted else str(jobs)))
    by_pod = [it["metadata"]["name"] for it in rendered.objects if it["kind"] == "PodMonitor"]
    check(f"{what}: and engines by their pods", "" if by_pod == ["s3-csi-mountpoint-pods"] else str(by_pod))


def kustomize(what, path, chart):
    """The chart's objects without Helm's hooks, and the CRD."""
    made, rendered = Rendered(path), Rendered(chart)
    hooks = {key(it) for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})}
    crd = ("CustomResourceDefinition", "", "mountpoints3podattachments.s3.csi.scality.com")
    differ = set(made.by_key) ^ (set(rendered.by_key) - hooks | {crd})
    check(f"{what}: all objects of the chart and the CRD, and no Job of Helm's", str(differ) if differ else "")


def certificates(what, path, name, made):
    """Certificates reach the engines and the controller service, from ConfigMaps that the chart makes or that are there."""
    rendered = Rendered(path)
    form(what, rendered)
    maps = {it["metadata"]["namespace"]: it for it in rendered.objects if it["kind"] == "ConfigMap" and it["metadata"]["name"] == name}
    good = (set(maps) == {"kube-system", "mount-s3"}) if made == "made" else not maps
    good = good and all("BEGIN CERTIFICATE" in it["data"]["ca-bundle.crt"] for it in maps.values())
    check(f"{what}: the ConfigMap is {made}", "" if good else str(maps))
    containers = rendered.containers("Deployment", "s3-csi-controller")
    env = {it["name"]: it.get("value") for it in containers["s3-pod-reconciler"]["env"]}
    check(f"{what}: Mountpoint Pods get it", "" if env.get("TLS_CA_CERT_CONFIGMAP") == name else str(env))
    service = containers["s3-csi-controller"]
    env = {it["name"]: it.get("value") for it in service["env"]}
    folders = [m["mountPath"] for m in service["volumeMounts"] if m["name"] == "custom-ca"]
    volume = {"name": "custom-ca", "configMap": {"name": name}}
    good = env.get("EXTRA_CA_BUNDLE") == f"{folders[0]}/ca-bundle.crt" and volume in pod_of(rendered.one("Deployment", "s3-csi-controller"))["spec"]["volumes"]
    check(f"{what}: the controller service trusts it besides", "" if good else f"{env} {folders}")


def systemd(what, path, version, controller):
    """Architecture v1: engines are run by each node's systemd. `controller`: "with" or "without" the controller pod."""
    rendered = Rendered(path)
    form(what, rendered)
    kinds = {it["kind"] for it in rendered.objects}
    hooks = [key(it) for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})]
    # The Job that stands before an uninstall sees what was in use before a change to systemd.
    text = json.dumps([it for it in rendered.objects if key(it) not in hooks])
    left = [it for it in ("mountpoints3podattachments", "mount-s3-critical", "s3-pod-reconciler", "pod-security.kubernetes.io") if it in text]
    check(f"{what}: no reconciler, no CRD, nothing of Mountpoint Pods", "" if not left and not kinds & {"Namespace", "PriorityClass"} else f"{left} {kinds}")
    jobs = {it["metadata"]["name"]: it["metadata"]["annotations"]["helm.sh/hook"] for it in rendered.objects if it["kind"] == "Job"}
    may = set(rendered.rules("s3-csi-crd"))
    good = jobs == {"s3-csi-check-unused": "pre-delete"} and {("", r, "list", (), "") for r in ("pods", "persistentvolumes")} <= may
    check(f"{what}: uninstalling asks first whether volumes are in use, and no other Job runs", "" if good and not [it for it in may if it[1] == "customresourcedefinitions"] else f"{jobs} {may}")
    spec = pod_of(rendered.one("DaemonSet", "s3-csi-node"))["spec"]
    of_host = {v["name"]: v["hostPath"] for v in spec["volumes"] if "hostPath" in v}
    folders = {name: it["path"] for name, it in of_host.items()}
    wanted = {"dbus-dir": "/run/dbus", "mountpoint-install-dir": "/opt/mountpoint-s3-csi/bin/", "plugin-dir": "/var/lib/kubelet/plugins/s3.csi.scality.com/"}
    check(f"{what}: folders of the host", "" if wanted.items() <= folders.items() and of_host["dbus-dir"]["type"] == "Directory" else str(of_host))
    (init,) = spec["initContainers"]
    image = f"registry.test/team/mountpoint-s3-csi-driver:{version}"
    target = {m["name"]: m["mountPath"] for m in init["volumeMounts"]}["mountpoint-install-dir"]
    good = init["command"] == ["/bin/install-mp"] and init["image"] == image and init["env"] == [{"name": "MOUNTPOINT_INSTALL_DIR", "value": target}]
    check(f"{what}: the engine is installed before the driver starts", "" if good and "privileged" not in init["securityContext"] else str(init))
    driver = rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]
    env = {it["name"]: it.get("value") for it in driver["env"]}
    mounts = {m["mountPath"]: m for m in driver["volumeMounts"]}
    good = env["NODE_MOUNTER"] == "systemd" and env["MOUNT_S3_PATH"] == "/opt/mountpoint-s3-csi/bin/mount-s3"
    good = good and mounts["/run/dbus"]["name"] == "dbus-dir" and mounts["/var/lib/kubelet"]["mountPropagation"] == "Bidirectional"
    check(f"{what}: the driver asks the host's systemd, and sees what its engines mount", "" if good else f"{env} {mounts}")
    custom = {v["name"]: v for v in spec["volumes"]}.get("custom-ca")
    good = custom == {"name": "custom-ca", "configMap": {"name": "site-ca"}} and env.get("EXTRA_CA_BUNDLE") == f"{mounts['/etc/ssl/custom-ca']['mountPath']}/ca-bundle.crt"
    check(f"{what}: certificates reach the driver, for its engines", "" if good else f"{custom} {env}")
    of_node = set(rendered.rules("s3-csi-driver-sa"))
    wide = [it for it in of_node if it[1] not in ("events", "csinodes", "nodes")]
    check(f"{what}: a node reads no pods and no attachments", str(wide) if wide else "")
    has = "Deployment" in kinds
    check(f"{what}: {controller} a controller pod", "" if has == (controller == "with") else str(kinds))
    if has:
        containers = list(rendered.containers("Deployment", "s3-csi-controller"))
        check(f"{what}: controller service and provisioner alone", "" if containers == ["s3-csi-controller", "csi-provisioner"] else str(containers))
        of_controller = set(rendered.rules("s3-csi-driver-controller-sa"))
        good = not [it for it in of_controller if it[1] in ("pods", "serviceaccounts")] and ("", "persistentvolumes", "create", (), "") in of_controller
        check(f"{what}: the controller may make volumes, and no pods", "" if good else str(of_controller))


def engines(what, path, version):
    """One pod of each node runs the engines of all its volumes."""
    rendered = Rendered(path)
    form(what, rendered)
    kinds = {it["kind"] for it in rendered.objects}
    hooks = [key(it) for it in rendered.objects if "helm.sh/hook" in it["metadata"].get("annotations", {})]
    text = json.dumps([it for it in rendered.objects if key(it) not in hooks])
    left = [it for it in ("mountpoints3podattachments", "mount-s3-critical", "s3-pod-reconciler", "/run/dbus", "s3-holder") if it in text]
    check(f"{what}: no reconciler, no CRD, no holder, no systemd", "" if not left and not kinds & {"Namespace", "PriorityClass"} else f"{left} {kinds}")
    daemons = rendered.one("DaemonSet", "s3-csi-engines")
    spec = pod_of(daemons)["spec"]
    engines = rendered.containers("DaemonSet", "s3-csi-engines")["engines"]
    context = engines["securityContext"]
    wanted = {"runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}
    good = context == wanted and spec["securityContext"] == {"fsGroup": 1000} and not any(key in spec for key in ("hostPID", "hostNetwork", "hostIPC", "serviceAccountName"))
    check(f"{what}: its pods have no privilege and no account", "" if good and spec["automountServiceAccountToken"] is False else f"{context} {spec}")
    foreign = [it for it in spec["volumes"] if not {"emptyDir", "projected"} & set(it)]
    comm = {it["name"]: it for it in spec["volumes"]}["comm"]["emptyDir"]
    check(f"{what}: its pods have nothing of their node, and keys in memory", "" if not foreign and comm["medium"] == "Memory" else f"{foreign} {comm}")
    args = dict(it[2:].partition("=")[::2] for it in engines["args"])
    good = engines["image"] == f"registry.test/team/mountpoint-s3-csi-driver:{version}" and engines["resources"]["limits"]["memory"] == "1Gi"
    good = good and args["sources-max"] == "4" and args["memory-target"] == "192" and args["share"] == "248" and "many" in args
    check(f"{what}: each engine gets its share of the limit", "" if good else str(engines))
    check(f"{what}: an upgrade leaves the pods", "" if daemons["spec"]["updateStrategy"] == {"type": "OnDelete"} else str(daemons["spec"]["updateStrategy"]))
    driver = {it["name"]: it.get("value") for it in rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]["env"]}
    check(f"{what}: the driver knows how many volumes have room", "" if (driver["NODE_MOUNTER"], driver["SHARED_MAX_VOLUMES"]) == ("shared", "4") else str(driver))
    of_node = {it for it in rendered.rules("s3-csi-driver-sa") if it[1] not in ("events", "csinodes", "nodes")}
    wanted = {("", "pods", verb, (), "kube-system") for verb in ("get", "list", "watch")}
    check(f"{what}: a node reads the pods of its own namespace, and nothing else", "" if of_node == wanted else str(of_node))


def engines_left(what, path, before):
    """node.mounter is pod, and was shared: the engines pods stay as they are, and new mounts are those of Mountpoint Pods. `before`: as it was."""
    rendered, shared = Rendered(path), Rendered(before)
    form(what, rendered)
    now, then = rendered.one("DaemonSet", "s3-csi-engines"), shared.one("DaemonSet", "s3-csi-engines")
    check(f"{what}: the engines pods stay as they are", "" if now == then else f"{now} {then}")
    driver = {it["name"]: it.get("value") for it in rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]["env"]}
    good = driver.get("NODE_MOUNTER", "pod") == "pod" and "SHARED_MAX_VOLUMES" not in driver
    check(f"{what}: the driver makes no mounts there", "" if good else str(driver))


def engines_cache(what, path, plain, medium):
    """The engines pods have a disk for caches, an emptyDir or a directory of the node, and the driver knows it. `plain`: the same without."""
    rendered, without = Rendered(path), Rendered(plain)
    form(what, rendered)
    spec = pod_of(rendered.one("DaemonSet", "s3-csi-engines"))["spec"]
    engines = rendered.containers("DaemonSet", "s3-csi-engines")["engines"]
    disk = {it["name"]: it for it in spec["volumes"]}["local-cache"]
    mounts = {it["name"]: it["mountPath"] for it in engines["volumeMounts"]}
    check(f"{what}: the disk is where mounters look for it", "" if medium in disk and mounts["local-cache"] == "/local-cache" else f"{disk} {mounts}")
    driver = rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]
    env = {it["name"]: it.get("value") for it in driver["env"]}
    # 10 GiB; the kubelet ends a pod whose emptyDir grows beyond its limit.
    check(f"{what}: the driver knows what caches may have", "" if env["SHARED_CACHE_SIZE"] == "9728" else str(env))
    of_node = {it["name"]: it for it in pod_of(rendered.one("DaemonSet", "s3-csi-node"))["spec"]["volumes"]}.get("shared-cache", {})
    there = {it["name"]: it["mountPath"] for it in driver["volumeMounts"]}.get("shared-cache")
    good = (of_node.get("hostPath"), there, env.get("SHARED_CACHE_DIRECTORY")) == ((disk["hostPath"], "/shared-cache", "/shared-cache") if medium == "hostPath" else (None, None, None))
    check(f"{what}: the driver has the node's directory, if it is one", "" if good else f"{of_node} {there} {env}")

    def revisions(of):
        driver = {it["name"]: it.get("value") for it in of.containers("DaemonSet", "s3-csi-node")["s3-plugin"]["env"]}
        return driver["SHARED_REVISION"], pod_of(of.one("DaemonSet", "s3-csi-engines"))["metadata"]["annotations"]["s3.csi.scality.com/revision"]

    now, before = revisions(rendered), revisions(without)
    check(f"{what}: a pod of other values has another revision, and the driver knows which", "" if len({*now}) == len({*before}) == 1 and now != before else f"{now} {before}")


def systemd_monitors(what, path, apps):
    """Architecture v1 serves metrics, too. `apps`: those that are scraped, with commas."""
    rendered = Rendered(path)
    form(what, rendered)
    ports = {it["metadata"]["labels"]["app"]: {p["name"] for c in it["spec"]["containers"] for p in c.get("ports", [])} for it in map(pod_of, rendered.objects) if it and "app" in it["metadata"]["labels"]}
    scraped = {it["spec"]["selector"]["matchLabels"]["app"]: {e["port"] for e in it["spec"]["podMetricsEndpoints"]} for it in rendered.objects if it["kind"] == "PodMonitor"}
    good = set(scraped) == set(apps.split(",")) and all(scraped[app] <= ports[app] for app in scraped)
    check(f"{what}: Prometheus finds {apps}", "" if good else f"{scraped} {ports}")


def degraded(what, path):
    """Mountpoint Pods, and the node's systemd while no reconciler works."""
    rendered = Rendered(path)
    form(what, rendered)
    spec = pod_of(rendered.one("DaemonSet", "s3-csi-node"))["spec"]
    driver = rendered.containers("DaemonSet", "s3-csi-node")["s3-plugin"]
    env = {it["name"]: it.get("value") for it in driver["env"]}
    mounts = {m["mountPath"]: m for m in driver["volumeMounts"]}
    good = (env["NODE_MOUNTER"], env["NODE_DEGRADED"], env["MOUNTPOINT_NAMESPACE"]) == ("pod", "systemd", "mount-s3")
    good = good and env["MOUNT_S3_PATH"] == "/opt/mountpoint-s3-csi/bin/mount-s3" and mounts["/run/dbus"]["name"] == "dbus-dir"
    check(f"{what}: the driver knows both ways", "" if good else f"{env} {mounts}")
    (init,) = spec["initContainers"]
    check(f"{what}: the engine is installed before the driver starts", "" if init["command"] == ["/bin/install-mp"] else str(init))
    there = list(rendered.containers("Deployment", "s3-csi-controller"))
    check(f"{what}: the reconciler is there", "" if "s3-pod-reconciler" in there else str(there))


def documented(page, defaults):
    """The table of values, which readme.py makes of the comments, names each value of the chart, and nothing else."""
    (defaults,) = read(defaults)
    with open(page) as file:
        table = set(re.findall(r"^\| `([A-Za-z0-9._]+)` \|", file.read(), re.M))

    def groups():
        for path, _ in leaves(defaults):
            # Rows of maps that are Kubernetes' own stand for their keys.
            maps = [it for it in ("node.resources", "node.holder.resources", "node.seLinuxOptions", "controller.resources", "mountpointPod.tolerations", "shared.resources", "metrics.dashboard.labels") if path.startswith(it + ".")]
            yield maps[0] if maps else path

    wanted = set(groups())
    missing, extra = sorted(wanted - table), sorted(table - wanted)
    check(f"{page}: every value of the chart has a row, and no other", "; ".join(filter(None, [missing and f"no row for {missing}", extra and f"no value {extra}"])))


def permissions(page, together, split):
    """The table of rights is what the rules of both renderings allow, row by row."""
    with open(page) as file:
        section = file.read().split("\n## Permissions\n")[1].split("\n## ")[0]
    said = {}
    for holder, what, verbs, where in re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \| (.+?) \|$", section, re.M):
        resources, _, names = what.partition(" named ")
        namespace = "" if where.startswith("everywhere") else where.strip("`")
        for resource in re.findall(r"`([^`]+)`", resources):
            rows = {(resource, verb, tuple(re.findall(r"`([^`]+)`", names)), namespace) for verb in verbs.split(", ")}
            said.setdefault(holder, set()).update(rows)
    for what, path, holders in (
        ("as it is installed", together, {"s3-csi-driver-sa": ["node"], "s3-csi-driver-controller-sa": ["controller", "reconciler"], "s3-csi-crd": ["crd"]}),
        ("with controller.split", split, {"s3-csi-driver-controller-sa": ["controller"], "s3-csi-driver-reconciler-sa": ["reconciler"]}),
    ):
        rendered = Rendered(path)
        for account, rows in holders.items():
            wanted = {it[1:] for it in rendered.rules(account)}
            table = set().union(*(said[it] for it in rows))
            check(f"{page}, {what}: the table has the rights of {account}", str(sorted(wanted ^ table)) if wanted != table or not wanted else "")


def compared(page, defaults, old, aws):
    """Each value of these charts is ours, with its default, or the page says why not; and it says so of no other value."""
    (ours,) = read(defaults)
    ours = dict(leaves(ours))
    with open(page) as file:
        section = file.read().split("### Values of other charts")[1].split("\n## ")[0]
    for what, path in (("value of 2.2", old), ("value of AWS's chart", aws)):
        rows = section.split(f"| {what} | why |")[1].split("\n\n")[0]
        excused = [it for row in re.findall(r"^\| (.*?) \|", rows, re.M) for it in re.findall(r"`([^`]+)`", row)]
        (theirs,) = read(path)
        theirs = dict(leaves(theirs))

        def differs(name):
            # An object of Kubernetes is compared as a whole: empty is empty.
            same = [value for it, value in ours.items() if it == name or it.startswith(name + ".")]
            return not same or (same != [theirs[name]] and theirs[name] not in ("", None, {}, []))

        covers = lambda excuse, name: name == excuse or name.startswith(excuse + ".")
        # The installation of that file has these of its own.
        different = [it for it in theirs if differs(it) and not it.startswith("s3.")]
        unsaid = [it for it in different if not any(covers(excuse, it) for excuse in excused)]
        # Values that 2.2 read and did not list.
        unlisted = ("node.s3", "controller.extraVolumeTags")
        idle = [it for it in excused if not any(covers(it, name) for name in different) and not it.startswith(unlisted)]
        check(f"{page}: each {what} is here, or the page says why not", "; ".join(filter(None, [unsaid and f"nothing is said of {unsaid}", idle and f"{idle} are here"])))


def examples(paths):
    """Manifests of the docs: whole, and fit to be bound by hand."""
    for path in paths:
        wrong = []
        objects = read(path)
        for it in objects:
            if it["kind"] == "PersistentVolume":
                spec = it["spec"]
                if spec["csi"]["driver"] != "s3.csi.scality.com" or not spec["csi"]["volumeAttributes"].get("bucketName"):
                    wrong.append("the volume names no bucket of this driver")
                if spec.get("storageClassName") != "" or spec["persistentVolumeReclaimPolicy"] != "Retain":
                    wrong.append("a volume that is made by hand has no class and is retained")
            if it["kind"] == "PersistentVolumeClaim" and "volumeName" not in it["spec"]:
                classes = [c for c in objects if c["kind"] == "StorageClass" and c["metadata"]["name"] == it["spec"]["storageClassName"]]
                if not classes or classes[0]["provisioner"] != "s3.csi.scality.com":
                    wrong.append("the claim's class is not one of this driver")
            elif it["kind"] == "PersistentVolumeClaim":
                volumes = [v for v in objects if v["kind"] == "PersistentVolume" and v["metadata"]["name"] == it["spec"]["volumeName"]]
                if not volumes or volumes[0]["spec"]["accessModes"] != it["spec"]["accessModes"] or it["spec"].get("storageClassName") != "":
                    wrong.append("the claim can't be bound to the volume")
        check(f"{path}: a volume, its claim, whoever uses them", "; ".join(wrong))


def main():
    command, *arguments = sys.argv[1:]
    {"default": default, "every-value": every_value, "switches": switches, "names-that-look-like-numbers-stay-text": names_that_look_like_numbers_stay_text, "certificates": certificates, "kustomize": kustomize, "split": split, "service-monitors": service_monitors, "registry": registry, "no-secrets": no_secrets, "network": network, "uninstall-forced": uninstall_forced, "systemd": systemd, "engines": engines, "engines-left": engines_left, "engines-cache": engines_cache, "systemd-monitors": systemd_monitors, "degraded": degraded, "documented": documented, "permissions": permissions, "compared": compared, "examples": lambda *paths: examples(paths)}[command](*arguments)
    sys.exit(failed)


main()
