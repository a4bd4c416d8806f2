"""Helper for elastic training scripts: all ranks leave at the same step, and no sample is used twice in an epoch.

docs/guides/elastic-scripts.md shows how to use this module. It needs only the standard library, but `sampler()` also
needs numpy, and `KerasCallback` needs tf_keras. Outside Muster, `step` returns False, and `done` does not exit.

MUSTER_FD is `NUMBER:INODE` of an inherited socket (AF_UNIX, SOCK_STREAM) to the agent. In a program that the script
starts, another file may have this number, but not this inode. Each message is a JSON object on one line of at most
64 KiB. Both sides ignore unknown keys. From the helper:

    {"hello": 1}    the first message, with the version of this protocol
    {"progress": {"generation": "1.2", "step": 61, "split": 0, "batch": 32, "noticed": 17, "steps": 59,
                  "samples": 1888, "compute_us": 90000, "wall_us": 180000, "values": {"loss": 0.31}, "saved": 50}}
                    the newest progress, at most about four times a second. `step` is null before the first step.
                    `batch` is this rank's size in `split`, and `noticed` is the version in the newest notice, or 0. The
                    numbers from `steps` to `wall_us` are totals of this split, without its first step and short last
                    batches. `compute_us` is the time inside `measure`. `values` are the newest values that `log` got.
                    `saved` is the last step whose state was saved or restored. It is null if it is unknown.
    {"leaving": {"step": 61, "agreed": true}}
                    the script exits with code 75. If `agreed` is true, all ranks leave at this step, and the script
                    saves first. If `agreed` is false, only this rank leaves: it is the chief, which has saved, or it is
                    a rank that has lost a peer.

To the helper, after `hello`:

    {"notice": {"leave": true, "reason": "worker-2 joins", "split": {"version": 1, "sizes": [64, 32]}}}
                    all present wishes of the master. A notice replaces the previous notice. Each key is optional.
                    `sizes` are batch sizes by rank. `version` increases within a start. Version 0 means the sizes
                    with which the start began: the list in MUSTER_BATCH_SIZES, or equal sizes without this variable.
"""

import atexit
import collections
import contextlib
import faulthandler
import functools
import hashlib
import json
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time

RESTART_CODE = 75  # EX_TEMPFAIL in sysexits.h
LINGER_SECONDS = 0.3  # a slower rank may still fetch its part of the last all-reduce from this process
CHIEF_LINGER_SECONDS = 0.4  # the chief exits last, because TensorFlow in the other ranks needs the chief's service
EXIT_SECONDS = 5.0  # an exit function may wait for a rank that has ended
PROGRESS_SECONDS = 0.25
LINE_BYTES = 64 * 1024
VALUES_MAX = 8  # names in one report
CHIEF_SECONDS = 1.0  # a longer wait for the chief saves no time: gRPC itself tries again after a second
CHIEF_PAUSE_SECONDS = 0.005
CHECK_SECONDS = 1.0  # maximum time between two checks of `KerasCallback`
EXACT = 2**24  # a float32 represents every integer up to this number, so smaller sums of versions are exact


