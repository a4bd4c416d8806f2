"""Finds a script's heavy imports, and the script's changes to the environment before these imports. warm.py is the rest
of this program."""
import sys

# With `-c`, Python searches the working directory first. No file there may replace a module that this program imports.
IS_SAFE_PATH = getattr(sys.flags, "safe_path", False)
if not IS_SAFE_PATH:
    sys.path.pop(0)

import os

# Python before 3.10 has no `sys.orig_argv`. A Python that cannot parse this program ends without an answer.
if sys.version_info < (3, 10):
    os.write(0, b'{"cold": "a warm interpreter needs Python 3.10 or newer; this is %d.%d"}\n' % sys.version_info[:2])
    sys.exit()

import ast
import importlib.machinery
import importlib.util
import json
import pkgutil
import warnings

# Modules whose import takes most of a script's start.
HEAVY = ("tensorflow", "numpy", "keras", "tf_keras", "pandas", "scipy", "h5py", "PIL")
# Other installed modules that change neither the environment nor the search path for modules.
HARMLESS = ("absl", "click", "matplotlib", "muster")
# Python's own modules that run other programs, for example one that installs modules.
RUNNING = ("runpy", "subprocess")
# Folders of installed modules.
SITE_FOLDERS = ("site-packages", "dist-packages")
# Methods of os.environ that change nothing.
READING = ("get", "copy", "items", "keys", "values")
# Other names with which a script changes its environment or its search path for modules.
CHANGING = ("putenv", "unsetenv", "environb", "addsitedir", "import_module", "__import__", "exec", "eval")
# Functions of os that run other programs.
OF_OS = ("system", "popen")

# MODULES: the modules that the user named. An empty list: the user asked for a warm interpreter, but named no modules.
# None: the user did not ask for a warm interpreter.
MODULES, SCRIPT = json.loads(sys.argv[1]), sys.argv[2]
SCRIPT_PATH = os.path.abspath(SCRIPT)
FOLDER = os.path.dirname(os.path.realpath(SCRIPT))


class Cold(Exception):
    """The reason why a new interpreter must run the script."""


class Outdated(Cold):
    """The reason why a warm interpreter does not fit the script, although another one may."""


def is_attribute(node, module, names):
    return getattr(node, "attr", None) in names and getattr(node.value, "id", None) == module


def is_sys_path(node):
    return is_attribute(node, "sys", ("path",))


def is_environ(node):
    return getattr(node, "id", None) == "environ" or getattr(node, "attr", None) == "environ"


class WithoutReads(ast.NodeTransformer):
    """Removes the expressions that only read os.environ or sys.path."""

    def visit_Subscript(self, node):
        is_read = (is_environ(node.value) or is_sys_path(node.value)) and isinstance(node.ctx, ast.Load)
        return self.visit(node.slice) if is_read else self.generic_visit(node)

    def visit_Attribute(self, node):
        is_read = is_environ(node.value) and node.attr in READING
        return ast.Constant(None) if is_read else self.generic_visit(node)

    def visit_Compare(self, node):
        node.comparators = [each for each in node.comparators if not is_environ(each)]
        return self.generic_visit(node)


def may_change(node):
    """Whether a node of the syntax tree may change os.environ or sys.path."""
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names if alias.name != "environ" or alias.asname]
        of_module = {"sys": ("path",), "os": OF_OS}.get(node.module, ())
        return any(name in CHANGING + ("environ",) + of_module for name in names)
    names = (getattr(node, "id", None), getattr(node, "attr", None))
    is_place = is_sys_path(node) or is_environ(node)
    return is_place or is_attribute(node, "os", OF_OS) or any(name in CHANGING for name in names)


def refuse_changes(statement):
    line = statement.lineno
    if any(map(may_change, ast.walk(WithoutReads().visit(statement)))):
        raise Cold("line %d of %s may change os.environ or sys.path before a heavy import" % (line, SCRIPT))


def text_pairs(pairs):
    """Converts pairs of expressions to pairs of texts. Returns None if an expression is not a literal text."""
    texts = [[getattr(node, "value", None) for node in pair] for pair in pairs]
    return texts if all(isinstance(text, str) for pair in texts for text in pair) else None


