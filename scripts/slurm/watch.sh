#!/bin/bash
# watch.sh RAY: ends the process RAY, ray.sub, where no step and no validation has begun or ended for STALLED
# seconds. The first step is exempt: it compiles, and its models are loaded. Before that it saves the stacks of
# all Python processes.
# shellcheck source=/dev/null
source "$SCRIPTS/ends.sh"
logs=$BASE_LOG_DIR/$ATTEMPT-logs
step='=+ Step [0-9]+/[0-9]+ =+'
begun=0 lines=0 since=$(uptime_seconds)
while ((STALLED == 0 || begun < 2 || $(uptime_seconds) - since < STALLED)); do
	sleep 10
	signs=$(grep -oE "$step|Starting validation|Validation Results" "$logs/ray-driver.log" 2>/dev/null)
	now=$(grep -c . <<<"$signs")
	((now < lines)) && lines=0 # the log was truncated (logrotate): all that it has is new
	((now > lines)) && since=$(uptime_seconds) &&
		begun=$((begun + $(tail -n "$((now - lines))" <<<"$signs" | grep -cE "$step"))) && lines=$now
done
echo "no step or validation began for $STALLED s (--stalled): stacks are in $logs"
touch "$RUN/stalled"

in_containers() { # of ray.sub's names, on these nodes
	timeout 120 srun --overlap --ntasks-per-node=1 --no-container-mount-home --container-image="$CONTAINER" \
		--container-mounts="$MOUNTS" --container-name="$1" --output="$logs/stacks-%N.log" "${@:2}" \
		bash "$SCRIPTS/stacks.sh"
}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sort | head -1)
in_containers ray-head --nodes=1 --nodelist="$head" &
if ((SLURM_JOB_NUM_NODES > 1)); then
	in_containers ray-worker --nodes=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" &
fi
wait
kill -KILL "$1"