class Job:
    """This process as a rank of the job. Create one Job in each process, before the strategy.

    `global_batch` is the number of samples of all ranks in a step. It can be left out if the job has --global-batch.
    `ahead` allows another thread to take batches early from the sampler: this many batches beyond the next batch.
    """

    def __init__(self, global_batch=None, environ=os.environ, ahead=0):
        self.rank = int(environ.get("RANK") or 0)
        self.world = int(environ.get("WORLD_SIZE") or 1)
        if not 0 <= self.rank < self.world:
            raise ValueError(f"RANK {self.rank} is not less than WORLD_SIZE {self.world}")
        self.is_chief = self.rank == 0 and environ.get("MUSTER_ROLE") not in ("ps", "evaluator")
        self.generation = environ.get("MUSTER_GENERATION", "")
        sizes = first_sizes(global_batch, self.world, environ.get("MUSTER_BATCH_SIZES"))
        self.global_batch, self.ahead = sum(sizes), ahead
        self._splits = [(0, 0, sizes)]  # (first batch, version, sizes) of each split; the first split is in use
        self._stepped = 0  # completed steps, and so also the number of the next batch
        self._samplers = []
        self._batches = threading.Condition()  # held to change the splits, or what the samplers have taken
        self._stepper = threading.get_ident()  # the thread that calls `step`
        # Removes the variable, so that a child process does not use the socket.
        self._channel = Channel.inherited(environ.pop("MUSTER_FD", None))
        self._got_sigterm = False
        self._leave_reason = None  # None unless the newest notice says to leave
        self._noticed = None  # version and sizes of the split in the newest notice
        self._offered = None  # version and sizes of the split whose version the last `signal` returned
        self._proposed = 0  # the version on which the ranks vote in the next step, or 0
        self._is_leaving = False
        self._is_exiting = False
        self._step = None
        self._save = None  # the function of `saves`
        self._saved = None  # the last saved step, if it is known
        self._is_updating = False  # True from `take` or `signal` to the end of `step`
        self._boundary = threading.RLock()  # held by a save, at the beginning of an update, and at the script's end
        self._is_counted = False  # False in the first step of a split, which is slow, and while `fit` validates
        self._compute_ns, self._began_ns = 0, 0  # time in `measure` during this step; clock when this step began
        self._totals = (0, 0, 0, 0)  # steps, samples, compute_ns, wall_ns of this split
        self._values = {}  # the newest values of `log`
        if self._channel is not None and self.rank > 0 and "tensorflow" in sys.modules:
            await_chief(environ.get("TF_CONFIG"))

    @property
    def _split(self):
        """The version of `sizes`."""
        return self._splits[0][1]

    @property
    def sizes(self):
        """The number of samples of each rank in a full step. Only `step` changes it, on all ranks at the same step."""
        return self._splits[0][2]

    @property
    def batch(self):
        """The number of this rank's samples in a full step."""
        return self.sizes[self.rank]

    def started(self):
        """Call this after you create the strategy: its creation replaces the handler of SIGTERM."""
        self._began_ns = time.perf_counter_ns()
        if self._channel is None:
            return
        owner = os.getpid()

        def on_sigterm(number, _frame):
            if os.getpid() == owner:
                self._got_sigterm = True
            else:  # SIGTERM must still end a forked data loader.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, on_sigterm)
        self._channel.write({"hello": 1})
        self._channel.progress = self._progress()
        # The step of an exception must be known exactly, so the last report is also sent when the script ends.
        atexit.register(lambda: os.getpid() == owner and self._channel.send_progress())
        threading.Thread(target=self._channel.talk, args=(self._on_notice, self._leave_alone), daemon=True).start()

    def saves(self, save):
        """Decorates the function that saves the state. If the chief must leave while no step is in progress, for
        example during an evaluation, a thread calls the function without arguments and ends the process. The next
        step does not begin during a save."""

        @functools.wraps(save)
        def saved(*arguments, **named):
            with self._boundary:
                result = save(*arguments, **named)
                self._note_saved()
            return result

        self._save = saved
        return saved

    def signal(self):
        """Two numbers for this step's all-reduce, as an array if numpy is loaded: 1 if this rank must leave, otherwise
        0; and the version of its new split, or 0. While the ranks vote on a version, a rank that has another version
        returns 0."""
        self._begin_update()
        noticed = self._noticed  # a copy, because the channel's thread may replace the attribute
        agreed = self._splits[-1][1]
        is_offered = noticed and noticed[0] > agreed and self._proposed in (0, noticed[0])
        self._offered = noticed if is_offered else None
        numbers = (float(self._must_leave()), float(self._offered[0] if self._offered else 0))
        # TensorFlow traces a function again for other Python numbers, but not for another array.
        numpy = sys.modules.get("numpy")
        return numpy.array(numbers, "float32") if numpy else numbers

    def step(self, step, summed):
        """Call this after each step, with the sum of all ranks' signals. If it returns True, save and call `leave`."""
        if self._step is not None and step < self._step:
            raise ValueError(f"step {step} came after step {self._step}: steps must not go backwards in one start")
        leave, versions, self._stepper = float(summed[0]), float(summed[1]), threading.get_ident()
        if self._step is None and self._save:
            self._saved = step - 1 if step > 0 else None
        with self._batches:  # a thread that takes batches sees all of this step or nothing
            return self._end_step(step, leave, versions)

    def _end_step(self, step, leave, versions):
        now = time.perf_counter_ns()
        samples, is_full = self._finish_batch()
        if self._is_counted and is_full:
            steps, before, compute_ns, wall_ns = self._totals
            wall_ns += now - self._began_ns
            self._totals = (steps + 1, before + samples, compute_ns + self._compute_ns, wall_ns)
        self._step, self._is_counted, self._compute_ns, self._began_ns = step, True, 0, now
        # Different versions can have the same sum as equal versions: 0 + 1 + 2 = 1 + 1 + 1. So a split needs two steps.
        # After the first step, all ranks propose the mean of their versions, if it is a whole number. In the second
        # step, each rank offers the proposed version or 0. All ranks see the same sums, so they agree on the proposal
        # and on the result.
        offered, self._offered = self._offered, None
        is_agreed = offered and self._proposed and versions == self.world * self._proposed
        self._begin_batch(offered if is_agreed else None)
        is_proposal = not self._proposed and versions % self.world == 0
        self._proposed = int(versions) // self.world if is_proposal else 0
        if self._channel is not None:
            self._channel.progress = self._progress()
        if leave > 0:
            self._announce_leaving(agreed=True)
        self._is_updating = False
        return leave > 0

    def _finish_batch(self):
        """This rank's number of samples in the step that has ended, and whether its batch was full."""
        taken = [sampler._finish() for sampler in self._samplers if sampler._pending]
        return (taken[0][0], all(is_full for _, is_full in taken)) if taken else (self.batch, True)

    def _begin_batch(self, agreed):
        """Counts a completed step. The agreed split, if there is one, begins with the first batch that no rank can have
        taken yet. All ranks agree at the same step, so for all ranks this is the same batch."""
        self._stepped += 1
        if agreed:
            self._splits.append((self._stepped + self.ahead, *agreed))
        if len(self._splits) > 1 and self._splits[1][0] <= self._stepped:
            del self._splits[0]
            self._is_counted, self._totals = False, (0, 0, 0, 0)
        self._batches.notify_all()

    @contextlib.contextmanager
    def measure(self):
        """Measures computation that does not wait for other ranks, to show this rank's own speed."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._compute_ns += time.perf_counter_ns() - began_ns

    def log(self, **values):
        """Reports values, such as `loss=0.31`, with the next step; at most 8 names. Leaves out NaN and infinity."""
        newest = self._values | {name: float(value) for name, value in values.items()}
        if len(newest) > VALUES_MAX:
            raise ValueError(f"cannot log {sorted(newest)}: a job has at most {VALUES_MAX} values")
        self._values = newest

    def sampler(self, count, seed):
        """Returns a sampler over the indexes 0 to `count` - 1. With `ahead`, a job has one sampler."""
        if self.ahead and self._samplers:
            raise ValueError("a job with `ahead` has one sampler")
        self._samplers.append(Sampler(self, count, seed))
        return self._samplers[-1]

    def leave(self):
        """Exits with code 75. Muster then starts the script again."""
        with self._boundary:
            self._announce_leaving(agreed=False)
        self._linger(self._began_ns)
        self._exit(RESTART_CODE)

    def done(self):
        """Exits with code 0. Outside Muster it returns."""
        with self._boundary:
            self._is_leaving = True
        self._linger(time.perf_counter_ns())
        if self._channel is not None:
            self._channel.send_progress()
            self._exit(0)

    def _must_leave(self):
        return self._got_sigterm or self._leave_reason is not None

    def _begin_update(self):
        with self._boundary:
            self._is_updating = True

    def _leave_alone(self):
        """Saves and exits if the chief must leave and no step is in progress. Between two steps, the chief's variables
        are those of the last step, and no rank can complete another step without the chief.

        Runs in the channel's thread, because the main thread may be in a long call. The main thread may also be tracing
        a function with TensorFlow. The graph and the strategy of the trace must not apply to the save. TensorFlow
        stores both for each thread.
        """
        if not (self._must_leave() and self.is_chief and self._save) or self._is_updating:
            return
        with self._boundary:
            if self._is_updating or self._is_leaving or self._step is None:
                return
            try:
                if self._saved != self._step:
                    self._save()
            except Exception as error:
                self._save = None
                return warn(f"cannot save at step {self._step}, leaving after the next step: {error!r}")
            self._announce_leaving(agreed=False)
            self._exit(RESTART_CODE)

    def _note_saved(self):
        self._saved = self._step
        if self._channel is not None and self._step is not None:
            self._channel.progress = self._progress()
            self._channel.send_progress()

    def _linger(self, since_ns):
        if self.world > 1:
            seconds = CHIEF_LINGER_SECONDS if self.rank == 0 else LINGER_SECONDS
            time.sleep(max(0, seconds - (time.perf_counter_ns() - since_ns) / 1e9))

    def _exit(self, code):
        if self._is_exiting:  # an exit function has called `leave` or `done`
            return
        self._is_exiting = True
        functions = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
        with contextlib.suppress(RuntimeError):  # Python is ending, and starts no thread
            functions.start()
            functions.join(EXIT_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # TensorFlow's own cleanup takes seconds.

    def _announce_leaving(self, agreed):
        if self._is_leaving or self._channel is None:
            return
        self._is_leaving = True
        if self.is_chief and self._must_leave():
            warn(f"leaving at step {self._step}: {self._leave_reason or 'this process got SIGTERM'}")
        elif self.is_chief and agreed:
            warn(f"leaving at step {self._step}: another rank must leave")
        self._channel.send_progress()
        self._channel.write({"leaving": {"step": self._step, "agreed": agreed}})

    def _progress(self):
        steps, samples, compute_ns, wall_ns = self._totals
        times = {"compute_us": compute_ns // 1000, "wall_us": wall_ns // 1000}
        noticed = self._noticed
        split = {"split": self._split, "batch": self.batch, "noticed": noticed[0] if noticed else 0}
        counts = {**split, "steps": steps, "samples": samples, **times}
        values = {name: value for name, value in self._values.items() if math.isfinite(value)}
        newest = {"step": self._step, **counts, "values": values, "saved": self._saved}
        return {"progress": {"generation": self.generation, **newest}}

    def _on_notice(self, notice):
        """Runs in the channel's thread."""
        self._leave_reason = notice.get("reason", "") if notice.get("leave") else None
        self._noticed = None
        if notice.get("split"):
            version, sizes = notice["split"]["version"], notice["split"]["sizes"]
            are_counts = len(sizes) == self.world and all(type(size) is int and size >= 0 for size in sizes)
            if not are_counts or sum(sizes) != self.global_batch or version * self.world >= EXACT:
                raise ValueError(f"split {sizes} does not fit {self.world} ranks and a batch of {self.global_batch}")
            self._noticed = (version, sizes)


