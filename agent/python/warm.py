"""A warm interpreter: imports the heavy modules of a script once, and then forks a process for each run of the script.

The agent starts this program as `python -c SOURCE MODULES SCRIPT [ARGS]`, with a socket as stdin. This program writes
one JSON line to the socket: `ready`, or `cold` with the reason. From then on, each byte on the socket asks for a run.
The byte carries these descriptors: stdout, stderr, a socket for this run, the socket of MUSTER_FD, and the file of
sitecustomize.py if the run has one. On the socket for the run, the forked process receives the command line and the
changes to the environment. It answers with its process id, or with `cold` or `outdated` and the reason. When the agent
sends one more byte, the forked process executes the script.
"""
# Python has executed plan.py, which comes first in SOURCE.
import _io
import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import signal
import socket
import threading
import time
import traceback
import types

# How long a forked process waits for the agent to become its parent, in seconds.
PARENT_LIMIT = 5
# Python's exit code when the last output cannot be written (CPython, Py_RunMain).
FLUSH_FAILED = 120
# prctl(2).
PR_SET_PDEATHSIG = 1
# The kernel kills a process with the highest score first when memory runs out (proc(5)).
OOM_SCORE, OOM_SCORE_MAX = "/proc/self/oom_score_adj", "1000"

AGENT = os.getppid()


def open_stdin():
    """Replaces stdin by /dev/null, the stdin of every run. Returns the socket that was stdin."""
    requests = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    old = sys.stdin
    sys.stdin = sys.__stdin__ = open(0, encoding=old.encoding, errors=old.errors, closefd=False)
    sys.stdin.buffer.raw.name = "<stdin>"
    return requests


def receive(agent):
    """Returns the next message. Ends the process if the agent has closed the socket."""
    line = b""
    while not line.endswith(b"\n"):
        part = agent.recv(65536)
        if not part:
            os._exit(0)
        line += part
    return json.loads(line)


def send(to, **message):
    to.sendall(json.dumps(message).encode() + b"\n")


def threads():
    return len(os.listdir("/proc/self/task"))


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load():
    """Imports the modules. Keeps the modules' changes to the environment, and undoes the script's changes."""
    plan = Plan()
    if MODULES is None and any(name.startswith("nvidia") for name in os.listdir("/dev")):
        raise Cold("this machine has NVIDIA devices, which a forked process may be unable to use")
    initial, changed = dict(os.environ), {}
    for step in plan.steps:
        if isinstance(step, str):
            before = dict(os.environ)
            importlib.import_module(step)
            changed.update((name, value) for name, value in os.environ.items() if before.get(name) != value)
        else:
            name, value, is_default = step
            os.environ.setdefault(name, value) if is_default else os.environ.update({name: value})
    os.environ.clear()
    os.environ.update({**initial, **changed})
    return plan


def set_oom_score(score):
    with open(OOM_SCORE, "w") as file:
        file.write(score)


def settle(score):
    """Prepares for forks. A fork copies only one thread. A lock of another thread stays locked for ever in the copy."""
    gc.collect()
    gc.freeze()
    # Before a fork, libraries such as OpenBLAS end the threads of their pools. They start new threads later.
    child = os.fork()
    if child == 0:
        os._exit(0 if all([attempt(set_oom_score, each) for each in (OOM_SCORE_MAX, score)]) else 1)
    _, status = os.waitpid(child, 0)
    # In some containers, a process cannot lower its score again. The child has tried this.
    if status == 0:
        set_oom_score(OOM_SCORE_MAX)
    if threads() > 1:
        raise Cold("threads of the imported modules run (%d), and a forked process would lack them" % (threads() - 1))


def set_title(title):
    """Replaces the command line that `ps` shows (proc_pid_cmdline(5)). Without this, `ps` shows this whole program."""
    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    text = os.fsencode(title)[: end - start - 2] + b"\0"
    ctypes.memmove(start, text, len(text))
    # If the last byte is not NUL, the kernel shows the text up to its first NUL.
    ctypes.memset(end - 1, 1, 1)


def reason(error):
    return str(error) if isinstance(error, Cold) else "%s: %s" % (type(error).__name__, error)


def serve():
    """Answers the agent's requests. Returns only in a forked process, when its script may begin, with the script's
    text."""
    requests = open_stdin()
    with open(OOM_SCORE) as file:
        score = file.read()
    sys.path[:0] = [] if IS_SAFE_PATH else [FOLDER]
    sys.argv = sys.argv[2:]
    sys.orig_argv = sys.orig_argv[:1] + sys.argv
    try:
        plan = load()
        plan.refuse_shadows()
        settle(score)
    except BaseException as error:
        send(requests, cold=reason(error))
        os._exit(0)
    set_title("warm interpreter of " + " ".join(sys.argv))
    send(requests, ready={"modules": plan.modules(), "rss_bytes": resident_bytes()})
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1, 5, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        # The first child forks the run and ends. The kernel then makes the agent the run's parent.
        child = os.fork()
        if child == 0:
            if os.fork():
                os._exit(0)
            requests.close()
            return begin(descriptors, score, plan)
        os.waitpid(child, 0)
        for descriptor in descriptors:
            os.close(descriptor)


