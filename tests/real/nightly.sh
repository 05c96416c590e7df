#!/bin/sh
# make nightly: the suites that are too long for CI, whole; what they say goes to last_whole_run.md.
#   tests/real/nightly.sh [slurm|stack]...
set -u
cd "$(dirname "$0")/../.."
page=tests/real/last_whole_run.md
status=0
for suite in ${*:-slurm stack}; do
	log=$(mktemp)
	start=$(date +%s)
	"tests/real/$suite/run.sh" >"$log" 2>&1 || status=1
	cat "$log"
	minutes=$((($(date +%s) - start) / 60))
	python3 tests/real/whole_run_row.py "$page" "$suite" "$(git describe --always --dirty)" $minutes "$log"
done
exit $status