class Sampler:
    """Chooses the samples of each step. An epoch is one permutation of all samples, cut into global batches. Each batch
    is divided among the ranks.

    The state does not depend on the number of ranks or on the sizes, so an epoch continues after a resize with its
    unused samples.
    """

    def __init__(self, job, count, seed):
        import numpy

        self._numpy, self._job, self._count, self._seed = numpy, job, count, seed
        # For each batch that was taken and not stepped: this rank's number of samples, whether the batch is full, and
        # the state after the batch.
        self._pending = collections.deque()
        self.restore((0, 0))

    def state(self):
        """The epoch, and the position of the epoch's first batch that no step has used. Save both numbers with the
        model."""
        return self._trained

    def restore(self, state):
        """Continues at a saved state."""
        epoch, position = (int(number) for number in state)
        if not 0 <= position < self._count:
            raise ValueError(f"position {position} is outside the data set of {self._count} samples")
        with self._job._batches:
            self._pending.clear()
            self._next = self._trained = (epoch, position)
            self._order = None

    def take(self):
        """This rank's part of the next batch: indexes, and weights with a sum of 1 over all ranks.

        The last batch of an epoch may be shorter. Its parts shrink in proportion. Instead of an empty part, a rank gets
        one sample with weight 0.

        A thread other than the one that calls `step` waits here until at most `ahead` earlier batches are not stepped.
        """
        job = self._job
        is_stepper = threading.get_ident() == job._stepper
        if is_stepper:
            job._begin_update()
        with job._batches:
            if len(self._pending) > job.ahead and is_stepper:
                raise RuntimeError(f"a batch was taken before the step of an earlier one: create Job(ahead={len(self._pending)})")
            job._batches.wait_for(lambda: len(self._pending) <= job.ahead)
            number = job._stepped + len(self._pending)
            return self._cut(next(sizes for begin, _, sizes in reversed(job._splits) if begin <= number))

    def _finish(self):
        """This rank's number of samples in the oldest batch, which a step has used, and whether that batch was full."""
        size, is_full, self._trained = self._pending.popleft()
        return size, is_full

    def _cut(self, sizes):
        """Takes a batch with these sizes."""
        (epoch, position), job = self._next, self._job
        if self._order is None:
            digest = hashlib.sha256(f"{self._seed} {epoch}".encode()).digest()
            # RandomState gives the same permutation in all versions of numpy.
            random = self._numpy.random.RandomState(int.from_bytes(digest[:4], "big"))
            self._order = random.permutation(self._count)
        order, batch = self._order, min(job.global_batch, self._count - position)
        is_full = batch == job.global_batch
        sizes = sizes if is_full else shares(batch, sizes)
        begin, size = position + sum(sizes[: job.rank]), sizes[job.rank]
        if position + batch == self._count:
            self._next, self._order = (epoch + 1, 0), None
        else:
            self._next = (epoch, position + batch)
        self._pending.append((size, is_full, self._next))
        if size == 0:
            return order[:1], self._numpy.zeros(1, "float32")
        return order[begin : begin + size], self._numpy.full(size, 1 / batch, "float32")


