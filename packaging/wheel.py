"""packaging/wheel.py VERSION PROGRAMS OUT: writes a wheel of the static programs in the folder PROGRAMS to OUT.

pip copies `muster` and `client` from the wheel's scripts folder to the folder of `python`, and `master` and `agent` from the
data folder to `../libexec/muster`, where `muster` finds them. So these two common names are not on the PATH. A wheel is a zip with a list of its files (packaging.python.org, "Binary distribution format"). The same
programs give the same bytes.
"""

import base64
import hashlib
import pathlib
import platform
import sys
import zipfile

NAME = "muster_launcher"
# The path of each program in the wheel's folder of installed files.
PROGRAMS = {"client": "scripts/muster", "master": "data/libexec/muster/master", "agent": "data/libexec/muster/agent"}
# `client` is a second name of `muster`. A wheel cannot contain links, and pipx puts links to both into another folder.
CLIENT = b"""#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/muster" "$@"
"""
ROOT = pathlib.Path(__file__).resolve().parent.parent


def write(wheel, record, path, content, mode=0o644):
    entry = zipfile.ZipInfo(path)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record.append(f"{path},sha256={digest},{len(content)}\n")


def main(version, programs, out):
    machine = platform.machine()
    tags = [f"manylinux2014_{machine}", f"musllinux_1_2_{machine}"]
    info = f"{NAME}-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {version}\n"
        "Summary: Runs exec.py as one distributed TensorFlow job, on this machine or on Kubernetes\n"
        "License: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
    )
    kind = "Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: false\n"
    files = {
        "METADATA": metadata.encode() + (ROOT / "README.md").read_bytes(),
        "WHEEL": (kind + "".join(f"Tag: py3-none-{tag}\n" for tag in tags)).encode(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    path = pathlib.Path(out) / f"{NAME}-{version}-py3-none-{'.'.join(tags)}.whl"
    record = []
    with zipfile.ZipFile(path, "w") as wheel:
        installed = {to: (pathlib.Path(programs) / program).read_bytes() for program, to in PROGRAMS.items()}
        for to, content in {**installed, "scripts/client": CLIENT}.items():
            write(wheel, record, f"{NAME}-{version}.data/{to}", content, 0o755)
        for name, content in files.items():
            write(wheel, record, f"{info}/{name}", content)
        write(wheel, [], f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
