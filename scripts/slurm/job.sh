# The batch script of a run, below the lines that `nemo-algos slurm` writes over it.
#
# NeMo-RL's ray.sub is a child of this shell: `--signal=B:` reaches this shell alone, and ray.sub,
# which has no handler, would die of it. train.py looks for the file `stop` after each step, saves,
# and exits with 75. How an attempt ended (ends.sh) decides what follows:
#
#   finished, stopped, cancelled   nothing
#   requeued                       nothing: Slurm did it (preemption, node failure, scontrol requeue)
#   saved, preempted               goes on
#   limit, stalled                 goes on, at most twice without a step saved between
#   nodes                          the same, without those that node.sh found bad
#   failed                         goes on, at most --retries times without a step saved between
#
# It goes on in the next job of the chain, or this one is requeued.
set -uo pipefail
: "${RUN:?}" "${RAY_SUB:?}" "${SCRIPTS:?}" "${MAX_REQUEUES:?}" "${RETRIES:?}" "${STALLED:?}"
export RESTARTS=${SLURM_RESTART_COUNT:-0}
export ATTEMPT=$SLURM_JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT} # as ray.sub names its logs
export BASE_LOG_DIR=$RUN/logs
export SLURM_SUBMIT_DIR=$RUN # ray.sub's working directory in the container, wherever sbatch was
AGAIN="sbatch $RUN/job.sh goes on"
# shellcheck source=/dev/null
source "$SCRIPTS/ends.sh"

if ((${SLURM_ARRAY_TASK_COUNT:-1} > 1)); then # which run at once, whatever they depend on
	echo "the tasks of an array would write one run: use --sweep for runs, --chain for jobs" >&2
	exit 1
elif [[ -e $RUN/finished ]]; then
	echo "finished before: remove $RUN/finished to train on"
	exit 0
elif ((RESTARTS)) && [[ -s $RUN/stop ]]; then
	echo "stopped, as asked: $AGAIN"
	exit 0
elif ((RESTARTS > MAX_REQUEUES)); then # by Slurm, after preemptions
	echo "restarted $RESTARTS times (--max-requeues): $AGAIN" >&2
	exit 1
elif (($(saved_before) > $(saved))); then
	echo "step $(saved_before) was saved, but $CHECKPOINTS has $(saved): $AGAIN from there" >&2
	exit 1
fi
rm -f "$RUN/stop" "$RUN/stalled"
note start

status=1 signal=
trap 'signal=1; touch "$RUN/stop"' USR1 TERM
mapfile -t bad < <(bad_nodes)
if ((${#bad[@]} == 0)); then
	bash "$RAY_SUB" &
	ray=$!
	bash "$SCRIPTS/watch.sh" "$ray" &
	watch=$!
	status=129 signal=1
	while [[ $signal ]] && ((status > 128)); do # a signal ends `wait`, not ray.sub
		signal=
		wait "$ray"
		status=$?
		if [[ $signal ]]; then
			ended_by_slurm && break
			echo "asked to stop, after this step: $(date)"
		fi
	done
	kill "$watch" 2>/dev/null
fi

[[ -e $RUN/finished ]] || look
if ((status != 0 && status != 75)) && [[ $(fact JobState) == RUNNING ]]; then
	sleep 3 # scancel ends the steps before Slurm says that the job is cancelled
	look
fi
how=$(how)
note "$how"
echo "attempt $ATTEMPT: $how, step $(saved) is saved"
case $how in
finished | stopped) exit 0 ;;
saved | preempted) go_on ;;
failed) (($(ends failed) > RETRIES)) || go_on ;;
limit | stalled | nodes)
	if ((${#bad[@]} > 1 && ${#bad[@]} == SLURM_JOB_NUM_NODES)); then
		echo "all nodes are bad, so it is not the nodes" >&2
	elif (($(ends "$how") > 2)); then
		echo "three times in a row ($how), and no step was saved between; $AGAIN" >&2
		[[ $how != limit ]] || echo "lower checkpointing.save_period, or raise --time" >&2
	else
		go_on
	fi
	;;
esac
exit $((status ? status : 1)) # srun may say 0 where nothing started
