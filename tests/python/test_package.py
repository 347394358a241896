"""The Python package as its users call it. It is run with the installed package, with and without NumPy.

    python3 test_package.py REPOSITORY
"""

import array
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

import plimsoll

ROOT = os.path.abspath(sys.argv.pop(1))
GOLDEN = os.path.join(ROOT, "tests", "golden")
TEXT = b"The sea is calm tonight. The tide is full, the moon lies fair. " * 100

try:
    import numpy
except ImportError:
    numpy = None


def values(x):
    """Returns an array as nested lists."""
    return x.tolist()


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.work = self.folder.name
        with open(os.path.join(self.work, "text"), "wb") as f:
            f.write(TEXT)

    def run_of(self, name, **train):
        return {"model": {"preset": "llama-tiny"},
                "data": {"format": "bytes", "train": [os.path.join(self.work, "text")], "sequence": 16},
                "train": dict({"steps": 5, "effective_batch": 2, "out": os.path.join(self.work, name)}, **train),
                "device": {"threads": 1}}


class Layout(unittest.TestCase):
    def test_structs(self):
        """The structs of the package have the offsets that tests/test_library_abi.c pins."""
        import ctypes

        from plimsoll import _library as c

        structs = {"pl_plan_info": c.PlanInfo, "pl_port": c.Port, "pl_block": c.Block, "pl_step_info": c.StepInfo,
                   "pl_parameter": c.Parameter, "pl_generation": c.Generation, "pl_answer": c.AnswerInfo,
                   "pl_image": c.Image, "pl_prompt": c.Prompt, "pl_masks": c.MasksInfo, "pl_scores": c.Scores,
                   "pl_key": c.Key, "pl_op_info": c.Op, "pl_technique": c.Technique}
        other = {"from": "begin", "to": "end"}
        with open(os.path.join(ROOT, "tests", "test_library_abi.c"), encoding="utf-8") as f:
            table = f.read()
        for name, size in re.findall(r"(?:SIZE|WHOLE)\((\w+), (\d+)\)", table):
            if name in structs:
                self.assertEqual(ctypes.sizeof(structs[name]), int(size), name)
        n = 0
        for name, member, at in re.findall(r"AT\((\w+), (\w+), (\d+)\)", table):
            if name in structs:
                kind = structs[name]
                found = getattr(kind, other.get(member, member) if kind is c.Block else member)
                self.assertEqual(found.offset, int(at), f"{name}.{member}")
                n += 1
        self.assertGreater(n, 80)


