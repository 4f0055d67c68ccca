#!/bin/sh
# What a node does when it comes up: take the key that all nodes share, start munged and slurmd (and on the first node
# slurmctld), and stay even when one of them ends.
set -eu
install -d -o munge -g munge -m 700 /etc/munge
install -d -o munge -g munge -m 755 /run/munge
install -o munge -g munge -m 400 /keys/munge.key /etc/munge/munge.key
install -d /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm
setpriv --reuid munge --regid munge --clear-groups munged
if [ "$(hostname)" = node-0 ]; then
    slurmctld
fi
slurmd
exec tail -F /var/log/slurm/slurmd.log
