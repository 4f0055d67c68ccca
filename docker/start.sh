#!/bin/sh
# What a host does when it comes up: take the keys that are mounted, start sshd, and stay even when sshd ends.
set -eu
mkdir -p /run/sshd /etc/ssh/keys
# Copies: whoever owns the mounted files, sshd wants its own to be root's.
install -m 600 /keys/host_key /etc/ssh/keys/host_key
install -m 644 /keys/authorized_keys /etc/ssh/keys/authorized_keys
/usr/sbin/sshd -E /var/log/sshd.log
exec tail -F /var/log/sshd.log
