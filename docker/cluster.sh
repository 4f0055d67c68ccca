#!/usr/bin/env bash
# The test cluster, four containers with sshd: docker/cluster.sh COMMAND
#   image   build the hosts' image, if it is not up to date
#   up      image, then start
#   start   keys, containers, cluster files; mends a cluster that is damaged
#   stop    remove all that start made
#   down    stop, then remove the image
#   clean   down, then remove what the image is built from
# CLUSTER=NAME is another one beside it, CONFIGS=FOLDER where its two cluster files go,
# BASE=IMAGE what the image stands on: Debian with Python 3.11.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(dirname "$here")
export CLUSTER=${CLUSTER:-hostmesh}
export FOLDER=$here/.cluster/$CLUSTER
configs=${CONFIGS:-$repo/cluster_configs}
python=${PYTHON:-python3}
hosts=(host-0 host-1 host-2 host-3)
image=hostmesh-host
own_base=hostmesh-base
default_base=debian:bookworm-slim
timeout=60

fail() {
    printf 'cluster: %s\n' "$@" >&2
    exit 1
}

say() {
    printf 'cluster: %s\n' "$*"
}

# A command whose output matters only when it fails.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" > "$log" 2>&1 || status=$?
    ((status == 0)) || cat "$log" >&2
    rm -f "$log"
    ((status == 0)) || fail "${1##*/} failed with $status; what it said is above"
}

# macOS has no timeout command.
limit() {
    if command -v timeout > /dev/null; then timeout "$@"; else "${@:2}"; fi
}

check_tools() {
    command -v docker > /dev/null || fail \
        "found no docker; install Docker (on Debian: apt install docker.io docker-compose)"
    local answer
    answer=$(limit 20 docker version --format '{{.Server.Version}}' 2>&1) || fail \
        "no Docker engine answers: ${answer##*$'\n'}" \
        "start it (systemctl start docker, or dockerd as root) and see that you may use it (docker ps)"
    if docker compose version > /dev/null 2>&1; then
        compose=(docker compose)
    elif command -v docker-compose > /dev/null; then
        compose=(docker-compose)
    else
        fail "found neither 'docker compose' nor docker-compose; install one (on Debian: apt install docker-compose)"
    fi
    compose+=(--file "$here/compose.yaml" --project-name "$CLUSTER")
    command -v ssh-keygen > /dev/null || fail "found no ssh-keygen; install it (on Debian: apt install openssh-client)"
}

# The base that was asked for, one that is here, the one that a registry has, or one made of Debian's packages.
find_base() {
    base=${BASE:-}
    [[ -n $base ]] && return
    for base in "$own_base" "$default_base"; do
        docker image inspect "$base" > /dev/null 2>&1 && return
    done
    say "pulling $default_base"
    limit 60 docker pull --quiet "$default_base" > /dev/null 2>&1 && return
    say "no image registry is reachable; building a base of Debian's packages (a minute)"
    base=$own_base
    quietly "$here/base.sh" "$base"
}

