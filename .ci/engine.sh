# Sourced by .ci/run: the programs the tests use and a Docker engine, where they are missing and we may bring them.
# What was there before is never touched.

engine_folder=
engine_pid=
engine_cgroups=

may_install() {
    [[ $(id -u) == 0 ]] && command -v apt-get > /dev/null
}

# Without starting the services that come along: an sshd or a dockerd of the system's own would outlive us.
install_tools() {
    local missing=() pair
    # The client alone is no engine: some machines come with just that.
    for pair in docker:docker.io dockerd:docker.io docker-compose:docker-compose mmdebstrap:mmdebstrap pdsh:pdsh \
        ssh:openssh-client /usr/sbin/sshd:openssh-server zsh:zsh fish:fish etcd:etcd-server dpkg-source:dpkg-dev \
        /usr/lib/go-1.19/bin/go:golang-1.19-go ip:iproute2 iptables:iptables openssl:openssl; do
        command -v "${pair%%:*}" > /dev/null || missing+=("${pair##*:}")
    done
    ((${#missing[@]})) || return 0
    if ! may_install; then
        echo "ci: missing ${missing[*]}, and only root may install them; the tests that need them are skipped"
        return 0
    fi
    local policy=/usr/sbin/policy-rc.d written= status=0
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
        written=$policy
    fi
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -qq -o Acquire::Retries=3)
    { "${apt[@]}" update && "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" > /dev/null; } || status=$?
    [[ -z $written ]] || rm -f "$written"
    return "$status"
}

engine_answers() {
    command -v docker > /dev/null && timeout 20 docker version > /dev/null 2>&1
}

# False when none answers and we may not start one.
start_engine() {
    engine_answers && return
    [[ $(id -u) == 0 ]] && command -v dockerd > /dev/null || return 1
    mount_cgroups
    engine_folder=$(mktemp -d)
    export DOCKER_HOST=unix://$engine_folder/socket
    dockerd --data-root "$engine_folder/data" --exec-root "$engine_folder/exec" --pidfile "$engine_folder/pid" \
        --host "$DOCKER_HOST" > "$engine_folder/log" 2>&1 &
    engine_pid=$!
    local deadline=$((SECONDS + 60))
    until engine_answers; do
        if ((SECONDS > deadline)) || ! kill -0 "$engine_pid" 2> /dev/null; then
            tail -n 30 "$engine_folder/log" >&2
            echo "ci: the Docker engine did not come up; its last lines are above" >&2
            exit 1
        fi
        sleep 0.2
    done
}

# A machine without systemd may have none, and no container starts then.
mount_cgroups() {
    mountpoint -q /sys/fs/cgroup && return
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    engine_cgroups=/sys/fs/cgroup
}

stop_engine() {
    [[ -n $engine_pid ]] || return 0
    local mounted deadline=$((SECONDS + 60))
    kill "$engine_pid" 2> /dev/null || true
    while kill -0 "$engine_pid" 2> /dev/null; do
        ((SECONDS < deadline)) || kill -9 "$engine_pid" || true
        sleep 0.1
    done
    for mounted in $(awk -v under="$engine_folder/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r); do
        umount "$mounted" || true
    done
    [[ -z $engine_cgroups ]] || umount "$engine_cgroups" || true
    rm -rf --one-file-system "$engine_folder"
    engine_pid=
}
