#!/usr/bin/env python3
"""readme.py VALUES: prints the README of the chart, whose table is made of the comments and defaults of values.yaml."""
import json
import re
import sys

import yaml

HEAD = """# scality-mountpoint-s3-csi-driver

Mounts S3 buckets into pods as file systems: the CSI driver `s3.csi.scality.com`.

```sh
helm install mount-s3 . --namespace kube-system \\
    --set image.repository=registry.example.com/mountpoint-s3-csi-driver \\
    --set s3.endpointUrl=https://s3.example.com
```

`image.repository` is where you have the image of this release. Needs Kubernetes 1.30. An upgrade from release 2.2 or 1.2 with `--reuse-values`
leaves mounts running.

## Values
This table is made from `values.yaml` (`helm/tests/readme.py`).

| value | default | meaning |
|---|---|---|
"""


def commented(path):
    """Each key with a comment right above it, as (path, comment)."""
    above, stack = [], []
    with open(path) as file:
        for line in file:
            text = line.strip()
            if text.startswith("#"):
                above.append(text[1:].strip())
                continue
            found = re.match(r"( *)([A-Za-z0-9_]+):", line)
            if found:
                depth = len(found[1]) // 2
                stack = [*stack[:depth], found[2]]
                if above:
                    yield tuple(stack), " ".join(above)
            above = []


def main():
    source = sys.argv[1]
    with open(source) as file:
        values = yaml.safe_load(file)
    rows = list(commented(source))
    paths = [path for path, _ in rows]
    sys.stdout.write(HEAD)
    for path, comment in rows:
        value = values
        for key in path:
            value = value[key]
        # A map whose keys have comments of their own is a heading.
        if isinstance(value, dict) and any(len(it) > len(path) and it[: len(path)] == path for it in paths):
            continue
        shown = "empty" if value in ("", [], {}) else f"`{value if isinstance(value, str) else json.dumps(value)}`"
        print(f"| `{'.'.join(path)}` | {shown} | {comment.replace('|', chr(92) + '|')} |")


main()
