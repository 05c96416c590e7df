"""Evaluation: benchmarks, stored generations, metrics over them, and the report."""
