"""provenance.py DIR: prints the provenance of the release in DIR, by its release.txt: an in-toto statement with a SLSA v1 predicate.
provenance.py --verify DIR: compares that of DIR with its files and with release.txt.

It says which files came of which commit, by which tools. It has no time of the build and no name of a machine: made twice it is the same."""

import hashlib
import json
import os
import sys
from urllib.parse import quote

FILE = "provenance.json"
# Neither can be named by what they hold: both are made of it.
APART = {FILE, "SHA256SUMS", "SHA256SUMS.sig", f"{FILE}.sig"}


def facts_of(directory):
    facts = {}
    with open(f"{directory}/release.txt", encoding="utf-8") as file:
        for line in file:
            key, value = line.rstrip("\n").split(": ", 1)
            facts.setdefault(key, []).append(value)
    return facts


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def statement(directory):
    facts = facts_of(directory)
    one = {key: values[0] for key, values in facts.items()}
    source = one.get("source", "urn:mount-s3:repository")
    names = sorted(set(os.listdir(directory)) - APART)
    made_of = [
        {"name": "commit", "uri": f"git+{source}" if "source" in one else source, "digest": {"gitCommit": one["revision"]}},
        {"name": "Cargo.lock", "digest": {"sha256": one["Cargo.lock"].removeprefix("sha256:")}},
        {"name": "compiler", "uri": "pkg:generic/rust", "annotations": {"version": one["compiler"]}},
        {"name": "linker and C compiler", "uri": "pkg:pypi/ziglang", "annotations": {"version": one["linker and C compiler"]}},
    ]
    for line in facts.get("Debian", []):
        package, version = line.split()[:2]
        made_of.append({"name": package, "uri": f"pkg:deb/debian/{quote(package)}@{quote(version)}"})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": it, "digest": {"sha256": digest(f"{directory}/{it}")}} for it in names],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{source}#ci/release",
                "externalParameters": {"revision": one["revision"], "version": one["version"], "packages": one["packages"], "images": one["images"]},
                "resolvedDependencies": made_of,
            },
            "runDetails": {"builder": {"id": f"{source}#ci/release", "version": {"mount-s3": one["version"]}}},
        },
    }


def differences(directory):
    """What the provenance says otherwise than the files do."""
    with open(f"{directory}/{FILE}", encoding="utf-8") as file:
        said = json.load(file)
    wanted = statement(directory)
    found = []
    if said["subject"] != wanted["subject"]:
        pairs = [{it["name"]: it["digest"] for it in each["subject"]} for each in (said, wanted)]
        found += sorted(name for name in pairs[0].keys() | pairs[1].keys() if pairs[0].get(name) != pairs[1].get(name)) or ["its subjects"]
    found += [key for key in wanted if key != "subject" and said.get(key) != wanted[key]]
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--verify":
        wrong = differences(sys.argv[2])
        if wrong:
            sys.exit(f"{sys.argv[2]}/{FILE} is wrong about {', '.join(wrong)}")
        print(f"ok: {FILE} names the files, the commit and the tools of this release")
    else:
        print(json.dumps(statement(sys.argv[1]), indent=2))