class Channel:
    """The socket to the agent. If the socket breaks, or if the agent does not read, training continues."""

    @classmethod
    def inherited(cls, descriptor):
        """The channel of MUSTER_FD, or None outside Muster."""
        if not descriptor:
            return None
        try:
            number, inode = (int(part) for part in descriptor.split(":"))
            if os.fstat(number).st_ino != inode:
                raise ValueError("another file has this number")
            return cls(socket.socket(fileno=number))
        except (ValueError, OSError) as error:
            warn(f"cannot leave or report progress, because MUSTER_FD={descriptor} is no socket of the agent: {error}")
            return None

    def __init__(self, connection):
        connection.set_inheritable(False)
        connection.settimeout(PROGRESS_SECONDS)
        self._connection, self._unsent, self._lock = connection, bytearray(), threading.Lock()
        self.progress, self._sent = None, None  # the newest progress; the last progress that was put into `_unsent`

    def write(self, message):
        """Sends a message. If the agent does not read, a later call sends the rest of the message."""
        with self._lock:
            self._unsent += json.dumps(message).encode() + b"\n"
            self._flush()

    def send_progress(self):
        """Sends the unsent bytes. Then sends the newest progress, if it was not sent before."""
        with self._lock:
            self._flush()
            newest = self.progress
            if newest is not self._sent and not self._unsent:
                self._unsent += json.dumps(newest).encode() + b"\n"
                self._sent = newest
                self._flush()

    def _flush(self):
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent, socket.MSG_NOSIGNAL)]
        except OSError:  # a timeout, or the agent has closed its end
            pass

    def talk(self, on_notice, on_turn):
        """Sends progress and receives notices until the agent closes its end. Calls `on_turn` after each notice, and a
        few times a second."""
        received = b""
        while True:
            on_turn()
            self.send_progress()
            try:
                part = self._connection.recv(LINE_BYTES)
            except TimeoutError:
                continue
            except OSError:
                return
            *lines, received = (received + part).split(b"\n")
            for line in lines:
                try:
                    message = json.loads(line)
                    if "notice" in message:
                        on_notice(message["notice"])
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    warn(f"ignored a message of the agent: {error}")
            if not part or len(received) > LINE_BYTES:
                return


