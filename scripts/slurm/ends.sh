# shellcheck shell=bash disable=SC2154 # the variables are job.sh's
# How an attempt of job.sh, which sources this, ended; what Slurm is asked then.
#
# `attempts` has a line for each start and end: JOB[-RESTART], time, nodes, GPUs of each, what it
# was, the last step saved.

facts=        # what Slurm said of this job
ANSWERS=60    # seconds for an answer
PATIENCE=1800 # seconds in which a controller may come back; the job holds its nodes meanwhile

uptime_seconds() { # of a clock that nobody sets
	local seconds
	read -r seconds _ </proc/uptime
	echo "${seconds%.*}"
}

ask() { # Slurm, until its controller is there; in $(), which the TERM of an end must not reach
	trap '' TERM
	local answer status until
	until=$(($(uptime_seconds) + PATIENCE))
	while :; do
		# not timeout(1): it would pass a TERM on
		read -r -d '' -t "$ANSWERS" answer < <(
			"$@" 2>&1
			printf '\n%s' "$?"
		)
		status=${answer##*$'\n'}
		answer=${answer%"$status"}
		answer=${answer%%$'\n'}
		[[ $status == 0 ]] && break
		if [[ $answer && ! $answer =~ slurm\ controller|timed\ out|standby|Zero\ Bytes ]] ||
			(($(uptime_seconds) >= until)); then
			echo "${answer:-$1 does not answer}"
			return 1
		fi
		sleep 10
	done
	echo "$answer"
}

fact() { # of what Slurm said of this job
	[[ $facts =~ \ $1=([^ ]*) ]] && echo "${BASH_REMATCH[1]}"
}

saved() { # the last step that NeMo-RL can resume from
	{ echo /step_0/ && compgen -G "$CHECKPOINTS/step_*/training_info.json"; } |
		sed -nE 's:.*/step_([0-9]+)/.*:\1:p' | sort -n | tail -1
}

saved_before() { # by this job, as its attempts noted it
	echo 0 | cat - <(grep -E "^${SLURM_JOB_ID}[ -]" "$RUN/attempts" 2>/dev/null) | tail -1 | sed 's/.* //'
}

note() {
	echo "$ATTEMPT $(date +%s) $SLURM_JOB_NUM_NODES $GPUS_PER_NODE $1 $(saved)" >>"$RUN/attempts"
}

ends() { # of this kind, of this job, since the last step was saved
	grep -cE "^${SLURM_JOB_ID}[ -].* $1 $(saved)\$" "$RUN/attempts"
}

look() {
	facts=$(ask scontrol --oneliner show job "$SLURM_JOB_ID")
}

ended_by_slurm() { # as a signal may say, that else asks to stop
	look
	[[ $(fact JobState) && $(fact JobState) != RUNNING ]]
}

how() { # this attempt ended
	if [[ -e $RUN/finished ]]; then
		echo finished
	elif [[ $(fact Restarts) -gt $RESTARTS ]]; then
		echo requeued
	elif ((status == 75)); then
		if [[ -s $RUN/stop ]]; then echo stopped; else echo saved; fi
	elif [[ $(fact Reason) == TimeLimit ]]; then
		echo limit
	elif [[ $(fact PreemptTime) == [0-9]* ]]; then
		echo preempted
	elif [[ $(fact JobState) =~ COMPLETING|CANCELLED ]]; then
		echo cancelled
	elif ((${#bad[@]})); then
		echo nodes
	elif [[ -e $RUN/stalled ]]; then
		echo stalled
	else
		echo failed
	fi
}

go_on() { # ends this attempt, unless that is not allowed
	local answer
	if [[ $(ask squeue --noheader --me --states=PENDING --format=%A --name="$SLURM_JOB_NAME") == [0-9]* ]]; then
		echo "the next job of the chain goes on"
		exit 0
	elif ((RESTARTS >= MAX_REQUEUES)); then
		echo "restarted $RESTARTS times (--max-requeues): $AGAIN" >&2
	elif answer=$(ask scontrol requeue "$SLURM_JOB_ID") || [[ $answer == *"is pending"* ]]; then
		echo "requeued"
		((${#bad[@]})) && leave_out
		exit 0
	else
		echo "Slurm does not requeue ($answer): $AGAIN, or use --chain" >&2
	fi
}

bad_nodes() { # their names, with the reasons on stderr; a site may print lines of its own
	local step=(--nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
	[[ $(ask scontrol show node "$SLURMD_NODENAME") == *Gres=gpu* ]] && step+=(--gres="gpu:$GPUS_PER_NODE")
	timeout --foreground 300 srun "${step[@]}" bash "$SCRIPTS/node.sh" | tee >(cat >&2) |
		sed -n 's/^bad node \([^ :]*\): .*/\1/p'
}

leave_out() { # the bad nodes, beside those that --exclude names; while this attempt is being ended
	local named
	named=$(fact ExcNodeList)
	named=${named/#(null)/}
	named+=$(printf ',%s' "${bad[@]}")
	ask scontrol update "jobid=$SLURM_JOB_ID" "excnodelist=${named#,}"
}
