#!/bin/bash
# private.sh FOLDER=PATH...: /tmp and each FOLDER (that only root may enter) become empty ones of
# this mount namespace's own, in which PATH alone is still seen.
set -euo pipefail
mount --make-rprivate /
mount --rbind / /mnt
mount -t tmpfs -o mode=1777 none /tmp
declare -A own=([/tmp]=1)
for pair in "$@"; do
	folder=${pair%%=*} path=${pair#*=}
	[[ ${own[$folder]:-} ]] || mount -t tmpfs -o mode=755 none "$folder"
	own[$folder]=1
	mkdir -p "$path"
	mount --rbind "/mnt$path" "$path"
done
umount --recursive --lazy /mnt
