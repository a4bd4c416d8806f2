"""What the stand-ins start: prints the two variables that the first prototype delivers, a line each."""

import os

for name in ("NUM_WORKERS", "TF_CONFIG"):
    print(f"{name}={os.environ.get(name)}", flush=True)
