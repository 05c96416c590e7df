"""What can be known before a run: its mistakes, its memory and time, its Slurm job."""
