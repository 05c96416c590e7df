"""The report: one HTML file that compares runs, and the figures in it as PNG and CSV."""