class Plans(Package):
    def test_plan(self):
        plan = plimsoll.plan(self.run_of("a"))
        self.assertTrue(plan.fits)
        self.assertEqual(plan.arena_bytes, plan.json["arena_bytes"])
        self.assertEqual(sum(plan.breakdown.values()), plan.lower_bound_bytes)
        self.assertEqual(plan.breakdown, {k: v for k, v in plan.json["breakdown"].items() if v and k != "padding"})
        self.assertGreater(plan.predicted_seconds, 0)
        self.assertIn("recompute", plan.techniques)
        self.assertIn("activations", str(plan))
        highest = max(b.offset + b.bytes for b in plan.blocks)
        self.assertLessEqual(highest, plan.arena_bytes)
        self.assertGreater(highest, plan.arena_bytes - 4096)
        self.assertTrue(plan._repr_png_().startswith(b"\x89PNG"))
        self.assertIn("data:image/png", plan._repr_html_())
        self.assertNotIn("<script", plan._repr_html_())
        path = os.path.join(self.work, "plan.json")
        plan.save(path)
        with open(path, encoding="utf-8") as f:
            self.assertEqual(json.load(f), plan.json)

    def test_same_as_the_program(self):
        path = os.path.join(self.work, "run.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(self.run_of("a"), f)
        said = subprocess.run([plimsoll.program(), "plan", path, "--json"], capture_output=True, check=True).stdout
        self.assertEqual(json.loads(said)["digest"], plimsoll.plan(path).json["digest"])
        self.assertEqual(json.loads(said)["digest"], plimsoll.plan(self.run_of("a")).json["digest"])

    def test_budget(self):
        smallest = plimsoll.plan(self.run_of("a")).smallest_budget
        self.assertEqual(plimsoll.plan(self.run_of("a"), memory=smallest).arena_bytes, smallest)
        with self.assertRaises(plimsoll.DoesNotFit) as e:
            plimsoll.plan(self.run_of("a"), memory=smallest - 1)
        self.assertEqual(e.exception.smallest_budget, smallest)
        self.assertFalse(e.exception.plan.fits)
        self.assertEqual(e.exception.plan.arena_bytes, smallest)

    def test_wrong_keys(self):
        for run, part in (({"trian": {}}, "train"), (self.run_of("a", stepz=3), "steps"),
                          (self.run_of("a", learning_rate="fast"), "learning_rate"), ({}, "model"),
                          (os.path.join(self.work, "none.yaml"), "none.yaml")):
            with self.assertRaises(plimsoll.UsageError) as e:
                plimsoll.plan(run)
            self.assertIn(part, str(e.exception))
        with self.assertRaises(ValueError):
            plimsoll.plan(self.run_of("a"), settings={"memory.recomptue": "all"})
        self.assertEqual(plimsoll.plan(self.run_of("a"), settings={"memory.recompute": "all"}).techniques["recompute"],
                         "all")
        nested = plimsoll.plan(self.run_of("a"), settings={"memory": {"recompute": "all", "micro_batch": 1}})
        self.assertEqual((nested.techniques["recompute"], nested.micro_batch), ("all", 1))

    def test_tables(self):
        rows = plimsoll.frontier(self.run_of("a"))
        self.assertGreater(len(rows), 2)
        self.assertIn("predicted_step_seconds", rows[0])
        self.assertGreaterEqual(len(plimsoll.devices(self.run_of("a"), [8, 24])), 2)
        keys = {k["name"]: k for k in plimsoll.keys()}
        self.assertEqual(keys["train.steps"]["type"], "integer")
        self.assertIn("eps", {o["name"]: o for o in plimsoll.ops()}["RMSNORM"]["attributes"])
        with self.assertRaises(plimsoll.UsageError):
            plimsoll.frontier({"model": {"preset": "none"}})


class Training(Package):
    def test_train(self):
        seen = []
        run = plimsoll.train(self.run_of("a"), on_step=lambda m: seen.append((m["step"], m["loss"])))
        self.assertEqual([s for s, _ in seen], [1, 2, 3, 4, 5])
        self.assertEqual((run.steps, run.stopped, run.out), (5, False, os.path.join(self.work, "a")))
        self.assertTrue(os.path.exists(os.path.join(run.model, "model.safetensors")))
        self.assertEqual(len(run.metrics), 5)
        self.assertAlmostEqual(run.metrics[4]["loss"], seen[4][1], 6)
        with self.assertRaises(plimsoll.UsageError):
            plimsoll.train(self.run_of("a"))

    def model_bytes(self, run):
        with open(os.path.join(run.model, "model.safetensors"), "rb") as f:
            return f.read()

    def test_stop_and_resume(self):
        whole = self.model_bytes(plimsoll.train(self.run_of("whole")))
        stopped = plimsoll.train(self.run_of("parts"), on_step=lambda m: m["step"] == 2)
        self.assertEqual((stopped.steps, stopped.stopped), (2, True))
        self.assertIn("resume=True", stopped.message)
        done = plimsoll.train(self.run_of("parts"), resume=True)
        self.assertEqual(done.steps, 5)
        self.assertEqual(self.model_bytes(done), whole)

    def test_callback_raises(self):
        def fail(m):
            if m["step"] == 2:
                raise RuntimeError("enough")

        with self.assertRaisesRegex(RuntimeError, "enough"):
            plimsoll.train(self.run_of("a"), on_step=fail)
        self.assertEqual(plimsoll.train(self.run_of("a"), resume=True).steps, 5)

    def test_log_and_threads(self):
        lines, threads = [], set()
        plimsoll.train(self.run_of("a"), on_log=lambda level, line: lines.append((level, line)),
                       on_step=lambda m: threads.add(threading.current_thread()))
        self.assertEqual(threads, {threading.current_thread()})
        self.assertTrue(any(level == "progress" for level, _ in lines), lines)
        found = []
        other = threading.Thread(target=lambda: found.append(plimsoll.plan(self.run_of("b")).arena_bytes))
        other.start()
        here = plimsoll.plan(self.run_of("b")).arena_bytes
        other.join()
        self.assertEqual(found, [here])

    def test_lora(self):
        base = plimsoll.train(self.run_of("base"))
        lora = dict(self.run_of("lora"), model={"path": base.model}, adapter={"r": 2, "target_modules": "all-linear"})
        run = plimsoll.train(lora)
        self.assertTrue(os.path.exists(os.path.join(run.model, "adapter_config.json")))
        merged = plimsoll.merge(base.model, run.model, os.path.join(self.work, "merged"))
        with plimsoll.Model(base.model, adapter=run.model) as a, plimsoll.Model(merged) as b:
            self.assertEqual(a.generate(list(b"The sea"), max_new=6).ids, b.generate(list(b"The sea"), max_new=6).ids)
        score = plimsoll.Model(merged).score({"data": {"format": "bytes", "sequence": 16, "validation": [
            os.path.join(self.work, "text")]}})
        self.assertTrue(0 < score["loss"] < 6 and score["tokens"] > 1000)


class Steps(Package):
    def trainer(self, **memory):
        return plimsoll.Trainer({"model": {"path": os.path.join(GOLDEN, "basic")}, "data": {"sequence": 8},
                                 "train": {"effective_batch": 2, "learning_rate": 1e-2},
                                 "memory": dict({"fused_step": "off", "precision": "f32"}, **memory)})

    IDS = [[1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8, 9, 1]]

    def test_steps(self):
        with self.trainer() as t:
            self.assertEqual(t.inputs["input_ids"].shape, (2, 8))
            losses = [t.step(input_ids=self.IDS, labels=self.IDS)["loss"] for _ in range(4)]
            self.assertLess(losses[3], losses[0])
            self.assertEqual(t.steps, 4)
            state = os.path.join(self.work, "state")
            t.save_state(state)
            rest = [t.step()["loss"] for _ in range(3)]
        with self.trainer(recompute="all") as u:
            u.load_state(state)
            u.submit(input_ids=self.IDS, labels=self.IDS)
            u.submit()
            self.assertEqual([u.retire()["loss"], u.retire()["loss"], u.step()["loss"]], rest)
            u.save(os.path.join(self.work, "model"))

    def test_gradients(self):
        with self.trainer() as t, plimsoll.Model(os.path.join(GOLDEN, "basic")) as model:
            loss, gradients = t.gradients(input_ids=self.IDS, labels=self.IDS)
            other, same = model.gradients({"input_ids": self.IDS, "labels": self.IDS})
            self.assertAlmostEqual(loss, other, 5)
            self.assertEqual(set(gradients), set(same))
            for name, g in gradients.items():
                for a, b in zip(values(g), values(same[name])):
                    for x, y in zip(a if isinstance(a, list) else [a], b if isinstance(b, list) else [b]):
                        self.assertAlmostEqual(x, y, 5)
        with self.trainer(fused_step="on") as t, self.assertRaisesRegex(plimsoll.UsageError, "fused_step"):
            t.gradients(input_ids=self.IDS, labels=self.IDS)

    def test_arrays(self):
        flat = [i for row in self.IDS for i in row]
        kinds = {"list": self.IDS, "int32": array.array("i", flat), "int64": array.array("q", flat),
                 "uint8": bytes(flat), "memoryview": memoryview(array.array("i", flat))}
        if numpy is not None:
            kinds["numpy"] = numpy.array(self.IDS)
            kinds["numpy int32"] = numpy.array(self.IDS, "int32")
        with self.trainer() as t:
            t.write(labels=self.IDS)
            losses = {k: t.evaluate(input_ids=x) for k, x in kinds.items()}
            self.assertEqual(len(set(losses.values())), 1, losses)
            for wrong, part in (([[1, 2], [3]], "lengths"), ([1.5] * 16, "i32"), ([61] * 16, "expected 0 to 60"),
                                ([1] * 15, "bytes"), (object(), "no array")):
                with self.assertRaisesRegex(plimsoll.UsageError, part):
                    t.write(input_ids=wrong)
            with self.assertRaisesRegex(plimsoll.UsageError, "no input ids"):
                t.write(ids=self.IDS)
            name = "model.norm.weight"
            w = t.parameter(name)
            twice = [2 * x for x in values(w)]
            t.set_parameter(name, twice)
            self.assertEqual(values(t.parameter(name)), twice)
            view = t.view(name)
            self.assertEqual((view.shape, view.__dlpack_device__()), ((24,), (1, 0)))
            if numpy is not None:
                a = numpy.from_dlpack(view)
                self.assertEqual(a.tolist(), twice)
            with self.assertRaisesRegex(plimsoll.UsageError, "no parameter nothing"):
                t.parameter("nothing")
        if numpy is not None:
            self.assertEqual(a.tolist(), twice)  # after close


class Models(Package):
    def test_generate(self):
        heard = []
        with plimsoll.Model(os.path.join(GOLDEN, "basic")) as m:
            answer = m.generate([2, 16, 32, 31, 25], max_new=12, on_token=heard.append)
            self.assertEqual(answer.ids, [52, 52, 52, 4, 45, 25, 55, 7, 33, 25, 25, 55])
            self.assertEqual((heard, answer.finish), (answer.ids, "length"))
            cut = m.generate([2, 16, 32, 31, 25], max_new=12, on_token=lambda i: i == 4)
            self.assertEqual((cut.ids, cut.finish), ([52, 52, 52, 4], "callback"))
            with self.assertRaisesRegex(plimsoll.UsageError, "no option temprature"):
                m.generate([2], temprature=1)
        with plimsoll.Model(os.path.join(GOLDEN, "chat", "model")) as m:
            answer = m.chat("hello", max_new=6)
            self.assertTrue(isinstance(answer, str) and 0 < len(answer.ids) <= 6)
            self.assertEqual(m.chat([{"role": "user", "content": "hello"}], max_new=6), answer)
        with self.assertRaisesRegex(plimsoll.UsageError, "no-such-folder"):
            plimsoll.Model("no-such-folder").generate([1])

    def test_predict(self):
        path = os.path.join(GOLDEN, "predict", "wide.png")
        with plimsoll.Model(os.path.join(GOLDEN, "predict", "model")) as m:
            found = m.predict(path, points=[(150, 60)], box=(20, 10, 180.5, 100))
            self.assertEqual((found.width, found.height, len(found)), (200, 120, 1))
            self.assertAlmostEqual(found.scores[0], 0.5863, 3)
            self.assertEqual(len(found.candidates[0]), 3)
            self.assertGreater(sum(sum(row) for row in values(found[0])), 0)
            self.assertEqual(len(m.predict(path, boxes=[(20, 10, 90, 60), (50, 40, 180, 100)])), 2)
            black = memoryview(bytearray(40 * 30 * 3)).cast("B", (30, 40, 3))
            self.assertEqual(m.predict(black, points=[(5, 5)], single=True).width, 40)
            for wrong in ({"points": None}, {"points": [(1, 2)], "labels": [7]}, {"boxes": []}):
                with self.assertRaises(plimsoll.UsageError):
                    m.predict(path, **wrong)


if __name__ == "__main__":
    warnings.simplefilter("error")
    print("with NumPy" if numpy is not None else "without NumPy")
    unittest.main()
