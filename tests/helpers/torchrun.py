"""Two real processes that know of each other, as torchrun starts them."""

import os
import subprocess
import sys


def in_two_processes(program, *arguments):
    """Runs a program in both to its end."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*torchrun, str(program), *map(str, arguments)],
        check=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