def KerasCallback(job, folder):
    """A callback for `fit` of tf_keras. It restores from `folder`, and saves there after each epoch. If the ranks must
    leave, it saves and exits.

    Pass `initial_epoch=callback.epoch` to `fit`. After a restart, `fit` repeats the interrupted epoch from its
    beginning, with the weights that were saved last. An epoch whose validation was interrupted is not repeated.
    """
    import tensorflow as tf
    import tf_keras

    latest = tf.train.latest_checkpoint(folder)
    saved_step, saved_epoch = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
    if latest:
        tf.train.Checkpoint(step=saved_step, epoch=saved_epoch).restore(latest).expect_partial()

    class Callback(tf_keras.callbacks.Callback):
        step, epoch = int(saved_step), int(saved_epoch)
        _is_in_epoch = False

        def on_train_begin(self, logs=None):
            nonlocal latest
            strategy = self.model.distribute_strategy
            self._checkpoint = tf.train.Checkpoint(model=self.model, step=saved_step, epoch=saved_epoch)
            if latest:
                self._checkpoint.restore(latest)
                job._saved = self.step
                latest = None  # A second `fit` continues with the present weights.
            add = lambda numbers: strategy.reduce("sum", strategy.run(tf.identity, args=(numbers,)), axis=None)
            self._add = tf.function(add, input_signature=[tf.TensorSpec([3])])
            self._add(tf.zeros(3))  # traces the function
            began = time.perf_counter()
            self._add(tf.zeros(3))
            self._cost = time.perf_counter() - began
            self._check_next()

        def on_epoch_begin(self, epoch, logs=None):
            self._is_in_epoch = True
            self.epoch = epoch
            self._check_next()

        def on_train_batch_end(self, batch, logs=None):
            self.step += 1
            self._end_batch()

        def on_test_begin(self, logs=None):
            if self._is_in_epoch:  # false in a call of `evaluate`
                self.epoch += 1
                self._check_next()

        def on_test_batch_end(self, batch, logs=None):
            if self._is_in_epoch:
                job._is_counted = False
                self._end_batch()

        def on_epoch_end(self, epoch, logs=None):
            self._is_in_epoch = False
            self.epoch = epoch + 1
            self._save()

        def _check_next(self):
            """Checks after the next batch, because the time of a batch changes now."""
            self._checked, self._every, self._left = time.perf_counter(), 1, 1

        def _end_batch(self):
            self._left -= 1
            if job.step(self.step, (0.0 if self._left else self._check(), 0.0)):
                self._save()
                job.leave()

        def _check(self):
            """Sums the ranks' wishes to leave, the costs of a check and the times of a batch. From these sums, all
            ranks compute the same batch for the next check. The checks take at most 1 % of the time. If that means less
            than one check in CHECK_SECONDS, there is one check in CHECK_SECONDS."""
            seconds = (time.perf_counter() - self._checked) / self._every
            leave, cost, seconds = self._add(tf.constant([float(job.signal()[0]), self._cost, seconds])).numpy()
            self._checked = time.perf_counter()
            self._every = self._left = max(1, math.ceil(min(100 * cost, job.world * CHECK_SECONDS) / seconds))
            return leave

        def _save(self):
            saved_step.assign(self.step)
            saved_epoch.assign(self.epoch)
            # All ranks must save, because saving sums some variables over all ranks. Only the chief's files are kept.
            kept = contextlib.nullcontext(folder) if job.is_chief else tempfile.TemporaryDirectory(prefix="muster-")
            with kept as place:
                manager = tf.train.CheckpointManager(self._checkpoint, place, max_to_keep=3)
                manager.save(checkpoint_number=self.step)
            job._note_saved()

    return Callback()


