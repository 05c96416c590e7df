# The batch script of a run, below the lines that `nemo-algos slurm` writes over it.
#
# NeMo-RL's ray.sub is a child of this shell: `--signal=B:` reaches this shell alone, and ray.sub,
# which has no handler, would die of it. train.py looks for the file `stop` after each step, saves,
# and exits with 75; what is to be continued is requeued, and NeMo-RL resumes from its last step.
set -uo pipefail
: "${RUN:?}" "${RAY_SUB:?}" "${MAX_REQUEUES:?}"
export RESTARTS=${SLURM_RESTART_COUNT:-0} # for train.py: ray.sub keeps SLURM_* from it

requeue() { # comes back only where this is not allowed
	if ((RESTARTS >= MAX_REQUEUES)); then
		echo "$1, but restarted $RESTARTS times (--max-requeues): sbatch $RUN/job.sh goes on" >&2
		return
	fi
	echo "$1: requeued"
	scontrol requeue "$SLURM_JOB_ID" && sleep 600 # until Slurm ends this attempt
	echo "requeue is not allowed here: submit again, or use --chain: sbatch $RUN/job.sh" >&2
}

if ((${SLURM_ARRAY_TASK_COUNT:-1} > 1)); then # which run at once, whatever they depend on
	echo "the tasks of an array would write one run: use --sweep for runs, --chain for jobs" >&2
	exit 1
elif [[ -e $RUN/finished ]]; then
	echo "finished before: remove $RUN/finished to train on"
	exit 0
elif ((RESTARTS > MAX_REQUEUES)); then # by Slurm, after preemptions
	echo "restarted $RESTARTS times (--max-requeues): sbatch $RUN/job.sh goes on" >&2
	exit 1
fi
rm -f "$RUN/stop"
trap 'interrupted=1; touch "$RUN/stop"; echo "asked to stop, after this step: $(date)"' USR1 TERM

export SLURM_SUBMIT_DIR=$RUN # ray.sub's working directory in the container, wherever sbatch was
export BASE_LOG_DIR=$RUN/logs
bash "$RAY_SUB" &
ray=$!
interrupted=1
status=129
while ((interrupted && status > 128)); do # a signal ends `wait`, not ray.sub
	interrupted=0
	wait "$ray"
	status=$?
done

if ((status == 0)) && [[ ! -e $RUN/finished ]]; then # srun may say so where nothing started
	echo "ray.sub ended, and training has not: see $BASE_LOG_DIR" >&2
	status=1
fi
if ((status == 75)); then
	if squeue --noheader --me --states=PENDING --name="$SLURM_JOB_NAME" | grep -q .; then
		echo "to be continued by the next job of the chain"
		exit 0
	fi
	requeue "to be continued"
elif ((status)) && scontrol show job "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]'; then
	requeue "preempted" # with a grace time, and without a signal to this shell
fi
exit "$status"
