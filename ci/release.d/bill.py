"""bill.py NAME VERSION CRATES LOCK RUST ZIG [MORE...]: the bill of materials of an image, as CycloneDX JSON.

CRATES is cargo-cyclonedx's bill of the image's programs, LOCK the Debian packages (name, version, architecture). What the compilers link
into programs comes besides: Rust's standard library, Zig's libunwind, and musl if MORE says so."""

import json
import sys

name, version, crates, lock, rust, zig, *more = sys.argv[1:]
with open(crates) as file:
    bill = json.load(file)
inside = bill["metadata"]["component"]
bill["metadata"]["component"] = {"type": "container", "bom-ref": f"image:{name}", "name": name, "version": version,
                                 "licenses": [{"expression": "Apache-2.0"}]}
added = []
for line in open(lock):
    package, its_version, architecture = line.split()
    purl = f"pkg:deb/debian/{package}@{its_version}?arch={architecture}".replace("+", "%2B")
    added.append({"type": "library", "bom-ref": purl, "name": package, "version": its_version, "purl": purl})


def linked(what, its_version, licence):
    added.append({"type": "library", "bom-ref": f"linked:{what}", "name": what, "version": its_version, "licenses": [{"expression": licence}]})


linked("rust-std", rust, "MIT OR Apache-2.0")
linked("libunwind", f"of zig {zig}", "Apache-2.0 WITH LLVM-exception")
if "musl" in more:
    linked("musl", f"of zig {zig}", "MIT")
bill["components"] = [inside, *bill["components"], *added]
bill["dependencies"].append({"ref": f"image:{name}", "dependsOn": [it["bom-ref"] for it in [inside, *added]]})
json.dump(bill, sys.stdout, indent=1, sort_keys=True)
print()
