#!/usr/bin/env bash
# The Slurm test cluster, three containers with munged and slurmd, the first with slurmctld: docker/slurm.sh COMMAND
#   image   build the nodes' image on that of docker/cluster.sh, if it is not up to date
#   up      both images, then start
#   start   key, network, volume, containers; mends a cluster that is damaged
#   stop    remove all that start made
#   down    stop, then remove the image
# CLUSTER=NAME is another one beside it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(dirname "$here")
cluster=${CLUSTER:-hostmesh-slurm}
folder=$here/.cluster/$cluster
nodes=(node-0 node-1 node-2)
base=hostmesh-host
image=hostmesh-slurm
timeout=60

fail() {
    printf 'slurm: %s\n' "$@" >&2
    exit 1
}

say() {
    printf 'slurm: %s\n' "$*"
}

check_tools() {
    command -v docker > /dev/null || fail "found no docker; install Docker (on Debian: apt install docker.io)"
    local answer
    answer=$(docker version --format '{{.Server.Version}}' 2>&1) || fail "no Docker engine answers: ${answer##*$'\n'}"
}

build_image() {
    docker image inspect "$base" > /dev/null 2>&1 || CLUSTER=hostmesh "$here/cluster.sh" image
    local inputs have proxies=() name log
    inputs=$({
        docker image inspect --format '{{.Id}}' "$base"
        cat "$here/Dockerfile.slurm" "$here"/slurm/*
    } | cksum | tr ' ' -)
    have=$(docker image inspect --format '{{index .Config.Labels "hostmesh.inputs"}}' "$image" 2> /dev/null || true)
    [[ $have == "$inputs" ]] && return
    for name in http_proxy https_proxy no_proxy; do
        [[ -n ${!name:-} ]] && proxies+=(--build-arg "$name")
    done
    say "building the image $image on $base (a minute)"
    log=$(mktemp)
    tar --create --directory "$here" Dockerfile.slurm slurm | docker build --tag "$image" --file Dockerfile.slurm \
        --build-arg INPUTS="$inputs" ${proxies[@]+"${proxies[@]}"} - > "$log" 2>&1 ||
        fail "docker build failed; the end of what it said:" "$(tail -n 20 "$log")"
    rm -f "$log"
}

make_key() {
    mkdir -p -m 700 "$folder"
    [[ -f $folder/munge.key ]] || head -c 128 /dev/urandom > "$folder/munge.key"
    chmod 600 "$folder/munge.key"
}

start() {
    make_key
    docker network inspect "$cluster" > /dev/null 2>&1 || docker network create "$cluster" > /dev/null
    local node
    for node in "${nodes[@]}"; do
        [[ $(docker container inspect --format '{{.State.Status}}' "$cluster-$node" 2> /dev/null) == running ]] && continue
        docker rm --force "$cluster-$node" > /dev/null 2>&1 || true
        docker run --detach --init --name "$cluster-$node" --hostname "$node" --network "$cluster" --network-alias "$node" \
            --shm-size 256m --volume "$folder:/keys:ro" --volume "$cluster:/shared" --volume "$repo:/repo:ro" \
            "$image" > /dev/null
    done
    await_nodes
}

# A node that was lost and made anew answers again by itself; one that was set DOWN by hand is resumed here.
await_nodes() {
    local deadline=$((SECONDS + timeout)) states
    until states=$(docker exec "$cluster-node-0" sinfo --noheader --Node --partition main --format '%N %T' 2>&1) &&
        (($(grep --count --extended-regexp ' (idle|mixed|allocated)$' <<< "$states") == ${#nodes[@]})); do
        ((SECONDS < deadline)) || fail "the nodes are not idle within $timeout s: $states" \
            "their logs: docker logs $cluster-node-1; docker exec $cluster-node-0 tail /var/log/slurm/slurmctld.log"
        docker exec "$cluster-node-0" scontrol update NodeName="$(IFS=,; echo "${nodes[*]}")" State=RESUME \
            > /dev/null 2>&1 || true
        sleep 0.3
    done
}

up() {
    build_image
    start
    say "${#nodes[@]} nodes are up, all of them see /shared; node-0 is the login node, this repository is /repo there. Next:"
    echo "    docker exec -it --user trainer --workdir /shared --env PYTHONPATH=/repo/src --env PYTHONDONTWRITEBYTECODE=1 \\"
    echo "        $cluster-node-0 /opt/venv/bin/python -m hostmesh.launcher --hosts /repo/cluster_configs/slurm.yaml"
}

stop() {
    docker rm --force "${nodes[@]/#/$cluster-}" > /dev/null 2>&1 || true
    docker network rm "$cluster" > /dev/null 2>&1 || true
    docker volume rm "$cluster" > /dev/null 2>&1 || true
    rm -rf "$folder"
    rmdir "$here/.cluster" 2> /dev/null || true
    say "containers, network, volume and key are gone"
}

down() {
    stop
    docker image rm "$image" > /dev/null 2>&1 || true
    say "the image $image is gone"
}

case ${1:-} in
    image) check_tools && build_image ;;
    up | start | stop | down) check_tools && "$1" ;;
    *) fail "wanted image, up, start, stop or down, found '${1:-}'" ;;
esac
