#!/bin/bash
# The stacks of this node's Python processes, by py-spy, which comes with Ray. Run in the container.
for exe in /proc/[0-9]*/exe; do
	[[ $(readlink "$exe" 2>/dev/null) == */python* ]] || continue
	pid=${exe//[!0-9]/}
	echo "=== $pid"
	timeout 30 py-spy dump --pid "$pid"
done
