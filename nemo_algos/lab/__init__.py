"""What looks at trained models and runs: evaluations, reports, studies, mismatches."""
