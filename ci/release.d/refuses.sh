#!/usr/bin/env bash
# ci/release.d/refuses.sh DIR: shows that ci/release --check refuses what is wrong: copies of the release in DIR with one fault each.
set -euo pipefail
# shellcheck source=ci/common.bash
. "$(dirname "${BASH_SOURCE[0]}")/../common.bash"
cd "$top"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Files are links to those of DIR: what is changed is replaced first.
copy() {
    rm -rf "$scratch/copy"
    cp -rs "$(realpath "$1")" "$scratch/copy"
}
replace() { cp --remove-destination "$(realpath "$scratch/copy/$1")" "$scratch/copy/$1"; }
sums() { (cd "$scratch/copy" && rm -f SHA256SUMS && sha256sum -- * >"$scratch/sums" && mv "$scratch/sums" SHA256SUMS); }
# refused WHAT WORDS
refused() {
    if ci/release --check "$scratch/copy" >"$scratch/words" 2>&1; then
        die "$1 is not refused"
    fi
    grep -qF -- "$2" "$scratch/words" || die "$1 is refused without \"$2\": $(cat "$scratch/words")"
    say "ok: $1 is refused"
}

copy "$1"
bill=$(basename "$scratch"/copy/mountpoint-s3-csi-driver-*.cdx.json)
replace "$bill"
echo >>"$scratch/copy/$bill"
refused "a changed file" "is not what SHA256SUMS says"
sums
refused "a bill of materials that is not the image's" "FAILED: ${bill%.cdx.json}.oci.tar: the SBOM beside it is the one in it"

copy "$1"
rm "$scratch"/copy/mount-s3-host-*.x86_64.rpm
sums
refused "a release without a package" "FAILED: the "

copy "$1"
echo more >"$scratch/copy/more"
refused "a file more" "and no other"

copy "$1"
replace release.txt
sed -i 's/^revision: ./revision: x/' "$scratch/copy/release.txt"
sums
refused "an image of another commit" "version, revision and date are release.txt's"

copy "$1"
chart=$(basename "$scratch"/copy/scality-mountpoint-s3-csi-driver-*.tgz)
mkdir "$scratch/chart"
tar -xzf "$scratch/copy/$chart" -C "$scratch/chart"
sed -i 's|^  repository: .*|  repository: ""|' "$scratch"/chart/*/values.yaml
rm "$scratch/copy/$chart"
tar -czf "$scratch/copy/$chart" -C "$scratch/chart" "$(ls "$scratch/chart")"
sums
refused "a chart that names no image" "FAILED: the chart's image.repository is "

# The list of libraries in each program: a program without one.
copy "$1"
archive=$(basename "$scratch"/copy/mount-s3-host-*-x86_64.tar.gz)
mkdir "$scratch/unpacked"
tar -xzf "$scratch/copy/$archive" -C "$scratch/unpacked"
objcopy --remove-section .dep-v0 "$scratch"/unpacked/*/bin/mount-s3-ctl
rm "$scratch/copy/$archive"
tar -czf "$scratch/copy/$archive" -C "$scratch/unpacked" "$(ls "$scratch/unpacked")"
sums
refused "a program without the list of its libraries" "FAILED: mount-s3-ctl of x86_64 holds the list of its libraries"
grep -qF "FAILED: the provenance names" "$scratch/words" || die "the provenance of another archive is not refused"
say "ok: a provenance of other files is refused"

copy "$1"
archive=$(basename "$scratch"/copy/mount-s3-*-source.tar.xz)
rm -rf "$scratch/unpacked"
mkdir "$scratch/unpacked"
tar -xJf "$scratch/copy/$archive" -C "$scratch/unpacked"
rm -rf "$scratch"/unpacked/*/vendor/base16ct-*
rm "$scratch/copy/$archive"
tar -c -C "$scratch/unpacked" "$(ls "$scratch/unpacked")" | xz -0 >"$scratch/copy/$archive"
sums
refused "an archive of the sources without a crate" "FAILED: $archive has the "

copy "$1"
replace provenance.json
sed -i 's/"gitCommit": "./"gitCommit": "x/' "$scratch/copy/provenance.json"
sums
refused "a provenance of another commit" "FAILED: the provenance names"
