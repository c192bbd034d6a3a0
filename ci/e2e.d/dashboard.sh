# shellcheck shell=bash
# A Prometheus whose targets have the labels that the chart's monitors give watches three volumes for four minutes, and the chart's dashboard is drawn from what it
# has seen. Each of its panels has values, except the one of requests that failed for good. The picture is dashboard.svg among the logs, and with --record also
# in docs/pictures.
# needs: its name
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

prometheus_pid='' finder_pid=''
put_back() {
    # shellcheck disable=SC2086 # none, one or two numbers
    [ -z "$prometheus_pid$finder_pid" ] || kill $prometheus_pid $finder_pid || true
    # shellcheck disable=SC2119
    release_driver
}
trap put_back EXIT
release_driver --set metrics.enginePort=9464
program=$(ci/prometheus)
cat >"$scratch/prometheus.yml" <<EOT
global: { scrape_interval: 5s }
scrape_configs: [{ job_name: lab, file_sd_configs: [{ files: [targets.json], refresh_interval: 3s }] }]
EOT
# Debian's Prometheus does not find pods by itself. Labels as the chart's PodMonitors give them.
targets() {
    cluster kubectl get pods -A -o json | python3 -c '
import json, sys
targets = []
for pod in json.load(sys.stdin)["items"]:
    metadata, address = pod["metadata"], pod["status"].get("podIP")
    app, node = metadata.get("labels", {}).get("app"), pod["spec"].get("nodeName", "")
    volume = metadata.get("annotations", {}).get("s3.csi.scality.com/volume-name")
    if not address or pod["status"]["phase"] != "Running": continue
    if metadata["namespace"] == "mount-s3" and volume:
        targets.append({"targets": [f"{address}:9464"], "labels": {"job": "mount-s3", "persistentvolume": volume, "node": node}})
    elif app == "s3-csi-node":
        targets.append({"targets": [f"{address}:9808"], "labels": {"job": "mount-s3-csi-node", "node": node}})
    elif app == "s3-csi-controller":
        targets.append({"targets": [f"{address}:8080"], "labels": {"job": "mount-s3-csi-controller"}})
json.dump(targets, sys.stdout)' >"$scratch/targets.new"
    mv "$scratch/targets.new" "$scratch/targets.json"
}
targets
(while sleep 3; do targets || true; done) &
finder_pid=$!
# By its own process, so that it can be ended; ci/cluster waits for its command.
cluster net sh -c 'echo $$ >"$1/prometheus.pid"; exec "$2" --config.file="$1/prometheus.yml" --storage.tsdb.path="$1/tsdb" --web.listen-address=127.0.0.1:9490' \
    sh "$scratch" "$program" >"$scratch/prometheus.log" 2>&1 &
has_pid() { [ -s "$scratch/prometheus.pid" ]; }
until_ok "Prometheus begins" has_pid
prometheus_pid=$(cat "$scratch/prometheus.pid")
answers() { cluster net curl --silent --fail --max-time 5 http://127.0.0.1:9490/-/ready || { tail -n 3 "$scratch/prometheus.log"; return 1; }; }
until_ok "Prometheus is ready" answers

# Not exact: what is to be seen is that lines rise and fall with the work.
began=$SECONDS
until_second() { while [ $((SECONDS - began)) -lt "$1" ]; do sleep 0.5; done; }
head -c 20000000 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"
for each in photos logs models; do volume $each; done
until_second 30
busy_workload web photos
wait_pod web
until_second 70
workload writer logs script="n=0; while true; do head -c 5000000 /dev/urandom >/data/log-\$n; n=\$((n + 1)); sleep 1; done"
busy_workload batch-1 models
wait_pod writer
wait_pod batch-1
until_second 110
busy_workload batch-2 models
busy_workload batch-3 models
wait_pod batch-2
wait_pod batch-3
until_second 170
for pod in batch-1 batch-2 batch-3; do remove_pod $pod; done
until_second 220
remove_pod writer
until_second 240
cluster net python3 ci/kubernetes/dashboard.py http://127.0.0.1:9490 "$chart/files/dashboard.json" 240 "$namespace-" >"$scratch/dashboard.svg"
equal "panels without data" 1 "$(grep -c '>No data<' "$scratch/dashboard.svg")"
cp "$scratch/dashboard.svg" "$logs/dashboard.svg"
# A run that records nothing leaves the tree as it is: --record is refused in one with changes.
[ "$record" -eq 0 ] || cp "$scratch/dashboard.svg" docs/pictures/dashboard.svg
remove_pod web
