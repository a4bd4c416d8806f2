"""Tests of muster.py. `scripts/test` runs them. To run only these: python -m unittest discover agent/python/tests"""

import hashlib
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
import unittest
import unittest.mock
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(FOLDER))
import muster

DEADLINE_SECONDS = 60


def ranks(world, global_batch=96):
    """One Job for each rank, without a socket."""
    return [muster.Job(global_batch, {"RANK": str(rank), "WORLD_SIZE": str(world)}) for rank in range(world)]


def boundary(jobs, step):
    """Completes one step on all ranks, as an all-reduce does. Returns the results of `step`, by rank."""
    signals = [job.signal() for job in jobs]
    summed = [sum(numbers) for numbers in zip(*signals)]
    return [job.step(step, summed) for job in jobs]


def train(samplers, step):
    """Completes one step on all ranks with the next batch. Returns the parts of the batch, by rank."""
    parts = [sampler.take() for sampler in samplers]
    boundary([sampler._job for sampler in samplers], step)
    return parts


class Script:
    """A child process that runs Python code, and the agent's end of its socket."""

    def __init__(self, test, code, **variables):
        agent, inherited = socket.socketpair()
        number = inherited.fileno()
        socket_variable = {"MUSTER_FD": f"{number}:{os.fstat(number).st_ino}"}
        environment = {**os.environ, "PYTHONPATH": str(FOLDER), **socket_variable, **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import os, sys, muster\n" + textwrap.dedent(code)],
            env=environment,
            pass_fds=[inherited.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        inherited.close()
        agent.settimeout(DEADLINE_SECONDS)
        self.socket, self.lines = agent, agent.makefile("r")
        test.addCleanup(self.close)

    def close(self):
        self.process.kill()
        self.process.communicate()
        self.lines.close()
        self.socket.close()

    def receive(self):
        """The next message, or None at the end."""
        line = self.lines.readline()
        return json.loads(line) if line else None

    def rest(self):
        """All further messages."""
        return list(iter(self.receive, None))

    def send(self, line):
        self.socket.sendall(line.encode() + b"\n")

    def end(self):
        """Exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, out, err


TRAIN_UNTIL_LEAVING = """
    job = muster.Job(global_batch=96)
    job.started()
    step = 0
    while not job.step(step, job.signal()):
        step += 1
    print("saves at", step)
    job.leave()
"""


class Agreement(unittest.TestCase):
    def test_all_ranks_leave_at_the_first_step_that_any_rank_signals(self):
        dice = random.Random(1)
        for world in (1, 2, 3, 8):
            for _ in range(50):
                jobs = ranks(world)
                told = [dice.randrange(30) for _ in jobs]
                for step in range(31):
                    for job, at in zip(jobs, told):
                        if at == step:
                            job._on_notice({"leave": True, "reason": "a worker joins"})
                    left = boundary(jobs, step)
                    self.assertEqual(left, [step >= min(told)] * world)

    def test_a_notice_without_leave_withdraws_an_earlier_leave(self):
        jobs = ranks(2)
        jobs[1]._on_notice({"leave": True})
        jobs[1]._on_notice({"leave": False, "split": None})
        self.assertEqual(boundary(jobs, 1), [False, False])

    def test_a_split_is_used_one_step_after_all_ranks_have_it(self):
        dice = random.Random(2)
        for _ in range(200):
            jobs = ranks(4)
            told = [dice.randrange(10) for _ in jobs]
            for step in range(10):
                for job, at in zip(jobs, told):
                    if at == step:
                        job._on_notice({"split": {"version": 1, "sizes": [60, 20, 10, 6]}})
                boundary(jobs, step)
                expected = [60, 20, 10, 6] if step > max(told) else [24] * 4
                self.assertEqual([job.batch for job in jobs], expected)

    def test_ranks_with_two_versions_of_a_split_wait_for_the_newer_one(self):
        old, new = {"version": 1, "sizes": [50, 40, 6]}, {"version": 2, "sizes": [6, 50, 40]}
        for holders in range(1, 2**3 - 1):
            jobs = ranks(3)
            for rank, job in enumerate(jobs):
                job._on_notice({"split": new if holders >> rank & 1 else old})
            boundary(jobs, 1)
            self.assertEqual([job.sizes for job in jobs], [[32, 32, 32]] * 3)
            for job in jobs:
                job._on_notice({"split": new})
            boundary(jobs, 2)
            boundary(jobs, 3)
            self.assertEqual([job.sizes for job in jobs], [[6, 50, 40]] * 3)

    def test_versions_0_1_and_2_on_three_ranks_change_no_rank(self):
        jobs = ranks(3)
        for version in (1, 2):
            jobs[version]._on_notice({"split": {"version": version, "sizes": [60, 30, 6]}})
        for step in range(5):
            boundary(jobs, step)
            self.assertEqual([job._split for job in jobs], [0] * 3)

    def test_all_ranks_change_to_a_version_at_the_same_step_and_only_if_all_have_it(self):
        dice = random.Random(3)
        for world in (1, 2, 3, 4, 8):
            for _ in range(200):
                jobs, received, used = ranks(world), [0] * world, 0
                for step in range(20):
                    for rank, job in enumerate(jobs):
                        if received[rank] < 5 and dice.random() < 0.2:
                            received[rank] += dice.randint(1, 5 - received[rank])
                            job._on_notice({"split": {"version": received[rank], "sizes": job.sizes}})
                    boundary(jobs, step)
                    self.assertEqual([job._split for job in jobs], [jobs[0]._split] * world, received)
                    if jobs[0]._split != used:
                        used = jobs[0]._split
                        self.assertEqual(received, [used] * world)
                for job in jobs:
                    job._on_notice({"split": {"version": 5, "sizes": job.sizes}})
                for step in range(20, 23):
                    boundary(jobs, step)
                self.assertEqual([job._split for job in jobs], [5] * world)

    def test_a_split_that_arrives_between_signal_and_step_does_not_change_this_step(self):
        (job,) = ranks(1)
        used = []
        for step in range(6):
            summed = job.signal()
            if step in (0, 2):
                job._on_notice({"split": {"version": 1 + step, "sizes": [96]}})
            job.step(step, summed)
            used.append(job._split)
        self.assertEqual(used, [0, 0, 1, 1, 3, 3])

    def test_a_split_with_invalid_sizes_or_for_another_number_of_ranks_or_another_batch_is_refused(self):
        (job,) = ranks(1)
        for sizes in ([48, 48], [95], [96.0], [-1, 97]):
            with self.assertRaisesRegex(ValueError, "does not fit 1 ranks and a batch of 96"):
                job._on_notice({"split": {"version": 1, "sizes": sizes}})
            self.assertEqual(list(job.signal()), [0.0, 0.0])

    def test_a_step_that_goes_backwards_is_refused(self):
        (job,) = ranks(1)
        job.step(61, job.signal())
        with self.assertRaisesRegex(ValueError, "step 60 came after step 61"):
            job.step(60, job.signal())


class Sampling(unittest.TestCase):
    def consumed(self, seen):
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()

    def test_an_epoch_uses_every_sample_once_across_resizes(self):
        count, state, epochs = 1500, (0, 0), {}
        for world, steps in ((2, 7), (4, 5), (3, 30)):
            samplers = [job.sampler(count, seed=1) for job in ranks(world)]
            for sampler in samplers:
                sampler.restore(state)
            for step in range(steps):
                epoch = samplers[0].state()[0]
                parts = train(samplers, step)
                for indexes, weights in parts:
                    epochs.setdefault(epoch, []).extend(int(i) for i, w in zip(indexes, weights) if w > 0)
                self.assertAlmostEqual(sum(float(weights.sum()) for _, weights in parts), 1, places=6)
            states = {sampler.state() for sampler in samplers}
            self.assertEqual(len(states), 1)
            state = states.pop()
        self.assertEqual(state, (2, 960))
        for epoch in (0, 1):
            self.assertEqual(self.consumed(sorted(epochs[epoch])), self.consumed(list(range(count))))
        self.assertNotEqual(epochs[0], epochs[1])

    def test_the_global_batches_do_not_depend_on_the_number_of_ranks(self):
        def batches(world):
            samplers = [job.sampler(250, seed="a") for job in ranks(world)]
            return [[int(i) for indexes, _ in train(samplers, step) for i in indexes] for step in range(6)]

        self.assertEqual(batches(1), batches(2))
        self.assertEqual(batches(1), batches(3))

    def test_a_short_last_batch_is_divided_in_proportion_to_the_split(self):
        jobs = ranks(3)
        for job in jobs:
            job._on_notice({"split": {"version": 1, "sizes": [48, 36, 12]}})
        for step in range(2):
            boundary(jobs, step)
        samplers = [job.sampler(96 + 8, seed=1) for job in jobs]
        self.assertEqual([len(indexes) for indexes, _ in train(samplers, 2)], [48, 36, 12])
        last = train(samplers, 3)
        self.assertEqual([len(indexes) for indexes, _ in last], [4, 3, 1])
        self.assertEqual({float(weight) for _, weights in last for weight in weights}, {1 / 8})
        self.assertEqual([sampler.state() for sampler in samplers], [(1, 0)] * 3)

    def test_a_rank_whose_part_is_empty_gets_one_sample_of_weight_0(self):
        samplers = [job.sampler(97, seed=1) for job in ranks(2)]
        train(samplers, 0)
        (_, first), (indexes, second) = train(samplers, 1)
        self.assertEqual((first.tolist(), len(indexes), second.tolist()), ([1.0], 1, [0.0]))

    def test_a_batch_larger_than_the_data_is_the_whole_data(self):
        sampler = ranks(1)[0].sampler(10, seed=1)
        self.assertEqual(sorted(train([sampler], 0)[0][0].tolist()), list(range(10)))
        self.assertEqual(sampler.state(), (1, 0))

    def test_a_restored_sampler_continues_with_the_next_batch(self):
        first, second = (ranks(1)[0].sampler(500, seed=3) for _ in range(2))
        for step in range(8):
            train([first], step)
        second.restore(first.state())
        self.assertEqual(second.take()[0].tolist(), first.take()[0].tolist())

    def test_a_state_of_a_larger_data_set_is_refused(self):
        with self.assertRaisesRegex(ValueError, "position 960 is outside the data set of 500 samples"):
            ranks(1)[0].sampler(500, seed=1).restore((0, 960))

    def test_with_prefetch_and_new_sizes_every_sample_is_used_once_an_epoch_and_by_the_same_step(self):
        for seed in range(40):
            chance = random.Random(seed)
            ahead, world, count = chance.randrange(5), chance.randint(1, 4), chance.randint(40, 300)
            jobs = [muster.Job(24, {"RANK": str(rank), "WORLD_SIZE": str(world)}, ahead) for rank in range(world)]
            samplers = [job.sampler(count, seed) for job in jobs]
            queues, epochs, state = [[] for _ in jobs], {}, (0, 0)
            for step in range(60):
                if chance.random() < 0.2:
                    sizes = muster.shares(24, [chance.randint(1, 9) for _ in jobs])
                    for job in jobs:
                        job._on_notice({"split": {"version": step + 1, "sizes": sizes}})
                for job, sampler, taken in zip(jobs, samplers, queues):
                    # Each rank has taken another number of batches, at least the one of this step.
                    while len(taken) < chance.randint(1, ahead + 1):
                        taken.append(sampler.take())
                parts = [taken.pop(0) for taken in queues]
                used = [int(i) for indexes, weights in parts for i, weight in zip(indexes, weights) if weight > 0]
                boundary(jobs, step)
                self.assertAlmostEqual(sum(float(weights.sum()) for _, weights in parts), 1, places=5)
                self.assertEqual(len({(job._split, tuple(job.sizes)) for job in jobs}), 1)
                epochs.setdefault(state[0], []).extend(used)
                states = {sampler.state() for sampler in samplers}
                self.assertEqual(len(states), 1)
                state = states.pop()
                self.assertEqual(len(epochs[max(epochs)]), state[1] or count)
            for epoch in range(state[0]):
                self.assertEqual(sorted(epochs[epoch]), list(range(count)))

    def test_a_thread_that_takes_batches_sees_new_sizes_from_the_same_batch_on_as_all_ranks(self):
        world, ahead, steps = 2, 2, 3000
        jobs = [muster.Job(24, {"RANK": str(rank), "WORLD_SIZE": str(world)}, ahead) for rank in range(world)]
        samplers = [job.sampler(24 * 50, seed=1) for job in jobs]
        queues = [queue.Queue() for _ in jobs]

        def prefetch(sampler, taken):
            for _ in range(steps):
                taken.put(len(sampler.take()[0]))

        threads = [threading.Thread(target=prefetch, args=pair, daemon=True) for pair in zip(samplers, queues)]
        for thread in threads:
            thread.start()
        for step in range(steps):
            if step % 5 == 0:
                for job in jobs:
                    job._on_notice({"split": {"version": step + 1, "sizes": [step % 11 + 1, 23 - step % 11]}})
            parts = [taken.get(timeout=DEADLINE_SECONDS) for taken in queues]
            self.assertEqual((sum(parts), parts), (24, jobs[0].sizes), step)
            boundary(jobs, step)

    def test_a_restored_sampler_forgets_the_batches_that_no_step_has_used(self):
        job = muster.Job(24, {}, ahead=2)
        sampler = job.sampler(100, seed=1)
        first = [sampler.take()[0].tolist() for _ in range(3)]
        boundary([job], 0)
        sampler.restore(sampler.state())
        self.assertEqual([sampler.take()[0].tolist() for _ in range(2)], first[1:])

    def test_a_batch_that_is_taken_too_early_is_refused_or_waits_for_a_step(self):
        job = muster.Job(24, {}, ahead=1)
        sampler = job.sampler(100, seed=1)
        for _ in range(2):
            sampler.take()
        with self.assertRaisesRegex(RuntimeError, r"create Job\(ahead=2\)"):
            sampler.take()
        with self.assertRaisesRegex(ValueError, "one sampler"):
            job.sampler(100, seed=2)
        took = threading.Event()
        thread = threading.Thread(target=lambda: (sampler.take(), took.set()))
        thread.start()
        self.assertFalse(took.is_set())
        boundary([job], 0)
        self.assertTrue(took.wait(DEADLINE_SECONDS))
        thread.join()
        self.assertEqual(sampler.state(), (0, 24))

    def test_shares_are_proportional_and_add_up_to_the_total(self):
        self.assertEqual(muster.shares(96, [1] * 5), [20, 19, 19, 19, 19])
        self.assertEqual(muster.shares(2, [1] * 3), [1, 1, 0])
        self.assertEqual(muster.shares(7, [48, 36, 12]), [3, 3, 1])


class Counting(unittest.TestCase):
    def counts(self, job):
        progress = job._progress()["progress"]
        return progress["split"], progress["steps"], progress["samples"]

    def test_the_first_step_of_a_split_and_short_batches_are_not_counted(self):
        (job,) = ranks(1)
        sampler = job.sampler(96 * 3 + 1, seed=1)
        counts = []
        for step in range(6):
            if step == 3:
                job._on_notice({"split": {"version": 1, "sizes": [96]}})
            sampler.take()
            boundary([job], step)
            counts.append(self.counts(job))
        self.assertEqual(counts, [(0, 0, 0), (0, 1, 96), (0, 2, 192), (0, 2, 192), (1, 0, 0), (1, 0, 0)])

    def test_the_compute_time_is_the_time_inside_measure(self):
        (job,) = ranks(1)
        boundary([job], 0)
        with job.measure():
            sum(range(1000))
        boundary([job], 1)
        _, _, compute_ns, wall_ns = job._totals
        self.assertTrue(0 < compute_ns < wall_ns)


class Wire(unittest.TestCase):
    def test_after_a_notice_to_leave_the_script_exits_with_code_75(self):
        script = Script(self, TRAIN_UNTIL_LEAVING, RANK="0", WORLD_SIZE="1", MUSTER_GENERATION="1.2")
        self.assertEqual(script.receive(), {"hello": 1})
        self.assertEqual(script.receive()["progress"]["generation"], "1.2")
        script.send('{"later": 1}')
        script.send('{"notice": {"leave": true, "reason": "worker-2 joins", "later": 1}}')
        *_, progress, leaving = script.rest()
        code, out, err = script.end()
        step = leaving["leaving"]["step"]
        self.assertEqual((code, leaving), (75, {"leaving": {"step": step, "agreed": True}}), err)
        self.assertEqual(out, f"saves at {step}\n")
        self.assertEqual(err, f"muster: leaving at step {step}: worker-2 joins\n")
        self.assertEqual(progress["progress"]["step"], step)

    def test_after_sigterm_the_script_exits_with_code_75(self):
        script = Script(self, TRAIN_UNTIL_LEAVING)
        script.receive()
        script.process.send_signal(signal.SIGTERM)
        code, out, err = script.end()
        self.assertEqual((code, out[:9]), (75, "saves at "), err)

    def test_done_sends_the_last_step_and_exits_with_code_0(self):
        script = Script(self, "job = muster.Job(96); job.started(); job.step(300, job.signal()); job.done(); print('no')")
        messages = script.rest()
        self.assertEqual(script.end(), (0, "", ""))
        self.assertEqual(messages[0], {"hello": 1})
        self.assertEqual(messages[-1]["progress"]["step"], 300)

    def test_a_script_that_raises_sends_its_last_step(self):
        code = "job = muster.Job(96); job.started()\nfor step in range(1, 62): job.step(step, (0, 0))\nraise ValueError('no')"
        script = Script(self, code)
        steps = [message["progress"]["step"] for message in script.rest() if "progress" in message]
        self.assertEqual(steps[-1], 61)
        self.assertEqual(script.end()[0], 1)

    def test_leave_and_done_run_exit_functions_and_do_not_wait_for_one_that_hangs(self):
        code = """
            import atexit, threading
            muster.EXIT_SECONDS = {seconds}
            atexit.register(print, "closed")
            {more}
            job = muster.Job(96)
            job.started()
            job.{end}()
        """
        for end, exit_code in (("leave", 75), ("done", 0)):
            closes = Script(self, code.format(end=end, more="", seconds=60))
            self.assertEqual(closes.end(), (exit_code, "closed\n", ""))
            hangs = Script(self, code.format(end=end, more="atexit.register(threading.Event().wait)", seconds=0.01))
            self.assertEqual(hangs.end(), (exit_code, "", ""))

    def test_a_script_that_lost_a_peer_exits_with_code_75_without_agreement(self):
        script = Script(self, "job = muster.Job(96); job.started(); job.step(7, job.signal()); job.leave()")
        self.assertEqual(script.rest()[-1], {"leaving": {"step": 7, "agreed": False}})
        self.assertEqual(script.end()[0], 75)

    def test_only_the_newest_progress_is_sent_a_few_times_a_second(self):
        code = "job = muster.Job(96); job.started()\nfor s in range(100000): job.step(s, (0, 0))\njob.done()"
        script = Script(self, code)
        steps = [message["progress"]["step"] for message in script.rest()[1:]]
        self.assertEqual(steps[-1], 99999)
        self.assertLess(len(steps), 1000)

    def test_training_continues_if_the_agent_does_not_read_or_has_ended(self):
        code = """
            muster.PROGRESS_SECONDS = 0.001
            job = muster.Job(96)
            job.started()
            for step in range(2000):  # more messages than the socket holds
                job.step(step, (0, 0))
                job._channel.send_progress()
            print("trained")
            job.done()
        """
        script = Script(self, code)
        self.assertEqual(script.end(), (0, "trained\n", ""))
        closed = Script(self, code)
        closed.lines.close()
        closed.socket.close()
        self.assertEqual(closed.end(), (0, "trained\n", ""))

    def test_invalid_messages_are_ignored(self):
        script = Script(self, TRAIN_UNTIL_LEAVING)
        for line in ("{", '"notice"', '{"notice": 1}', '{"notice": {"split": {"version": 1, "sizes": [1]}}}'):
            script.send(line)
        script.send('{"notice": {"leave": true}}')
        code, _, err = script.end()
        self.assertEqual(code, 75)
        self.assertEqual(err.count("muster: ignored a message of the agent"), 4, err)

    def test_a_child_program_has_no_socket_and_a_forked_child_ends_on_sigterm(self):
        code = """
            import signal, subprocess
            job = muster.Job(96)
            job.started()
            child = "import os; print(os.environ.get('MUSTER_FD'), len(os.listdir('/proc/self/fd')))"
            subprocess.run([sys.executable, "-c", child], close_fds=False)
            reads, writes = os.pipe()
            forked = os.fork()
            if forked == 0:
                os.write(writes, b"1")
                while True: pass
            os.read(reads, 1)  # Python drops signals that arrive during a fork
            os.kill(forked, signal.SIGTERM)
            print(os.WTERMSIG(os.waitpid(forked, 0)[1]), flush=True)
        """
        code, out, err = Script(self, code).end()
        self.assertEqual((code, out), (0, "None 4\n15\n"), err)

    def test_ranks_linger_after_their_last_step_and_the_chief_leaves_last(self):
        code = """
            now = 0
            muster.time.sleep = lambda seconds: print(f"{seconds:.2f}")
            muster.time.perf_counter_ns = lambda: now
            job = muster.Job(96)
            job.started()
            now = int(0.1e9)
            job.leave()
        """
        for rank, world, printed in (("0", "1", ""), ("0", "2", "0.30\n"), ("1", "2", "0.20\n")):
            self.assertEqual(Script(self, code, RANK=rank, WORLD_SIZE=world).end(), (75, printed, ""))


TRAINED_FIVE_STEPS = """
    import signal, time
    muster.PROGRESS_SECONDS = 0.02
    job = muster.Job(global_batch=96)
    job.started()
    step = 0

    @job.saves
    def save():
        print("saves", step, flush=True)

    def train():
        global step
        job.signal()
        step += 1
        return job.step(step, (0, 0))

    for _ in range(3):
        train()
    save()
    train()
    train()
"""


class Draining(unittest.TestCase):
    """The chief saves and leaves as soon as no step is in progress."""

    def script(self, code, **variables):
        return Script(self, textwrap.dedent(TRAINED_FIVE_STEPS) + textwrap.dedent(code), **variables)

    def test_the_chief_saves_and_leaves_during_an_evaluation(self):
        evaluates = """
            print("evaluates", flush=True)
            time.sleep(1000)
        """
        for ask in (lambda script: script.process.send_signal(signal.SIGTERM),
                    lambda script: script.send('{"notice": {"leave": true, "reason": "worker-2 joins"}}')):
            script = self.script(evaluates)
            for line in script.process.stdout:
                if line == "evaluates\n":
                    break
            ask(script)
            *_, progress, leaving = script.rest()
            code, out, err = script.end()
            self.assertEqual((code, out), (75, "saves 5\n"), err)
            self.assertRegex(err, "^muster: leaving at step 5: .*\n$")
            self.assertEqual((progress["progress"]["step"], progress["progress"]["saved"]), (5, 5))
            self.assertEqual(leaving, {"leaving": {"step": 5, "agreed": False}})

    def test_a_step_that_is_already_saved_is_not_saved_again(self):
        script = self.script("save(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(1000)")
        self.assertEqual(script.end()[:2], (75, "saves 3\nsaves 5\n"))

    def test_a_step_in_progress_is_completed_first(self):
        for begin in ("job.signal()", "job.sampler(1000, seed=1).take()"):
            script = self.script(f"""
                {begin}
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(2 * muster.PROGRESS_SECONDS)
                print("updated", flush=True)
                step += 1
                assert not job.step(step, (0, 0))  # the helper's thread may save from here on
                time.sleep(1000)
            """)
            self.assertEqual(script.end()[:2], (75, "saves 3\nupdated\nsaves 6\n"))

    def test_a_save_of_the_script_is_completed_first(self):
        script = self.script("""
            @job.saves
            def save():
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(2 * muster.PROGRESS_SECONDS)
                print("saved", flush=True)
            save()
            time.sleep(1000)
        """)
        self.assertEqual(script.end()[:2], (75, "saves 3\nsaved\n"))

    def test_if_a_save_fails_the_ranks_leave_after_the_next_step(self):
        script = self.script("""
            @job.saves
            def save():
                raise OSError("no space")
            os.kill(os.getpid(), signal.SIGTERM)
            while job._save: time.sleep(0.01)
            print("signals", float(job.signal()[0]), flush=True)
            job.leave()
        """)
        code, out, err = script.end()
        self.assertEqual((code, out), (75, "saves 3\nsignals 1.0\n"), err)
        self.assertIn("muster: cannot save at step 5, leaving after the next step: OSError('no space')\n", err)

    def test_other_ranks_and_a_chief_without_a_step_do_not_leave_alone(self):
        signals = """
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(2 * muster.PROGRESS_SECONDS)
            print("stays", flush=True)
            job.done()
        """
        self.assertEqual(self.script(signals, RANK="1", WORLD_SIZE="2").end()[:2], (0, "saves 3\nstays\n"))
        first = f"import signal, time\njob = muster.Job(96)\njob.started()\njob.saves(print)\n{textwrap.dedent(signals)}"
        self.assertEqual(Script(self, first).end(), (0, "stays\n", ""))

    def test_a_script_that_is_done_exits_with_0(self):
        script = self.script("""
            import atexit
            @atexit.register
            def drain():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(2 * muster.PROGRESS_SECONDS)
            job.done()
        """)
        self.assertEqual(script.end()[:2], (0, "saves 3\n"))

    def test_progress_tells_the_last_saved_step_or_the_step_before_the_first(self):
        saved = [message["progress"]["saved"] for message in self.script("job.done()").rest()[1:]]
        self.assertEqual((saved[0], saved[-1]), (None, 3))
        script = Script(self, "job = muster.Job(96); job.started(); job.saves(print); job.step(51, (0, 0)); job.done()")
        self.assertEqual(script.rest()[-1]["progress"]["saved"], 50)


class Chief(unittest.TestCase):
    """Ranks other than 0 wait until the chief listens, for at most a second."""

    def script(self, port, rank):
        cluster = {"cluster": {"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]}}
        code = """
            import types
            sys.modules["tensorflow"] = types.ModuleType("tensorflow")
            print("begins", flush=True)
            job = muster.Job(96)
            print("waited", flush=True)
        """
        return Script(self, code, RANK=str(rank), WORLD_SIZE="2", TF_CONFIG=json.dumps(cluster))

    def test_a_rank_waits_until_the_chief_listens(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            script = self.script(server.getsockname()[1], 1)
            server.listen()
            self.assertEqual(script.process.communicate(timeout=DEADLINE_SECONDS)[0], "begins\nwaited\n")
            server.settimeout(DEADLINE_SECONDS)
            server.accept()[0].close()

    def test_every_rank_continues_if_the_chief_never_listens(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            for rank in (0, 1):
                script = self.script(closed.getsockname()[1], rank)
                self.assertEqual(script.process.communicate(timeout=DEADLINE_SECONDS)[0], "begins\nwaited\n")

    def test_a_rank_does_not_wait_if_tf_config_has_no_chief_to_connect_to(self):
        for config in (None, "", "no JSON", "[]", "{}", '{"cluster": {"worker": []}}', '{"cluster": {"worker": ["host"]}}',
                       '{"cluster": {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:1"]}}'):
            self.assertIsNone(muster.await_chief(config))


class FakeKeras:
    """The parts of TensorFlow and tf_keras that the callback uses. `calls` lists the restored and saved paths, and
    `assigned` the saved steps and epochs."""

    def __init__(self, latest):
        self.calls = calls = []
        self.assigned = assigned = []

        class Variable(int):
            def __new__(cls, value, dtype):
                return super().__new__(cls, value)

            def assign(self, value):
                assigned.append(value)

        class Checkpoint:
            def __init__(self, **parts):
                self.parts = parts

            def restore(self, path):
                if "model" in self.parts:
                    calls.append(("restored", path))
                return types.SimpleNamespace(expect_partial=lambda: None)

        class CheckpointManager:
            def __init__(self, checkpoint, folder, max_to_keep):
                self.folder = Path(folder)

            def save(self, checkpoint_number):
                self.folder.mkdir(exist_ok=True)
                (self.folder / f"ckpt-{checkpoint_number}").write_text("weights")
                calls.append(("saved", str(self.folder)))

        class Sum:
            """The sum over one rank."""

            def __init__(self, numbers):
                self.numbers = numbers

            def numpy(self):
                return self.numbers

        def latest_checkpoint(folder):
            return latest

        self.tensorflow = types.ModuleType("tensorflow")
        self.tensorflow.int64 = None
        self.tensorflow.Variable = Variable
        self.tensorflow.zeros = lambda count: [0.0] * count
        self.tensorflow.constant = list
        self.tensorflow.TensorSpec = list
        self.tensorflow.function = lambda function, input_signature: Sum
        self.tensorflow.train = types.SimpleNamespace(
            latest_checkpoint=latest_checkpoint, Checkpoint=Checkpoint, CheckpointManager=CheckpointManager
        )
        self.tf_keras = types.ModuleType("tf_keras")
        self.tf_keras.callbacks = types.SimpleNamespace(Callback=object)

    def callback(self, test, job, folder):
        """A callback of a model in training."""
        modules = {"tensorflow": self.tensorflow, "tf_keras": self.tf_keras}
        patch = unittest.mock.patch.dict(sys.modules, modules)
        patch.start()
        test.addCleanup(patch.stop)
        callback = muster.KerasCallback(job, folder)
        callback.model = types.SimpleNamespace(distribute_strategy=None)
        callback.on_train_begin()
        return callback


class Keras(unittest.TestCase):
    def test_a_rank_that_is_not_the_chief_keeps_no_files_of_a_save(self):
        keras = FakeKeras(latest=None)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
            with unittest.mock.patch.object(tempfile, "tempdir", temporary):
                for job in ranks(2):
                    callback = keras.callback(self, job, folder)
                    self.assertEqual(os.listdir(temporary), [], "a script may be killed before it saves")
                    for epoch in range(2):
                        callback.on_epoch_end(epoch)
            self.assertEqual((os.listdir(folder), os.listdir(temporary)), (["ckpt-0"], []))
        saved = [os.path.dirname(path) for call, path in keras.calls]
        self.assertEqual(saved[2:], [temporary, temporary])

    def test_a_second_fit_continues_with_the_present_weights(self):
        keras = FakeKeras(latest="ckpt-60")
        callback = keras.callback(self, *ranks(1), "unused")
        callback.on_train_begin()
        self.assertEqual(keras.calls, [("restored", "ckpt-60")])

    def callback(self, keras):
        """A callback in epoch 3 after its first step. A rank must leave."""
        (job,) = ranks(1)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        callback = keras.callback(self, job, folder)
        job.leave = unittest.mock.Mock()
        callback.on_epoch_begin(3)
        callback.on_train_batch_end(0)
        self.assertFalse(job.leave.called)
        job._on_notice({"leave": True})
        return callback, job

    def test_the_ranks_leave_during_a_validation_and_do_not_repeat_its_epoch(self):
        keras = FakeKeras(latest=None)
        callback, job = self.callback(keras)
        callback.on_test_begin()
        callback.on_test_batch_end(0)
        self.assertTrue(job.leave.called)
        self.assertEqual(keras.assigned, [1, 4])
        self.assertEqual((job._step, job._saved, job._totals[0]), (1, 1, 0))

    def test_the_ranks_do_not_leave_during_an_evaluation_outside_fit(self):
        keras = FakeKeras(latest=None)
        callback, job = self.callback(keras)
        callback.on_epoch_end(3)
        callback.on_test_begin()
        callback.on_test_batch_end(0)
        self.assertFalse(job.leave.called)

    def test_a_check_follows_within_a_second_however_long_it_takes(self):
        clock = unittest.mock.patch("muster.time.perf_counter", side_effect=(number / 10 for number in range(1000)))
        clock.start()
        self.addCleanup(clock.stop)
        callback = FakeKeras(latest=None).callback(self, *ranks(1), "unused")
        callback._cost = 5
        callback.on_epoch_begin(0)
        callback.on_train_batch_end(0)
        self.assertEqual(callback._left, 10)


class Outside(unittest.TestCase):
    def run_alone(self, code, **variables):
        environment = {"PYTHONPATH": str(FOLDER), **variables}
        ran = subprocess.run([sys.executable, "-c", "import muster\n" + code], env=environment, capture_output=True, text=True)
        return ran.returncode, ran.stdout, ran.stderr

    def test_outside_muster_a_job_is_one_rank_that_never_leaves(self):
        code = """
job = muster.Job(global_batch=96)
job.started()
print(job.rank, job.world, job.is_chief, repr(job.generation), job.batch)
print([job.step(s, job.signal()) for s in range(3)])
job.done()
print("returned")
import signal
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
        printed = "0 1 True '' 96\n[False, False, False]\nreturned\nTrue\n"
        self.assertEqual(self.run_alone(code), (0, printed, ""))

    def test_rank_and_world_come_from_the_environment(self):
        jobs = ranks(5)
        self.assertEqual([(job.rank, job.world, job.is_chief, job.batch) for job in jobs[:2]], [(0, 5, True, 20), (1, 5, False, 19)])
        parameter_server = muster.Job(96, {"WORLD_SIZE": "5", "MUSTER_ROLE": "ps"})
        self.assertFalse(parameter_server.is_chief)
        with self.assertRaisesRegex(ValueError, "RANK 5 is not less than WORLD_SIZE 5"):
            muster.Job(96, {"RANK": "5", "WORLD_SIZE": "5"})

    def test_the_first_sizes_come_from_the_job(self):
        sizes = {"RANK": "1", "WORLD_SIZE": "2", "MUSTER_BATCH_SIZES": "[32, 64]"}
        for batch in (None, 96):
            job = muster.Job(batch, sizes)
            self.assertEqual((job.global_batch, job.sizes, job.batch), (96, [32, 64], 64))
        with self.assertRaisesRegex(ValueError, "global batch of 97, but --global-batch is 96"):
            muster.Job(97, sizes)
        self.assertEqual(muster.Job(9, {**sizes, "WORLD_SIZE": "3"}).sizes, [3, 3, 3], "ranks of the script's own")
        with self.assertRaisesRegex(ValueError, "pass the global batch to Job, or start the job with --global-batch"):
            muster.Job(environ={})
        with self.assertRaisesRegex(ValueError, "the job has sizes for 2 ranks, but WORLD_SIZE is 3"):
            muster.Job(environ={**sizes, "WORLD_SIZE": "3"})

    def test_progress_tells_the_sizes_in_use_and_the_newest_that_are_known(self):
        (job,) = ranks(1)
        job._on_notice({"split": {"version": 17, "sizes": [96]}})
        shown = lambda: [job._progress()["progress"][key] for key in ("split", "batch", "noticed")]
        self.assertEqual(shown(), [0, 96, 17])
        boundary([job], 0)
        boundary([job], 1)
        self.assertEqual(shown(), [17, 96, 17])
        job._on_notice({})
        self.assertEqual(shown(), [17, 96, 0])

    def test_an_unusable_descriptor_is_reported_once_and_training_continues(self):
        code, out, err = self.run_alone("job = muster.Job(96); job.started(); print(job.step(1, job.signal()))", MUSTER_FD="77")
        self.assertEqual((code, out), (0, "False\n"))
        self.assertRegex(err, r"^muster: cannot leave or report progress, because MUSTER_FD=77 is no socket of the agent: .*\n$")

    def test_another_socket_with_the_number_of_the_agents_socket_is_not_used(self):
        code = """
import os, socket
ours, theirs = socket.socketpair()
job = muster.Job(96, {"MUSTER_FD": f"{ours.fileno()}:{os.fstat(theirs.fileno()).st_ino}"})
job.started()
theirs.setblocking(False)
try: print(theirs.recv(1))
except BlockingIOError: print("nothing")
"""
        code, out, err = self.run_alone(code)
        self.assertEqual((code, out), (0, "nothing\n"))
        self.assertRegex(err, "is no socket of the agent: another file has this number\n$")

    def test_the_signal_is_an_array_of_32_bit_floats_if_numpy_is_loaded(self):
        self.assertEqual(self.run_alone("print(muster.Job(96).signal())"), (0, "(0.0, 0.0)\n", ""))
        code = "import numpy; signal = muster.Job(96).signal(); print(signal, signal.dtype)"
        self.assertEqual(self.run_alone(code), (0, "[0. 0.] float32\n", ""))

    def test_the_import_needs_only_the_standard_library(self):
        code = "import sys; print(sorted({'numpy', 'tensorflow', 'tf_keras'} & set(sys.modules)))"
        self.assertEqual(self.run_alone(code), (0, "[]\n", ""))


if __name__ == "__main__":
    unittest.main()
