#!/bin/bash
# PID 1 of the cluster, in namespaces of its own: what it starts ends with it.
#   cluster.sh FOLDER [private's arguments]
# /srv is FOLDER, on all nodes: configuration, logs, and the home of `user`.
set -euo pipefail
mount --make-rprivate /
mount --bind "$1" /srv
"${0%/*}/private.sh" "${@:2}"
mount -t proc proc /proc
hostname ctl
for file in hosts passwd group; do mount --bind /srv/etc/$file /etc/$file; done
mount --bind /srv/etc /etc/slurm
mount -t tmpfs -o mode=755 none /run
mkdir -m 755 /run/munge /run/netns
touch /run/netns/ctl
mount --bind /proc/self/ns/net /run/netns/ctl
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.254/24 dev bridge
ip link set bridge up
chown munge /run/munge /srv/munge
setpriv --reuid munge --regid munge --clear-groups munged --force \
	--seed-file=/srv/munge/seed --log-file=/srv/munge/log --pid-file=/srv/munge/pid
touch /srv/up
while :; do # and not exec: a shell reaps those who lose their parent
	slurmctld -D || true
	while [[ -e /srv/away ]]; do sleep 0.2; done
done
