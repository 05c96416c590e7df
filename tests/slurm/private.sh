# private FOLDER=PATH...: /tmp and each FOLDER (that only root may enter) become empty ones of this
# mount namespace's own, in which PATH alone is still seen. Sourced by cluster.sh and node.sh.
private() {
	local pair folder path
	mount --make-rprivate /
	mount --rbind / /mnt
	mount -t tmpfs -o mode=1777 none /tmp
	for pair in "$@"; do
		folder=${pair%%=*} path=${pair#*=}
		[[ $folder == /tmp ]] || mount -t tmpfs -o mode=755 none "$folder"
		mkdir -p "$path"
		mount --rbind "/mnt$path" "$path"
	done
	umount --recursive --lazy /mnt
}