digest() {
    "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

build_image() {
    find_base
    quietly "$here/wheels.sh" "$here/wheels" "$(docker info --format '{{.Architecture}}')"
    local inputs have proxies=() name
    inputs=$({
        docker image inspect --format '{{.Id}}' "$base" 2> /dev/null || echo "$base"
        cat "$here"/{Dockerfile,packages.txt,sshd_config,start.sh} "$here"/wheels/*.txt
    } | digest)
    have=$(docker image inspect --format '{{index .Config.Labels "hostmesh.inputs"}}' "$image" 2> /dev/null || true)
    [[ $have == "$inputs" ]] && return
    for name in http_proxy https_proxy no_proxy; do
        [[ -n ${!name:-} ]] && proxies+=(--build-arg "$name")
    done
    say "building the image $image on $base (a minute)"
    quietly docker build --tag "$image" --build-arg BASE="$base" --build-arg INPUTS="$inputs" \
        ${proxies[@]+"${proxies[@]}"} "$here"
}

make_key() {
    [[ -f $1 ]] || ssh-keygen -q -t ed25519 -N '' -C "$2" -f "$1"
}

make_keys() {
    mkdir -p -m 700 "$FOLDER"
    make_key "$FOLDER/client_key" "trainer of $CLUSTER"
    for host in "${hosts[@]}"; do
        mkdir -p "$FOLDER/$host"
        make_key "$FOLDER/$host/host_key" "$host"
        cp "$FOLDER/client_key.pub" "$FOLDER/$host/authorized_keys"
        echo "$host $(cut -d' ' -f1,2 "$FOLDER/$host/host_key.pub")"
    done > "$FOLDER/known_hosts"
}

# The published ports are the engine's choice, and another one after a restart.
write_ssh_config() {
    local port
    {
        for host in "${hosts[@]}"; do
            port=$(docker port "$CLUSTER-$host" 22/tcp | head -n 1)
            printf 'Host %s\n    Port %s\n    HostKeyAlias %s\n' "$host" "${port##*:}" "$host"
        done
        cat << END
Host host-*
    HostName 127.0.0.1
    User trainer
    IdentityFile "$FOLDER/client_key"
    IdentitiesOnly yes
    UserKnownHostsFile "$FOLDER/known_hosts"
    StrictHostKeyChecking yes
END
    } > "$FOLDER/ssh_config.partial"
    mv "$FOLDER/ssh_config.partial" "$FOLDER/ssh_config"
}

await_sshd() {
    local host=$1 deadline=$((SECONDS + timeout)) answer
    until answer=$(ssh -F "$FOLDER/ssh_config" -o BatchMode=yes -o ConnectTimeout=5 "$host" true 2>&1 < /dev/null); do
        ((SECONDS < deadline)) || fail "$host does not answer within $timeout s: $answer" \
            "its log: docker logs $CLUSTER-$host"
        sleep 0.1
    done
}

write_cluster_file() {
    local file=$1 name=$2
    shift 2
    {
        echo "# Written by docker/cluster.sh for the cluster that runs now."
        printf '%s\n' "name: $name" "$@"
        cat << END
python: /opt/venv/bin/python
workdir: ~/job
sync: {from: ., exclude: [benchmarks/, docker/, docs/, tests/]}
env: {JAX_PLATFORMS: cpu, JAX_NUM_CPU_DEVICES: 2}
lease: 5
END
    } > "$file"
}

write_cluster_files() {
    mkdir -p "$configs"
    write_cluster_file "$configs/docker.yaml" "$CLUSTER" \
        'transport: ssh' 'hosts: ["host-[0-3]"]' "ssh: {config: \"$FOLDER/ssh_config\"}"
    write_cluster_file "$configs/docker-exec.yaml" "$CLUSTER-exec" \
        'transport: docker' "hosts: [{address: \"$CLUSTER-host-[0-3]\", user: trainer}]"
}

up() {
    build_image
    start
    local launch
    launch=$(dirname "$python")/launch
    [[ -x $launch ]] || launch=launch
    say "${#hosts[@]} hosts are up; checkpoints that all of them see go to /shared. Next:"
    echo "    $launch --hosts ${configs#"$PWD/"}/docker.yaml --checkpoint-dir /shared/run"
}

start() {
    make_keys
    quietly "${compose[@]}" up --detach --no-build
    write_ssh_config
    for host in "${hosts[@]}"; do
        await_sshd "$host"
    done
    write_cluster_files
}

stop() {
    quietly "${compose[@]}" down --volumes --remove-orphans
    rm -rf "$FOLDER" "$configs/docker.yaml" "$configs/docker-exec.yaml"
    rmdir "$here/.cluster" 2> /dev/null || true
    say "containers, network, volume, keys and cluster files are gone"
}

# Another cluster may still use the image.
down() {
    stop
    if [[ -n $(docker ps --all --quiet --filter "ancestor=$image") ]]; then
        say "the image $image stays: another cluster uses it"
        return
    fi
    docker image rm "$image" > /dev/null 2>&1 || true
    docker image prune --force --filter label=hostmesh.part > /dev/null
    say "the image $image is gone; its base and wheels stay for the next one (make cluster-clean removes them)"
}

clean() {
    down
    docker image rm "$own_base" > /dev/null 2>&1 || true
    rm -rf "$here/wheels"
    say "the base image $own_base and the wheels are gone"
}

case ${1:-} in
    image) check_tools && build_image ;;
    up | start | stop | down | clean) check_tools && "$1" ;;
    *) fail "wanted image, up, start, stop, down or clean, found '${1:-}'" ;;
esac
