"""Tests of sitecustomize.py, which Python runs before the script."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

HELPER = pathlib.Path(__file__).parent.parent
# Sends the signal to itself, and prints whether the file has the stacks.
DUMPS = """
import os, signal, sys
os.kill(os.getpid(), signal.SIGSTKFLT if hasattr(signal, "SIGSTKFLT") else 16)
print("in <module>" in os.pread(int(sys.argv[1]), 10_000, 0).decode())
"""


class TestSitecustomize(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # Only this file of the helper's folder, as a user's own packages must not replace it.
        self.helper = self.folder / "helper"
        self.helper.mkdir()
        self.helper.joinpath("sitecustomize.py").write_bytes(HELPER.joinpath("sitecustomize.py").read_bytes())

    def run_python(self, program, *arguments, path=(), file=None, env=None):
        """Runs a program with these folders in PYTHONPATH. Returns its exit code, stdout and stderr."""
        places = ":".join(map(str, [self.helper, *path]))
        environment = {**os.environ, "PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        descriptors = () if file is None else (file,)
        ran = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=environment, pass_fds=descriptors, capture_output=True, text=True,
        )
        return ran.returncode, ran.stdout, ran.stderr

    def memory_file(self):
        file = os.memfd_create("stacks", 0)
        self.addCleanup(os.close, file)
        return file, f"{file}:{os.fstat(file).st_ino}"

    def test_the_handler_writes_to_the_inherited_file_and_the_variable_is_removed(self):
        file, variable = self.memory_file()
        program = DUMPS + "print('MUSTER_STACKS_FD' in os.environ, os.get_inheritable(int(sys.argv[1])))"
        ran = self.run_python(program, file, file=file, env={"MUSTER_STACKS_FD": variable})
        self.assertEqual(ran, (0, "True\nFalse False\n", ""))

    def test_without_the_file_the_signal_has_its_default_action(self):
        file, variable = self.memory_file()
        number, inode = variable.split(":")
        for value in (None, "", "x", f"{number}:", f"{number}:{int(inode) + 1}", "99:1", f":{inode}"):
            env = {} if value is None else {"MUSTER_STACKS_FD": value}
            code, out, err = self.run_python(DUMPS, file, file=file, env=env)
            self.assertEqual((code, out, err), (-16, "", ""), value)

    def test_the_next_sitecustomize_runs_once_and_is_the_module(self):
        nexts = [self.folder / name for name in ("first", "second")]
        for folder in nexts:
            folder.mkdir()
            folder.joinpath("sitecustomize.py").write_text(f"import sys\nprint('{folder.name}', __name__)\nOWN = 1\n")
        ran = self.run_python("import sitecustomize; print(sitecustomize.OWN)", path=nexts)
        self.assertEqual(ran, (0, "first sitecustomize\n1\n", ""))

    def test_an_error_in_the_next_sitecustomize_does_not_end_python(self):
        nexts = self.folder / "next"
        nexts.mkdir()
        nexts.joinpath("sitecustomize.py").write_text("raise ValueError('broken')\n")
        file, variable = self.memory_file()
        code, out, err = self.run_python(DUMPS, file, path=[nexts], file=file, env={"MUSTER_STACKS_FD": variable})
        self.assertEqual((code, out), (0, "True\n"))
        self.assertIn("broken", err)


if __name__ == "__main__":
    unittest.main()
