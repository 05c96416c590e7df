#!/bin/bash
# A node of the cluster: own network, processes, /tmp and name. To end it as a power cut does, kill
# the process in /srv/NAME.pid.
#   node.sh NAME [private's arguments]     in the namespaces of cluster.sh
set -euo pipefail
if (($$ != 1)); then
	echo $$ >"/srv/$1.pid"
	exec unshare --net --pid --mount --uts --fork --kill-child "$0" "$@"
fi
"${0%/*}/private.sh" "${@:2}"
until ip link add eth0 type veth peer name "$1" netns ctl; do sleep 0.2; done # the last one's goes
ip -n ctl link set "$1" master bridge up
ip link set lo up
ip addr add "10.77.0.${1#n}/24" dev eth0
ip link set eth0 up
mount -t proc proc /proc
hostname "$1"
mount -t tmpfs -o mode=1777,size=10g none /dev/shm # as node.sh of nemo_algos wants it
mkdir -p "/srv/spool/$1"
slurmd -D -N "$1" &
wait
