#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcellar usage, pin, unpin: space by root, namespace and tenant, and what is pinned."""
import os

import support
from support import CONFIG, DENIED, DONE, MISS, USAGE, run

FIGURES = ("live_bytes", "allocated_bytes", "objects")


class Usage(support.Case):
    def put(self, model, tenant=None, key="k", root=None, size=5000):
        self.check(run("-D", root or self.root, "-s", "storage_layout=files", "put", key, "--model",
                       model, *([] if tenant is None else ["--tenant", tenant]), stdin=b"x" * size), DONE)

    def usage(self, *arguments, root=None):
        document = self.check(run("-D", root or self.root, "usage", "--json", *arguments), DONE).json
        self.assertEqual(set(document), {"roots", "namespaces", "tenants"})
        # Each kind of figure tells of the same bytes.
        for figure in FIGURES:
            by_namespace = sum(one[figure] for one in document["namespaces"])
            self.assertEqual(sum(one[figure] for one in document["roots"]), by_namespace, figure)
            self.assertEqual(sum(one[figure] for one in document["tenants"]), by_namespace, figure)
        return document

    def namespaces(self, **options):
        return {one["model"]: one for one in self.usage(**options)["namespaces"]}

    def bench(self, *arguments):
        self.check(self.k("-s", "storage_layout=packed", "-s", "capacity=256MiB", "bench", "--pages",
                          "8", "--reps", "1", "--keep", "--part-bytes", "64K", *arguments), DONE)

    def test_files_by_namespace_and_tenant(self):
        self.put("llama")
        self.put("qwen", "a")
        self.put("qwen", "a", "k2")
        self.put("mistral", "a")
        self.put("gemma", "")
        document = self.usage()
        found = {one["model"]: one for one in document["namespaces"]}
        self.assertEqual({name: one["objects"] for name, one in found.items()},
                         {"llama": 1, "qwen": 2, "mistral": 1, "gemma": 1})
        self.assertEqual({name: one["tenant"] for name, one in found.items()},
                         {"llama": None, "qwen": "a", "mistral": "a", "gemma": ""})
        stored = {os.path.basename(os.path.dirname(os.path.dirname(path))): 0
                  for path in self.objects()}
        for path in self.objects():
            stored[os.path.basename(os.path.dirname(os.path.dirname(path)))] += os.path.getsize(path)
        self.assertEqual({one["namespace"]: one["live_bytes"] for one in document["namespaces"]},
                         stored)
        # No tenant and the tenant "" differ.
        self.assertEqual({one["tenant"]: one["objects"] for one in document["tenants"]},
                         {None: 1, "a": 3, "": 1})
        for one in document["namespaces"]:
            self.assertEqual(one["allocated_bytes"], one["live_bytes"])
            self.assertIsNone(one["share_bytes"])
            self.assertIs(one["pinned"], False)

    def test_packed_by_namespace(self):
        self.bench("--model", "llama")
        self.bench("--model", "qwen", "--tenant", "a")
        # What goes into no slot lies beside them.
        self.check(self.k("put", "note", "--model", "qwen", "--tenant", "a", stdin=b"x"), DONE)
        found = self.namespaces()
        page = 2 * 65536
        self.assertEqual(found["llama"]["live_bytes"], 8 * page)
        self.assertEqual(found["qwen"]["objects"], 9)
        self.assertEqual(found["qwen"]["live_bytes"], 8 * page + 8192)
        for name, one in found.items():
            folder = os.path.join(self.root, one["namespace"], f"slots-{page}")
            files = sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder)
                        if not file.startswith("table"))
            beside = 8192 if name == "qwen" else 0
            self.assertEqual(one["allocated_bytes"], files + beside, name)
            self.assertGreater(one["allocated_bytes"], one["live_bytes"])

    def test_shares(self):
        self.put("qwen", "a")
        self.put("mistral", "a")
        self.put("llama", "b")
        document = self.usage("-s", "capacity=1GiB", "-s", "tenant_shares=a=25%,b=1MiB")
        shares = {one["model"]: one["share_bytes"] for one in document["namespaces"]}
        self.assertEqual(shares, {"qwen": 1 << 28, "mistral": 1 << 28, "llama": 1 << 20})
        # Both namespaces have one share together.
        self.assertEqual({one["tenant"]: one["share_bytes"] for one in document["tenants"]},
                         {"a": 1 << 28, "b": 1 << 20})

    def test_several_roots(self):
        second = self.path("second")
        os.mkdir(second, 0o700)
        roots = self.root + "," + second
        for number in range(16):
            self.put("llama", "a", f"k{number}", roots)
        document = self.usage(root=roots)
        self.assertEqual([one["root"] for one in document["roots"]], [self.root, second])
        self.assertEqual(sum(one["objects"] for one in document["roots"]), 16)
        self.assertEqual(len(document["namespaces"]), 2)
        self.assertEqual(len(document["tenants"]), 1)
        self.assertIn(second, self.check(run("-D", roots, "usage"), DONE).text)

    def test_an_empty_root(self):
        document = self.usage()
        self.assertEqual(document["namespaces"], [])
        self.assertEqual(document["tenants"], [])
        self.assertEqual(document["roots"][0]["objects"], 0)
        self.assertEqual(os.listdir(self.root), [])

    def test_counters_that_drifted(self):
        self.put("llama")
        self.put("llama", key="k2")
        self.assertEqual(self.usage("--recount")["roots"][0]["objects"], 2)
        os.remove(self.objects()[0])
        self.assertEqual(self.usage()["roots"][0]["objects"], 2)
        self.assertIn(self.root + ": corrected, 2 objects of 24.0 KiB were counted\n",
                      self.check(self.k("usage", "--recount"), DONE).text)
        self.assertEqual(self.usage("--recount")["roots"][0]["objects"], 1)

    def test_a_root_that_nobody_counted(self):
        self.put("llama")
        os.remove(os.path.join(self.root, ".kvcellar", "usage"))
        self.assertEqual(self.namespaces()["llama"]["objects"], 1)
        self.assertFalse(os.path.exists(os.path.join(self.root, ".kvcellar", "usage")))

    def test_a_namespace_that_nothing_describes(self):
        self.put("llama", "a")
        (one,) = self.usage()["namespaces"]
        for content in (None, b"{ no json", b'{"tenant": 7, "model_id": []}'):
            path = os.path.join(self.root, one["namespace"], "namespace.json")
            if os.path.exists(path):
                os.remove(path)
            if content:
                self.write(os.path.relpath(path, self.folder), content)
            (again,) = self.usage()["namespaces"]
            self.assertEqual((again["tenant"], again["model"], again["objects"]), (None, None, 1))

    def test_nixl_naming_counts_all_as_one(self):
        self.check(self.k("-s", "naming=nixl", "put", "k", "--model", "llama", stdin=b"x"), DONE)
        document = self.check(self.k("-s", "naming=nixl", "usage", "--json"), DONE).json
        self.assertEqual([(one["namespace"], one["objects"]) for one in document["namespaces"]],
                         [("", 1)])

    def test_text(self):
        self.put("llama", "team-a")
        text = self.check(self.k("usage"), DONE).text
        (one,) = self.usage()["namespaces"]
        self.assertRegex(text, r"(?m)^ +12\.0 KiB +12\.0 KiB +1 .*%s$" % self.root)
        self.assertRegex(text, r"(?m)^ +12\.0 KiB .* - +- +team-a +%s$" % one["namespace"])
        self.assertRegex(text, r"(?m)^ +12\.0 KiB .* team-a$")

    def test_read_only_folders(self):
        self.need_mounts()
        self.put("llama")
        done = support.in_mounts("""
            mount --bind "$work/root" "$work/root"; mount -o remount,bind,ro "$work/root"
            $k -D "$work/root" usage --json || exit 1
            $k -D "$work/root" pin "$(ls "$work/root")"; echo "code $?" >&2
            """, self.folder)
        self.assertEqual(done.json["namespaces"][0]["objects"], 1)
        self.assertIn("read-only", done.errors)
        self.assertIn(f"code {DENIED}", done.errors)

    def test_usage_errors(self):
        self.check(run("-D", self.path("absent"), "usage"), CONFIG, "absent")
        self.check(self.k("usage", "extra"), USAGE, "extra")

    # ------------------------------------------------------------ pins

    def test_pin_and_unpin(self):
        for layout in ("files", "packed"):
            with self.subTest(layout):
                self.root = self.path(layout)
                if layout == "packed":
                    self.bench("--model", "llama")
                    self.bench("--model", "qwen")
                else:
                    self.put("llama")
                    self.put("qwen")
                found = self.namespaces()
                one, other = found["llama"]["namespace"], found["qwen"]["namespace"]
                done = self.check(self.k("pin", one), DONE)
                self.assertEqual(done.errors, f"{one} is pinned\n")
                self.assertEqual({name: entry["pinned"] for name, entry in self.namespaces().items()},
                                 {"llama": True, "qwen": False})
                self.assertRegex(self.k("usage").text, rf"(?m) yes .* {one}$")
                self.check(self.k("pin", one), DONE)
                self.assertEqual(self.check(self.k("pin", other, "--json"), DONE).json,
                                 {"namespace": other, "pinned": True})
                self.assertEqual(self.check(self.k("unpin", one, "--json"), DONE).json,
                                 {"namespace": one, "pinned": False})
                self.assertEqual({name: entry["pinned"] for name, entry in self.namespaces().items()},
                                 {"llama": False, "qwen": True})
                self.check(self.k("unpin", one), DONE)

    def test_every_root_is_pinned(self):
        second = self.path("second")
        os.mkdir(second, 0o700)
        roots = self.root + "," + second
        for number in range(16):
            self.put("llama", None, f"k{number}", roots)
        one = self.usage(root=roots)["namespaces"][0]["namespace"]
        self.check(run("-D", roots, "pin", one), DONE)
        self.assertEqual([entry["pinned"] for entry in self.usage(root=roots)["namespaces"]],
                         [True, True])

    def test_a_pin_outlives_its_namespace_and_can_be_taken_away(self):
        self.put("llama")
        one = self.namespaces()["llama"]["namespace"]
        self.check(self.k("pin", one), DONE)
        self.check(self.k("clear", one, "--yes"), DONE)
        self.check(self.k("unpin", one), DONE)
        self.put("llama")
        self.assertIs(self.namespaces()["llama"]["pinned"], False)

    def test_what_cannot_be_pinned(self):
        self.put("llama")
        self.check(self.k("pin", "llama-0000000000000000"), MISS, "llama-0000000000000000")
        self.check(self.k("pin", "../x-0000000000000000"), USAGE, "no namespace id")
        self.check(self.k("pin", "llama"), USAGE, "llama", "no namespace id")
        self.check(self.k("pin"), USAGE, "no namespace given")
        self.check(self.k("unpin"), USAGE, "no namespace given")
        self.check(self.k("unpin", "a-0000000000000000", "b"), USAGE, "unexpected")
        self.check(run("-D", self.path("absent"), "pin", "llama-0000000000000000"), CONFIG, "absent")
        nixl = self.path("nixl")
        os.mkdir(nixl, 0o700)
        self.check(run("-D", nixl, "-s", "naming=nixl", "put", "k", "--model", "llama", stdin=b"x"),
                   DONE)
        self.check(run("-D", nixl, "-s", "naming=nixl", "pin", "llama"), CONFIG, "nixl",
                   "no namespaces")
        self.assertFalse(os.path.exists(os.path.join(nixl, ".kvcellar", "pins")))


if __name__ == "__main__":
    support.main()
