"""Tests of plan.py, which decides whether a warm interpreter can run a script. `scripts/test` runs them."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PLAN = (Path(__file__).resolve().parent.parent / "plan.py").read_text()

# Plans each script of stdin. Prints the steps or the reason, and how often Python has listed the script's folder.
REPORT = """
listed, results = [], []
def hear(event, args):
    if event in ("os.listdir", "os.scandir") and args[0] == FOLDER:
        listed.append(event)
sys.addaudithook(hear)
sys.path.insert(0, FOLDER)
for script in json.load(sys.stdin):
    with open(SCRIPT, "w") as file:
        file.write(script)
    try:
        plan = Plan()
        plan.refuse_shadows()
        results.append(plan.steps)
    except Cold as error:
        results.append(str(error))
print(json.dumps([results, len(listed)]))
"""


@unittest.skipIf(sys.version_info < (3, 10), "a warm interpreter needs Python 3.10")
class PlanTest(unittest.TestCase):
    def setUp(self):
        root = tempfile.TemporaryDirectory()
        self.addCleanup(root.cleanup)
        self.job, self.installed = Path(root.name, "job"), Path(root.name, "site-packages")
        self.job.mkdir()
        self.installed.mkdir()
        for module in ("numpy", "tensorflow", "dotenv", "wandb", "absl", "matplotlib"):
            (self.installed / (module + ".py")).touch()

    def planned(self, *scripts, modules=None):
        """Plans scripts, with these modules as those of --preload. Returns the plans, and how often Python has listed
        the folder."""
        words = [sys.executable, "-c", PLAN + REPORT, json.dumps(modules), "exec.py"]
        environment = {**os.environ, "PYTHONPATH": str(self.installed)}
        ran = subprocess.run(words, input=json.dumps(scripts), cwd=self.job, env=environment, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def plans(self, *scripts, modules=None):
        return self.planned(*scripts, modules=modules)[0]

    def test_a_folder_without_init_is_an_own_module(self):
        (self.job / "utils").mkdir()
        (self.job / "utils" / "env.py").touch()
        plans = self.plans("import utils.env\nimport numpy", "from utils import env\nimport numpy")
        self.assertEqual(plans, ["exec.py imports utils, a module in its folder, before a heavy module"] * 2)

    def test_a_folder_of_data_with_the_name_of_an_installed_module_is_no_module(self):
        for folder in ("wandb", "numpy", "json"):
            (self.job / folder).mkdir()
        self.assertEqual(self.plans("import json, wandb\nimport numpy"), [["numpy"]])

    def test_a_module_in_the_folder_replaces_an_installed_one(self):
        for module in ("wandb", "json"):
            (self.job / (module + ".py")).touch()
        own, shadow = self.plans("import wandb\nimport numpy", "import numpy")
        self.assertIn("imports wandb, a module in its folder", own)
        self.assertIn("the module json beside exec.py", shadow)

    def test_a_script_that_uses_an_installed_module_before_a_heavy_import_is_cold(self):
        uses = {
            "from dotenv import load_dotenv\nload_dotenv()\nimport numpy": "load_dotenv",
            "import dotenv as d\nif True:\n    d.load_dotenv()\nimport numpy": "d",
            "import dotenv\nload = dotenv.load_dotenv\nload()\nimport numpy": "dotenv",
            "def f():\n    from dotenv import load_dotenv as load\n    load()\nf()\nimport numpy": "load",
            "from dotenv import *\nload_dotenv()\nimport numpy": "load_dotenv",
            "import subprocess\nsubprocess.check_call(['pip', 'install', 'x'])\nimport numpy": "subprocess",
            "import runpy\nrunpy.run_path('env.py')\nimport numpy": "runpy",
        }
        for (script, name), plan in zip(uses.items(), self.plans(*uses)):
            self.assertIn(" of exec.py uses %s, which may change " % name, plan, script)

    def test_a_script_that_runs_other_code_before_a_heavy_import_is_cold(self):
        scripts = (
            "import os\nos.system('pip install x')\nimport numpy",
            "from os import system\nsystem('pip install x')\nimport numpy",
            "exec(open('env.py').read())\nimport numpy",
            "import importlib\nimportlib.import_module('utils.env')\nimport numpy",
        )
        for script, plan in zip(scripts, self.plans(*scripts)):
            self.assertIn("may change os.environ or sys.path before a heavy import", plan, script)

    def test_harmless_modules_and_uses_after_the_heavy_imports_stay_warm(self):
        scripts = (
            "import matplotlib\nmatplotlib.use('Agg')\nimport numpy",
            "from absl import flags\nflags.DEFINE_string('a', '', '')\nimport numpy",
            "import warnings, logging\nwarnings.filterwarnings('ignore')\nimport numpy",
            "import dotenv\nimport numpy\ndotenv.load_dotenv()",
            "import numpy\nfrom dotenv import load_dotenv\nload_dotenv()\nimport tensorflow",
        )
        self.assertEqual(self.plans(*scripts), [["numpy"]] * len(scripts))

    def test_for_named_modules_an_installed_module_may_be_used_before(self):
        script = "import dotenv\ndotenv.load_dotenv()\nimport os\nos.environ['A'] = '1'\nimport numpy"
        self.assertEqual(self.plans(script, modules=["numpy"]), [[["A", "1", False], "numpy"]])

    def test_the_folder_is_listed_once_because_it_may_be_large(self):
        self.assertEqual(self.planned("import json\n" * 40 + "import numpy"), [[["numpy"]], 1])


if __name__ == "__main__":
    unittest.main()
