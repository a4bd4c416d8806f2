"""Lets the agent see where a script is: Python runs this module before the script.

MUSTER_STACKS_FD is `NUMBER:INODE` of an inherited file. When the agent sends signal 16 (SIGSTKFLT, which nothing else
uses), Python writes the stacks of its threads to this file, also while the main thread is inside a C function.
"""

import os
import sys


def register():
    # Removes the variable, so that a program which the script starts does not use the file.
    number, _, inode = os.environ.pop("MUSTER_STACKS_FD", "").partition(":")
    if not number:
        return
    try:
        # In a program that something else has started, another file may have this number.
        if os.fstat(int(number)).st_ino == int(inode):
            import faulthandler

            os.set_inheritable(int(number), False)
            faulthandler.register(16, file=int(number), all_threads=True)
    except (ValueError, OSError, RuntimeError, AttributeError):
        pass  # The script then runs without stacks.


def run_next():
    """Runs the next module of this name on sys.path, if there is one. Without this module, Python would have run it."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        sys.modules[__name__] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


register()
run_next()
