"""As NeMo-RL's, of the version that it stands in for."""

MAJOR = 0
MINOR = 7
PATCH = 0