def literal_changes(statement):
    """The variables that `os.environ["A"] = "1"`, `setdefault` or `update` sets, and whether they are only defaults.
    Returns None and False for other statements, and for values that are not literal texts."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(target, ast.Subscript) and len(statement.targets) == 1 and is_environ(target.value):
        return text_pairs([(target.slice, statement.value)]), False
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and is_environ(call.func.value):
        kind, given = call.func.attr, call.args
        if kind == "setdefault" and len(given) == 2 and not call.keywords:
            return text_pairs([given]), True
        if kind == "update" and len(given) == 1 and isinstance(given[0], ast.Dict) and not call.keywords:
            return text_pairs(zip(given[0].keys, given[0].values)), False
    return None, False


def changes_of(statement):
    pairs, is_default = literal_changes(statement)
    if pairs is None:
        refuse_changes(statement)
    return [(name, value, is_default) for name, value in pairs or []]


def top(module):
    return module.partition(".")[0]


def imports_of(statement):
    """The top-level modules that a statement imports, except inside functions."""
    if isinstance(statement, ast.Import):
        return [top(alias.name) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [top(statement.module or "")]
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return []
    return [name for child in ast.iter_child_nodes(statement) for name in imports_of(child)]


def is_installed(module):
    spec = importlib.util.find_spec(module)
    return spec is not None and any("/%s/" % folder in (spec.origin or "") for folder in SITE_FOLDERS)


def beside_script(module):
    """The spec of a module in the script's folder, if Python searches this folder. Python lists a folder only once, and
    remembers the list."""
    finder = None if IS_SAFE_PATH else pkgutil.get_importer(FOLDER)
    return finder and finder.find_spec(module)


def is_own(module):
    """Whether an import of this module executes a file in the script's folder."""
    spec = beside_script(module)
    # A folder without __init__.py gives way to every other module with its name.
    return bool(spec) and (spec.loader is not None or importlib.machinery.PathFinder.find_spec(module).origin is None)


def is_unknown(module):
    """Whether a function of this module may change the environment, or what later imports find."""
    is_of_python = module in sys.stdlib_module_names and module not in RUNNING
    return not is_of_python and module not in HEAVY + HARMLESS


def unknown_names(statement):
    """The names that a statement, with all functions in it, imports from unknown modules."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if is_unknown(top(getattr(node, "module", alias.name) or "")):
                    yield alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else top(alias.name))


def refuse_uses(statement, unknown):
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and (node.id in unknown or "*" in unknown):
            use = (node.lineno, SCRIPT, node.id)
            raise Cold("line %d of %s uses %s, which may change os.environ or sys.path before a heavy import" % use)


class Plan:
    """The script's imports of heavy modules, and its changes to the environment before these imports, in order."""

    def __init__(self):
        with open(SCRIPT, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.source = file.read()
            statements = ast.parse(self.source, SCRIPT_PATH).body
            compile(self.source, SCRIPT_PATH, "exec", dont_inherit=True)
        imported = dict.fromkeys(name for statement in statements for name in imports_of(statement))
        modules = MODULES or [name for name in imported if name in HEAVY and is_installed(name)]
        if not modules:
            raise Cold("%s imports none of %s" % (SCRIPT, ", ".join(HEAVY)))
        # Names of modules, and changes as (name, value, whether the value is only a default).
        self.steps = []
        try:
            self.follow(statements, modules, {module for module in modules if top(module) in imported})
        except Cold:
            # The modules before the statement that raised Cold can still be imported.
            if MODULES or not self.modules():
                raise

    def follow(self, statements, modules, expected):
        """Collects steps up to the last expected module. Raises Cold at a change that this program cannot repeat."""
        unknown = set()
        for statement in statements:
            names = imports_of(statement)
            own = next(filter(is_own, names), None)
            if own and MODULES:
                break
            if own:
                raise Cold("%s imports %s, a module in its folder, before a heavy module" % (SCRIPT, own))
            if not MODULES:
                unknown.update(unknown_names(statement))
                refuse_uses(statement, unknown)
            found = [module for module in modules if top(module) in names and module not in self.steps]
            if found and not isinstance(statement, (ast.Import, ast.ImportFrom)):
                refuse_changes(statement)
            self.steps += found or changes_of(statement)
            expected -= set(found)
            if found and not expected:
                break
        self.steps += [module for module in modules if module not in self.steps]

    def modules(self):
        return [step for step in self.steps if isinstance(step, str)]

    def refuse_shadows(self):
        """Raises Cold if the script's folder has a module with the name of an imported module."""
        names = [name for name in sys.modules if "." not in name and name != "__main__"]
        shadows = [name for name in names if getattr(beside_script(name), "loader", None)]
        if shadows:
            raise Cold("the module %s beside %s has the name of an imported module" % (min(shadows), SCRIPT))

    def checked_against(self, imported):
        """Returns the script's text. Raises Outdated if the steps differ from those of the plan `imported`."""
        self.refuse_shadows()
        if self.steps != imported.steps:
            raise Outdated("%s has changed: it has other imports, or sets other variables before them" % SCRIPT)
        return self.source
