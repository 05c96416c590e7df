#!/bin/bash
# Prints what would keep a run from working on this node, a line each; job.sh runs it on each of its nodes.
bad() {
	echo "bad node ${SLURMD_NODENAME:-$(hostname)}: $1"
}

if command -v nvidia-smi >/dev/null; then
	gpus=$(nvidia-smi -L | grep -c '^GPU')
	((gpus >= GPUS_PER_NODE)) || bad "nvidia-smi lists $gpus GPUs of $GPUS_PER_NODE"
fi
shared=$(df --output=avail --block-size=1G /dev/shm | tail -1) # NCCL's and Ray's
((shared >= GPUS_PER_NODE)) || bad "/dev/shm has $shared GiB free, less than one for each GPU"
used=$(df --output=pcent /tmp | tr -dc 0-9) # Ray's session; from 95 % on Ray stores no object
((used < 95)) || bad "/tmp is filled to $used %"
[[ -w $RUN ]] || bad "cannot write to $RUN"
[[ $CONTAINER != /* || -r $CONTAINER ]] || bad "cannot read $CONTAINER"
