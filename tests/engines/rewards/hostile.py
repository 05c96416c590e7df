"""A verifier that misbehaves on command: `act(name, argument)` runs the function of that name."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def act(name, argument):
    return globals()[name](argument)


def echo(argument):
    return float(argument)


def codes(argument):
    return sum(map(ord, argument))


def nap(argument):
    time.sleep(float(argument))
    return os.getpid()


def clock(name):
    return signal.getitimer(getattr(signal, name))[0]


def end_by(name):
    os.kill(os.getpid(), getattr(signal, name))


def loop(_):
    while True:
        pass


def meet(folder):
    """Wait until another is here, too."""
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    return os.getpid()


def deaf(_):
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def family(path):
    # A child that outlives its parent unless the whole process group is killed.
    child = subprocess.Popen(["sleep", "60"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    time.sleep(60)


def bomb(_):
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))


def leave(_):
    os._exit(3)


def segfault(_):
    ctypes.string_at(0)


def fail(argument):
    raise RuntimeError(argument)


def own_clock(argument):
    raise TimeoutError(argument)


def quit_python(_):
    sys.exit(0)


def nothing(_):
    return None


def nan(_):
    return float("nan")


def shout(argument):
    line = '[1.0, "ok", ""]\n'
    print(line * 50_000, flush=True)
    os.write(1, line.encode())
    subprocess.run(["echo", line], check=True)
    return float(argument)


def listen(_):
    return len(sys.stdin.read())


def torch_loaded(_):
    return "torch" in sys.modules
