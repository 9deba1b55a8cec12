"""Time of importing the package, of the help of its commands, and of all that measuring needs, against torch alone.

Run with ``make bench``. Each import is a fresh process; medians of interleaved runs.
"""

import subprocess
import sys

import numpy as np

WAYS = {
    "import torch": "import torch",
    "import topic_probe": "import topic_probe",
    "topic-probe --help": "from topic_probe.cli import main; main(['--help'])",
    "topic-probe measure attention --help": (
        "from topic_probe.cli import main; main(['measure', 'attention', '--help'])"
    ),
    "every public name but the model hosts": (
        "import topic_probe as tp; "
        "[getattr(tp, name) for name in tp.__all__ if name not in ('open_model', 'random_init', 'reproduce')]"
    ),
}
TIMED = "import time; start = time.process_time(); {code}; print(time.process_time() - start)"


def seconds(code: str) -> float:
    """Processor seconds that some code takes in a fresh process."""
    answer = subprocess.run(
        [sys.executable, "-c", TIMED.format(code=code)], check=True, capture_output=True, text=True
    )
    return float(answer.stdout.splitlines()[-1])


def main() -> None:
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(5):
        for name, code in WAYS.items():
            found[name].append(seconds(code))
    torch_alone = np.median(found["import torch"])
    print(f"import torch takes {torch_alone:.2f} s")
    for name, values in found.items():
        print(f"  {name:40s} {np.median(values) / torch_alone:5.2f} × import torch")


if __name__ == "__main__":
    main()
