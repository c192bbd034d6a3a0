"""check.py DIR: looks through a release that ci/release made: which files there are, what the packages, the chart and the images hold.
check.py --image FILE: looks through one image, as ci/images makes it: digests, labels, packages, size.

Says "ok: ..." for what is right, and "FAILED: ..." with status 1 for what is not. Checksums of the files are sha256sum's to check."""

import gzip
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zlib

import provenance

SIZE_MAX = 60 * 1024 * 1024  # of an image, compressed
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
LABELS = ["title", "description", "version", "licenses"]
failed = False


def say(right, words, wrong=""):
    global failed
    failed |= not right
    print(f"ok: {words}" if right else f"FAILED: {words}: {wrong}", flush=True)


def skip(words):
    """As ci/common.bash has it: with CI=true nothing is skipped."""
    if os.environ.get("CI") == "true":
        say(False, words, "with CI=true nothing is skipped")
    else:
        print(f"SKIPPED: {words}", flush=True)


class Image:
    """An OCI archive of one image: its manifest, its config, and the files of its layers."""

    def __init__(self, path):
        self.name = os.path.basename(path)
        blobs, index = {}, None
        with tarfile.open(path) as archive:
            for member in archive:
                if not member.isfile():
                    continue
                data = archive.extractfile(member).read()
                if member.name == "./index.json":
                    index = json.loads(data)
                elif member.name.startswith("./blobs/sha256/"):
                    blobs[member.name.rsplit("/", 1)[1]] = data
        wrong = [name for name, data in blobs.items() if hashlib.sha256(data).hexdigest() != name]
        say(not wrong, f"{self.name}: each blob has its digest", wrong)

        def blob(descriptor):
            data = blobs[descriptor["digest"].removeprefix("sha256:")]
            assert len(data) == descriptor["size"], descriptor
            return data

        self.reference = index["manifests"][0]["annotations"]["io.containerd.image.name"]
        self.manifest = json.loads(blob(index["manifests"][0]))
        self.config = json.loads(blob(self.manifest["config"]))
        self.files, self.layers, tars = {}, [], []
        for layer in self.manifest["layers"]:
            data = blob(layer)
            if layer["mediaType"].endswith("+gzip"):
                self.size = len(data)
                data = gzip.decompress(data)
            else:
                self.size = len(gzip.compress(data, 9))
            tars.append(f"sha256:{hashlib.sha256(data).hexdigest()}")
            self.layers.append(data)
            with tarfile.open(fileobj=io.BytesIO(data)) as files:
                self.files.update({it.name.removeprefix("."): files.extractfile(it).read() for it in files if it.isfile()})
        say(tars == self.config["rootfs"]["diff_ids"], f"{self.name}: the layer is the config's", tars)

    def text(self, path):
        return self.files.get(path, b"").decode()

    def check(self):
        """What each image of ours has, whoever made it."""
        labels = self.config["config"].get("Labels", {})
        missing = [it for it in LABELS if not labels.get(f"org.opencontainers.image.{it}")]
        say(not missing and labels == self.manifest.get("annotations"), f"{self.name}: labels, also as annotations", f"without {missing}")
        packages = dict(self.packages())
        bare = [it for it in packages if not self.files.get(f"/usr/share/doc/{it}/copyright")]
        libraries = [it for it in self.files if re.search(r"\.so(\.|$)", it)]
        say(not bare and "ca-certificates" in packages and ("libc6" in packages) == bool(libraries),
            f"{self.name}: its {len(packages)} Debian packages are named, with their licences", f"{bare or packages}, for {libraries}")
        say(self.size <= SIZE_MAX, f"{self.name}: {self.size / 1048576:.1f} MiB compressed, at most 60", f"{self.size} bytes")
        return labels

    def packages(self):
        """Those of Debian, by what scanners read."""
        for path in self.files:
            if path.startswith("/var/lib/dpkg/status.d/"):
                fields = dict(line.split(": ", 1) for line in self.text(path).splitlines() if ": " in line)
                yield fields["Package"], fields["Version"]

    def run(self, version):
        """Each program says its version, with nothing but the image around it."""
        if os.geteuid() != 0:
            skip(f"programs of {self.name}: chroot needs root")
            return
        with tempfile.TemporaryDirectory() as root:
            for data in self.layers:
                with tarfile.open(fileobj=io.BytesIO(data)) as files:
                    files.extractall(root, filter="fully_trusted") if sys.version_info >= (3, 12) else files.extractall(root)
            for program in sorted(it for it in self.files if self.files[it][:4] == b"\x7fELF" and ".so" not in it):
                words = subprocess.run(["chroot", root, program, "--version"], capture_output=True, text=True, timeout=60)
                say(version in words.stdout, f"{self.name}: {program} says its version", words.stdout + words.stderr)


def crates(members, arch="x86_64"):
    """The crates that are linked into these members of the workspace, as (name, version)."""
    options = [word for it in members for word in ["--package", it]]
    tree = subprocess.run(["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--target", f"{arch}-unknown-linux-gnu",
                           "--prefix", "none", "--format", "{p}", *options], check=True, capture_output=True, text=True)
    found = {tuple(line.split()[:2]) for line in tree.stdout.splitlines() if line and "(/" not in line}
    return {(name, version.removeprefix("v")) for name, version in found}


