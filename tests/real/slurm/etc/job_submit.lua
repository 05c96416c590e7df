-- Accounting's part: an account that nobody knows is refused.
local known = { a = true, team = true }
function slurm_job_submit(job, partitions, user)
	if not known[job.account] then
		return 2045 -- ESLURM_INVALID_ACCOUNT
	end
	return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user)
	return slurm.SUCCESS
end
return slurm.SUCCESS
