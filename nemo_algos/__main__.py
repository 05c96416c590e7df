"""`python -m nemo_algos` is the command `nemo-algos`."""

from nemo_algos.cli import main

if __name__ == "__main__":
    main()