def section(program, name):
    """One section of a 64-bit ELF program, or None."""
    start, = struct.unpack_from("<Q", program, 0x28)
    size, count, names = struct.unpack_from("<HHH", program, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", program, start + at * size) for at in range(count)]
    for at, _, _, _, offset, length in heads:
        begin = heads[names][4] + at
        if program[begin:program.index(b"\0", begin)] == name.encode():
            return program[offset:offset + length]
    return None


def check_list(program, name, arch="x86_64"):
    """The libraries that a program says it was built of: those that cargo names, and none that is not locked."""
    data = section(program, ".dep-v0")
    if data is None:
        say(False, f"{name} holds the list of its libraries", "it has no section .dep-v0")
        return
    packages = json.loads(zlib.decompress(data))["packages"]
    root = [it["name"] for it in packages if it.get("root")]
    held = {(it["name"], it["version"]) for it in packages}
    with open("Cargo.lock", "rb") as file:
        locked = {(it["name"], it["version"]) for it in tomllib.load(file)["package"]}
    wrong = sorted(crates(root, arch) - held) + sorted(held - locked)
    say(len(root) == 1 and not wrong, f"{name} holds the list of its {len(held)} libraries", f"of {root}, other than cargo's: {wrong}")


def check_source(directory, facts):
    """The archive of the sources has each file of the commit as it is there, and each locked crate by its checksum."""
    name, trunk = f"mount-s3-{facts['version']}-source.tar.xz", f"mount-s3-{facts['version']}/"
    files, vendored = {}, {}
    with tarfile.open(f"{directory}/{name}") as archive:
        for member in archive:
            path = member.name.removeprefix(trunk)
            if path.startswith("vendor/"):
                if path.endswith("/.cargo-checksum.json"):
                    vendored[path.split("/")[1]] = json.load(archive.extractfile(member))["package"]
            elif member.isfile() or member.issym():
                data = archive.extractfile(member).read() if member.isfile() else member.linkname.encode()
                files[path] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    with open("Cargo.lock", "rb") as file:
        locked = {f"{it['name']}-{it['version']}": it["checksum"] for it in tomllib.load(file)["package"] if "source" in it}
    say(vendored == locked, f"{name} has the {len(locked)} crates of Cargo.lock", sorted(locked.items() ^ vendored.items()))
    # Changes that no commit has can be compared with nothing.
    if facts["revision"].endswith("-changed"):
        return
    tree = subprocess.run(["git", "ls-tree", "-r", facts["revision"]], check=True, capture_output=True, text=True).stdout
    committed = {line.split("\t", 1)[1]: line.split()[2] for line in tree.splitlines()}
    for added in (".cargo/config.toml", "SOURCE_DATE_EPOCH"):
        files.pop(added, None)
    say(files == committed, f"{name} has the {len(committed)} files of the commit", sorted({it for it, _ in files.items() ^ committed.items()}))


def components(bill):
    return {(it["name"], it["version"]) for it in bill["components"]}


def check_image(directory, name, facts, members):
    """An image of a release: also its licences and its bill of materials."""
    arch, version = facts["images"], facts["version"]
    image = Image(f"{directory}/{name}-{version}-{arch}.oci.tar")
    labels = image.check()
    wrong = {it: labels.get(f"org.opencontainers.image.{it}") for it in ["version", "revision", "created"]
             if labels.get(f"org.opencontainers.image.{it}") != facts[it]}
    say(not wrong, f"{image.name}: version, revision and date are release.txt's", wrong)
    with open(f"{directory}/{name}-{version}-{arch}.cdx.json") as file:
        text = file.read()
    say(text == image.text("/licenses/sbom.cdx.json"), f"{image.name}: the SBOM beside it is the one in it")
    needed, listed = crates(members), components(json.loads(text))
    say(len(needed) > 100 and needed <= listed, f"{image.name}: the SBOM has its {len(needed)} crates", sorted(needed - listed))
    packages = set(image.packages())
    say(packages == set(facts["Debian"]) and packages <= listed, f"{image.name}: the SBOM has Debian's packages, those of release.txt", packages)
    used = set(re.findall(r"^     (\S+) (\S+)$", image.text("/licenses/third-party-notices.txt"), re.MULTILINE))
    say(needed <= used, f"{image.name}: the notices have the licence of each crate", sorted(needed - used))
    others = ["/LICENSE", "/licenses/rust-std.html", "/licenses/libunwind.txt"] + ["/licenses/musl.txt"] * ("reconciler" in members)
    missing = [it for it in others if not image.files.get(it)]
    say(not missing, f"{image.name}: licences of its own code and of what compilers add", missing)
    for path, data in sorted(image.files.items()):
        if data[:4] == b"\x7fELF" and ".so" not in path:
            check_list(data, f"{image.name}: {path}")
    image.run(version)
    return image


def check_packages(directory, facts):
    version = facts["version"]
    wanted = ["bin/mount-s3", "bin/mount-s3-ctl", "third-party-notices.txt", "sbom.cdx.json", "copyright"]
    for arch in facts["packages"].split():
        deb = f"{directory}/mount-s3-host_{version}-1_{DEBIAN[arch]}.deb"
        fields = subprocess.run(["dpkg-deb", "--field", deb, "Version", "Architecture"], capture_output=True, text=True).stdout
        say(f"Version: {version}-1" in fields and f"Architecture: {DEBIAN[arch]}" in fields, f"the .deb of {arch} says version and architecture", fields)
        listing = subprocess.run(["dpkg-deb", "--contents", deb], capture_output=True, text=True).stdout.split()
        with tarfile.open(f"{directory}/mount-s3-host-{version}-{arch}.tar.gz") as archive:
            for what, names in ((".deb", listing), ("tarball", archive.getnames())):
                missing = [it for it in wanted if not any(name.endswith("/" + it) for name in names)]
                say(not missing, f"the {what} of {arch}: programs, licences, SBOM", missing)
            for program in ("mount-s3", "mount-s3-ctl"):
                data = archive.extractfile(f"mount-s3-host-{version}-{arch}/bin/{program}").read()
                check_list(data, f"{program} of {arch}", arch)
        with open(f"{directory}/mount-s3-host-{version}-1.{arch}.rpm", "rb") as file:
            say(file.read(4) == b"\xed\xab\xee\xdb", f"the .rpm of {arch} is one")


def expected(facts):
    version, arch = facts["version"], facts["images"]
    names = {"release.txt", "provenance.json", "SHA256SUMS", f"mount-s3-{version}-source.tar.xz", f"scality-mountpoint-s3-csi-driver-{version}.tgz"}
    for image in ("mount-s3", "mountpoint-s3-csi-driver"):
        names |= {f"{image}-{version}-{arch}.{it}" for it in ("oci.tar", "cdx.json")}
    for it in facts["packages"].split():
        names |= {f"mount-s3-host_{version}-1_{DEBIAN[it]}.deb", f"mount-s3-host-{version}-1.{it}.rpm"}
        names |= {f"mount-s3-host-{version}-{it}{end}" for end in (".tar.gz", "-debug.tar.xz", ".cdx.json")}
    return names


def check_chart(directory, facts):
    """Its version, its licence, and what ci/release writes into it: the image in its registry, and where the sources are."""
    with tarfile.open(f"{directory}/scality-mountpoint-s3-csi-driver-{facts['version']}.tgz") as chart:
        words, values = (chart.extractfile(f"scality-mountpoint-s3-csi-driver/{it}.yaml").read().decode() for it in ("Chart", "values"))
        licence = "scality-mountpoint-s3-csi-driver/LICENSE" in chart.getnames()
    say(licence and f"\nversion: {facts['version']}\nappVersion: {facts['version']}\n" in words, "the chart has this version and its licence", words)
    repository = facts["image driver"].rsplit(":", 1)[0]
    # Without a registry the image has the lab's name, and whoever installs the chart names another.
    wanted = '""' if repository.startswith("lab.test/") else repository
    found = re.search(r"^image:\n(?:  .*\n)*?  repository: (.*)$", values, re.MULTILINE)
    say(found and found[1] == wanted, f"the chart's image.repository is {wanted}", found and found[1])
    source = facts.get("source")
    lines = [f'home: "{source}"', f'sources: ["{source}"]'] if source else []
    said = [line for line in words.splitlines() if line.startswith(("home:", "sources:"))]
    say(said == lines, f"the chart's home and sources are {source or 'not said'}", said)


def check_release(directory):
    facts = {"Debian": []}
    for line in open(f"{directory}/release.txt"):
        key, value = line.rstrip("\n").split(": ", 1)
        if key == "Debian":
            facts["Debian"].append(tuple(value.split()[:2]))
        else:
            facts[key] = value
    # Signatures are added once the release is made (ci/release.d/sign).
    there, wanted = set(os.listdir(directory)) - {"SHA256SUMS.sig", "provenance.json.sig"}, expected(facts)
    say(there == wanted, f"the {len(wanted)} files of a release, and no other", sorted(there ^ wanted))
    with open(f"{directory}/SHA256SUMS") as file:
        summed = {line.rstrip("\n").split("  ", 1)[1] for line in file}
    say(summed == there - {"SHA256SUMS"}, "SHA256SUMS names each file", sorted(summed ^ there))
    if there != wanted:
        return
    check_chart(directory, facts)
    wrong = provenance.differences(directory)
    say(not wrong, "the provenance names the files, the commit and the tools of this release", wrong)
    check_source(directory, facts)
    check_packages(directory, facts)
    for name, kind, members in (("mountpoint-s3-csi-driver", "driver", ["csi", "reconciler"]), ("mount-s3", "engine", ["mountpoint"])):
        image = check_image(directory, name, facts, members)
        say(image.reference == facts[f"image {kind}"], f"{image.name} is {image.reference}", facts[f"image {kind}"])


if sys.argv[1] == "--image":
    Image(sys.argv[2]).check()
else:
    check_release(sys.argv[1])
sys.exit(failed)
