"""Prints the two variables that the first prototype sets, one per line. Tests of the prototype run this script."""

import os

for name in ("NUM_WORKERS", "TF_CONFIG"):
    print(f"{name}={os.environ.get(name)}", flush=True)
