"""Stands in for NeMo-RL's timer where no clone of NeMo-RL is: the TimeoutChecker, as it counts."""

import time


class TimeoutChecker:
    def __init__(self, timeout: str | None = "00:03:45:00", fit_last_save_time: bool = False):
        days, hours, minutes, seconds = map(int, (timeout or "99:00:00:00").split(":"))
        self.limit = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        self.start = self.previous = time.time()
        self.fits, self.times, self.saved = fit_last_save_time, [], False

    def check_save(self) -> bool:
        if self.saved:
            return False
        step = sum(self.times) / len(self.times) if self.fits and self.times else 0
        self.saved = time.time() - self.start + step >= self.limit
        return self.saved

    def start_iterations(self) -> None:
        self.previous = time.time()

    def mark_iteration(self) -> None:
        now = time.time()
        self.times.append(now - self.previous)
        self.previous = now