# The functions of a forked process.


def begin(descriptors, score, imported):
    """Makes this process look like a new interpreter. Returns the script's text when the script may begin."""
    agent = socket.socket(fileno=descriptors[2])
    try:
        end_with_the_agent()
        set_oom_score(score)
        for descriptor, target in zip(descriptors, (1, 2)):
            os.dup2(descriptor, target)
            os.close(descriptor)
        request = receive(agent)
        sys.argv[:] = sys.orig_argv[1:] = [os.fsdecode(word.encode()) for word in request["argv"]]
        for name, value in request["env"].items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        os.set_inheritable(descriptors[3], True)
        os.environ["MUSTER_FD"] = f"{descriptors[3]}:{os.fstat(descriptors[3]).st_ino}"
        for descriptor in descriptors[4:]:  # as in sitecustomize.py
            faulthandler.register(16, file=descriptor, all_threads=True)
        importlib.invalidate_caches()
        script = Plan().checked_against(imported)
        # Python itself seeds `random` after a fork.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        replace_main()
        set_title(" ".join(sys.orig_argv))
        send(agent, pid=os.getpid())
    except Outdated as error:
        send(agent, outdated=reason(error))
        os._exit(0)
    except BaseException as error:
        send(agent, cold=reason(error))
        os._exit(0)
    if not agent.recv(1):
        os._exit(0)
    agent.close()
    return script


def end_with_the_agent():
    """Makes this process the leader of a process group. Asks the kernel to kill this process when its parent ends."""
    limit = time.monotonic() + PARENT_LIMIT
    while os.getppid() != AGENT and time.monotonic() < limit:
        time.sleep(0.001)
    # setpgid also waits until the kernel has completed the change of the parent: both need the same lock of the kernel.
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != AGENT:
        os._exit(1)


def replace_main():
    """Creates the module `__main__` as Python does for a script."""
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", SCRIPT_PATH)
    vars(main).update(__builtins__=builtins, __loader__=loader, __file__=SCRIPT_PATH)
    if sys.version_info < (3, 14):
        vars(main).update(__annotations__={}, __cached__=None)
    sys.modules["__main__"] = main


def show(error):
    """Prints an uncaught exception, without this program's frame."""
    error.__traceback__ = error.__traceback__.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:
        second.__traceback__ = second.__traceback__.tb_next
        for title, failure in (("Error in sys.excepthook:", second), ("\nOriginal exception was:", error)):
            print(title, file=sys.stderr)
            sys.__excepthook__(type(failure), failure, failure.__traceback__)


def status_of(error):
    """Returns Python's exit code after this uncaught exception, or 0 for None. For KeyboardInterrupt, returns the
    negative number of SIGINT."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        show(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF if -1 << 63 <= (error.code or 0) < 1 << 63 else 0xFF
    print(error.code, file=sys.stderr)
    return 1


def attempt(call, subject):
    """Whether a call succeeds. Prints an exception in the same way as Python prints exceptions during its exit."""
    try:
        call(subject)
        return True
    except BaseException as error:
        with contextlib.suppress(Exception):
            print("Exception ignored in: %r" % subject, file=sys.stderr)
            traceback.print_exception(type(error), error, None)
        return False


def flush(stream):
    if not getattr(stream, "closed", False):
        stream.flush()


def end(status):
    """Ends the process as Python does, but does not destroy modules: TensorFlow's modules would take seconds."""
    attempt(lambda module: module._shutdown(), threading)
    attempt(lambda module: module._run_exitfuncs(), atexit)
    is_flushed = all([attempt(flush, stream) for stream in (sys.stdout, sys.stderr) if stream is not None])
    # Destructors may write output. Threads that still run may fail from here on. Python would have stopped them.
    threading.excepthook = lambda _: None
    main = vars(sys.modules["__main__"])
    main.update((name, None) for name in list(main) if name != "__builtins__")
    gc.collect()
    for stream in gc.get_objects():
        if issubclass(type(stream), _io._IOBase):
            # Python ignores errors here too.
            with contextlib.suppress(Exception):
                flush(stream)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if is_flushed else FLUSH_FAILED)


# The script runs from the module's top level, so that only one frame of this program is below the script's frames.
source, failure = serve(), None
try:
    exec(compile(source, SCRIPT_PATH, "exec", dont_inherit=True), vars(sys.modules["__main__"]))
except BaseException as error:
    failure = error
end(status_of(failure))
