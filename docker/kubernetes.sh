#!/usr/bin/env bash
# A Kubernetes of one node for tests, with an engine of its own: docker/kubernetes.sh COMMAND (as root, on Debian 12)
#   build   its programs, 1.20 from Debian's sources (once, about 7 minutes of two cores)
#   up      build, then start; says which cluster file and KUBECONFIG to use
#   down    end all that up started, and remove what it wrote
#   clean   down, then remove the programs as well
# PROGRAMS=PATH is where the programs go (~/.cache/hostmesh/kubernetes-1.20.2): they are built once a machine. FOLDER=PATH
# is where the cluster is (docker/.kubernetes). The image hostmesh-host comes from the engine at DOCKER_HOST.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${FOLDER:-$here/.kubernetes}
run=$folder/run
bridge=hostmesh-k8s
subnet=10.213.7
image=hostmesh-host
release=1.20.2
built=${PROGRAMS:-${XDG_CACHE_HOME:-$HOME/.cache}/hostmesh/kubernetes-$release}
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
timeout=90

fail() {
    printf 'kubernetes: %s\n' "$@" >&2
    exit 1
}

say() {
    printf 'kubernetes: %s\n' "$*"
}

# Building.

check_builder() {
    local missing=() pair
    for pair in /usr/lib/go-1.19/bin/go:golang-1.19-go dpkg-source:dpkg-dev etcd:etcd-server; do
        command -v "${pair%%:*}" > /dev/null || missing+=("${pair##*:}")
    done
    ((${#missing[@]} == 0)) || fail "missing ${missing[*]}; install them (apt install ${missing[*]})"
}

# With lists of its own, from where this machine has its packages: most have no source packages among theirs.
fetch_source() {
    local apt=$built/apt from
    [[ -d $tree ]] && return
    from=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk '$2 == "bookworm" { print $1; exit }')
    [[ -n $from ]] || fail "found no Debian bookworm among this machine's package sources, wanted its source packages"
    mkdir -p "$apt/lists/partial" "$built/source"
    cat > "$apt/debian.sources" << END
Types: deb-src
URIs: $from
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    local options=(-qq -o Acquire::Retries=3 -o "Dir::Etc::SourceList=$apt/debian.sources" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$apt/lists" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    (cd "$built/source" && apt-get "${options[@]}" source --download-only kubernetes)
    mkdir -p "$(dirname "$tree")"
    dpkg-source --no-check -x "$built"/source/kubernetes_*.dsc "$tree.partial"
    mv "$tree.partial" "$tree"
}

# The models of the API that kube-apiserver publishes are generated; the source package comes without them.
generate_models() {
    local own='api|apimachinery|apiserver|apiextensions-apiserver|kube-aggregator|client-go|metrics|component-base'
    own+='|controller-manager|kube-controller-manager|kube-proxy|kube-scheduler|kubelet|cloud-provider'
    local packages
    packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg vendor/k8s.io staging/src/k8s.io cmd | xargs -n1 dirname |
        sed 's#^staging/src/##; s#^vendor/##; s#^\(pkg\|cmd\)#k8s.io/kubernetes/\1#' | sort -u |
        grep -vE 'sample|code-generator|test' |
        sed -E "s#^k8s.io/($own)/#k8s.io/kubernetes/vendor/k8s.io/\1/#" | paste -sd,)
    go build -o "$built/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    "$built/openapi-gen" --output-file-base zz_generated.openapi --input-dirs "$packages" \
        --go-header-file hack/boilerplate/boilerplate.generatego.txt --output-base "$built/go/src" \
        --output-package k8s.io/kubernetes/pkg/generated/openapi --report-filename "$built/violations"
}

build() {
    mkdir -p "$built/bin"
    exec 9> "$built/lock"
    flock 9 # another checkout may be building them
    [[ -f $built/bin/built ]] && return
    check_builder
    say "building Kubernetes $release (about 7 minutes of two cores)"
    fetch_source
    compile
    touch "$built/bin/built"
    chmod -R u+w "$built/go" && rm -rf "$built/go" "$built/cache" "$built/apt" "$built/source" "$built/openapi-gen"
}

# In a shell of its own: the folder it is in is removed afterwards, and many a program does not start in one that is gone.
compile() (
    # Modules are off: everything is vendored, and go.mod does not say so.
    export GO111MODULE=off GOPATH=$built/go GOCACHE=$built/cache CGO_ENABLED=0 PATH=/usr/lib/go-1.19/bin:$PATH
    cd "$tree"
    generate_models
    version=" -X k8s.io/kubernetes/vendor/k8s.io/component-base/version.git"
    version="${version}Version=v$release${version}Major=1${version}Minor=20"
    for program in "${programs[@]}" kubectl; do
        go build -ldflags "-s -w $version" -o "$built/bin/$program" "k8s.io/kubernetes/cmd/$program"
    done
)

# Starting. Every program that is started has its process id in a file of its own.

check_starter() {
    [[ $(id -u) == 0 ]] || fail "found user $(id -u), wanted root: a kubelet makes cgroups and mounts"
    local program
    for program in dockerd docker openssl ip iptables; do
        command -v "$program" > /dev/null || fail "found no $program; install it (on Debian: apt install docker.io openssl iproute2 iptables)"
    done
    docker image inspect "$image" > /dev/null 2>&1 ||
        fail "found no image $image in the Docker engine; build it: docker/cluster.sh image"
}

start() {
    local name=$1
    shift
    nohup "$@" > "$run/$name.log" 2>&1 < /dev/null 9>&- &
    echo $! > "$run/$name.pid"
}

await() {
    local what=$1 deadline=$((SECONDS + timeout))
    shift
    until "$@" > /dev/null 2>&1; do
        if ((SECONDS > deadline)); then
            tail -n 5 "$run"/*.log >&2
            fail "$what does not answer within $timeout s; the last lines of all logs are above"
        fi
        sleep 0.2
    done
}

# Ports that are free now, so many.
find_ports() {
    python3 - "$1" << 'END'
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in held))
END
}

own_docker() {
    env --unset=DOCKER_HOST docker --host "unix://$run/engine/socket" "$@"
}

# Where root may not lower oom_score_adj, as in some containers, no pod would start: nothing asks for it here.
write_runtime() {
    cat > "$run/runtime" << 'END'
#!/usr/bin/python3 -IS
import json, os, sys
if "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    if os.path.exists(path):
        with open(path) as file:
            config = json.load(file)
        config.get("process", {})["oomScoreAdj"] = 0
        with open(path, "w") as file:
            json.dump(config, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
END
    chmod +x "$run/runtime"
}

# It leaves the rules of a firewall alone, which another engine on this machine may have made.
start_engine() {
    mkdir -p "$run/engine"
    write_runtime
    mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
    ip link show "$bridge" > /dev/null 2>&1 || ip link add "$bridge" type bridge
    ip address replace "$subnet.1/24" dev "$bridge"
    ip link set "$bridge" up
    iptables --insert FORWARD --in-interface "$bridge" --out-interface "$bridge" --jump ACCEPT
    start engine dockerd --data-root "$run/engine/data" --exec-root "$run/engine/exec" --pidfile "$run/engine/pid" \
        --host "unix://$run/engine/socket" --bridge "$bridge" --iptables=false --ip-masq=false \
        --add-runtime "hostmesh=$run/runtime" --default-runtime hostmesh
    await "the Docker engine" own_docker version
    docker save "$image" | own_docker load > /dev/null
    # As the first process of its container it hears SIGTERM only if it asks to.
    printf 'FROM %s\nCMD ["sh", "-c", "trap exit TERM; sleep infinity & wait"]\n' "$image" | own_docker build --quiet --tag hostmesh-pause - > /dev/null
}

write_configs() {
    local token
    token=$(openssl rand -hex 16)
    echo "$token,admin,admin,\"system:masters\"" > "$run/tokens.csv"
    openssl genrsa -out "$run/accounts.key" 2048 2> /dev/null
    cat > "$run/kubeconfig" << END
apiVersion: v1
kind: Config
clusters: [{name: hostmesh, cluster: {server: "https://127.0.0.1:$1", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: hostmesh, context: {cluster: hostmesh, user: admin}}]
current-context: hostmesh
END
    cat > "$run/pod.yaml" << END
apiVersion: v1
kind: Pod
spec:
  containers: [{name: host, image: $image, imagePullPolicy: Never}]
END
    cat > "$run/cluster.yaml" << END
# Written by docker/kubernetes.sh for the cluster that runs now.
hosts: {kubernetes: {pods: 4, template: pod.yaml, context: hostmesh}}
python: /opt/venv/bin/python
workdir: ~/job
sync: {from: ., exclude: [benchmarks/, docker/, docs/, tests/]}
env: {JAX_PLATFORMS: cpu, JAX_NUM_CPU_DEVICES: 2}
lease: 5
END
}

start_programs() {
    local ports store peers api kubelet gate=--feature-gates=TTLAfterFinished=true
    ports=$(find_ports 4)
    read -r store peers api kubelet <<< "$ports"
    write_configs "$api"
    start etcd etcd --data-dir "$run/etcd" --listen-client-urls "http://127.0.0.1:$store" \
        --advertise-client-urls "http://127.0.0.1:$store" --listen-peer-urls "http://127.0.0.1:$peers" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peers" --initial-cluster "default=http://127.0.0.1:$peers"
    start apiserver "$built/bin/kube-apiserver" --etcd-servers="http://127.0.0.1:$store" --secure-port="$api" \
        --bind-address=127.0.0.1 --cert-dir="$run/certs" --token-auth-file="$run/tokens.csv" "$gate" \
        --authorization-mode=AlwaysAllow --service-account-key-file="$run/accounts.key" \
        --service-account-signing-key-file="$run/accounts.key" --service-account-issuer=https://local \
        --api-audiences=https://local --service-cluster-ip-range=10.96.0.0/16 --allow-privileged \
        --disable-admission-plugins=ServiceAccount --kubelet-preferred-address-types=Hostname
    await "the API server" kubectl get --raw /readyz
    start controller-manager "$built/bin/kube-controller-manager" --kubeconfig="$run/kubeconfig" "$gate" \
        --service-account-private-key-file="$run/accounts.key" --leader-elect=false --port=0 --secure-port=0
    start scheduler "$built/bin/kube-scheduler" --kubeconfig="$run/kubeconfig" --leader-elect=false --port=0 \
        --secure-port=0
    # The API server finds the node by its name, which has to resolve.
    start kubelet "$built/bin/kubelet" --kubeconfig="$run/kubeconfig" --hostname-override=localhost \
        --docker-endpoint="unix://$run/engine/socket" --container-runtime=docker --network-plugin= \
        --pod-infra-container-image=hostmesh-pause --root-dir="$run/kubelet" --cert-dir="$run/kubelet-certs" \
        --port="$kubelet" --healthz-port=0 --read-only-port=0 --cgroup-driver=cgroupfs --fail-swap-on=false \
        --anonymous-auth=true --authorization-mode=AlwaysAllow --eviction-hard= --enforce-node-allocatable= \
        --cgroups-per-qos=false --make-iptables-util-chains=false
    await "the node" kubectl wait --for=condition=Ready node/localhost --timeout=1s
}

up() {
    build
    check_starter
    export KUBECONFIG=$run/kubeconfig PATH=$built/bin:$PATH
    if [[ -d $run ]] && kubectl get --raw /readyz > /dev/null 2>&1; then
        say "it is up already"
    else
        down > /dev/null
        mkdir -p -m 700 "$run"
        ln -s "$built/bin" "$run/bin"
        start_engine
        start_programs
        say "one node is up. Next:"
    fi
    echo "    export KUBECONFIG=$run/kubeconfig PATH=$built/bin:\$PATH"
    echo "    launch --hosts $run/cluster.yaml"
}

# Ending.

end() {
    local pid deadline=$((SECONDS + 20))
    [[ -f $run/$1.pid ]] || return 0
    pid=$(< "$run/$1.pid")
    kill "$pid" 2> /dev/null || true
    while kill -0 "$pid" 2> /dev/null; do
        ((SECONDS < deadline)) || kill -9 "$pid" 2> /dev/null || true
        sleep 0.1
    done
    rm -f "$run/$1.pid"
}

down() {
    local name mounted containers
    for name in kubelet scheduler controller-manager apiserver etcd; do
        end "$name"
    done
    if [[ -f $run/engine.pid ]]; then
        containers=$(own_docker ps --all --quiet 2> /dev/null || true)
        # shellcheck disable=SC2086
        [[ -z $containers ]] || own_docker rm --force $containers > /dev/null 2>&1 || true
        end engine
    fi
    for mounted in $(awk -v under="$run/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r); do
        umount "$mounted" || true
    done
    while iptables --delete FORWARD --in-interface "$bridge" --out-interface "$bridge" --jump ACCEPT 2> /dev/null; do :; done
    ip link delete "$bridge" 2> /dev/null || true
    rm -rf --one-file-system "$run"
    say "it is down; the programs stay in $built/bin (docker/kubernetes.sh clean removes them)"
}

clean() {
    down
    rm -rf --one-file-system "$folder" "$built"
}

tree=$built/go/src/k8s.io/kubernetes
case ${1:-} in
    build | up | down | clean) "$1" ;;
    *) fail "wanted build, up, down or clean, found '${1:-}'" ;;
esac