def await_chief(tf_config):
    """Waits until the chief listens, so that this process's strategy connects to the chief at the first attempt. Waits
    at most CHIEF_SECONDS."""
    try:
        cluster = json.loads(tf_config)["cluster"]
        if "ps" in cluster:  # with parameter servers, the strategy does not connect to the chief
            return
        host, port = [*cluster.get("chief", ()), *cluster["worker"]][0].rsplit(":", 1)
        address = host.strip("[]"), int(port)
    except (TypeError, ValueError, LookupError, AttributeError):  # no TF_CONFIG, or TensorFlow does not use it
        return
    deadline = time.monotonic() + CHIEF_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            return socket.create_connection(address, left).close()
        except OSError:
            time.sleep(CHIEF_PAUSE_SECONDS)


def first_sizes(global_batch, world, listed):
    """The sizes with which a start begins, by rank: those of the job, or equal sizes."""
    sizes = json.loads(listed) if listed else []
    if len(sizes) == world:
        if global_batch not in (None, sum(sizes)):
            raise ValueError(f"Job has a global batch of {global_batch}, but --global-batch is {sum(sizes)}")
        return sizes
    if global_batch is None and sizes:
        raise ValueError(f"pass the global batch to Job: the job has sizes for {len(sizes)} ranks, but WORLD_SIZE is {world}")
    if global_batch is None:
        raise ValueError("pass the global batch to Job, or start the job with --global-batch")
    return shares(global_batch, [1] * world)


def shares(total, weights):
    """Splits `total` into whole numbers in proportion to `weights`. The largest remainders are rounded up."""
    parts = [divmod(total * weight, sum(weights)) for weight in weights]
    sizes = [whole for whole, _ in parts]
    for rank in sorted(range(len(parts)), key=lambda rank: -parts[rank][1])[: total - sum(sizes)]:
        sizes[rank] += 1
    return sizes


def register_stacks():
    """Does the same as `register` in sitecustomize.py, which explains it. Python has not run that module if the user's
    own sitecustomize.py comes first."""
    number, _, inode = os.environ.pop("MUSTER_STACKS_FD", "").partition(":")
    with contextlib.suppress(ValueError, OSError, RuntimeError, AttributeError):
        if number and os.fstat(int(number)).st_ino == int(inode):
            os.set_inheritable(int(number), False)
            faulthandler.register(16, file=int(number), all_threads=True)


def warn(text):
    print(f"muster: {text}", file=sys.stderr, flush=True)


register_stacks()
