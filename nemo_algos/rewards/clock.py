"""The clock of verdicts is CPU time, so that they do not depend on the machine's load.

Wall time is a distant backstop, for what sleeps or waits and so uses no CPU time.
"""

PATIENCE = 10.0  # seconds of wall time for each of CPU time
