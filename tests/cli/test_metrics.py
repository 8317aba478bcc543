#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus takes them: promtool, a real server that scrapes, rules and dashboard."""
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import support
from support import CONFIG, DONE, KVCELLAR, SOURCE, environment, run

RULES = os.path.join(SOURCE, "docs", "prometheus", "kvcellar-rules.yml")
DASHBOARD = os.path.join(SOURCE, "docs", "grafana", "kvcellar.json")
OPERATIONS = os.path.join(SOURCE, "docs", "operations.md")
METRIC = re.compile(r"\bkvcellar_[a-z0-9_]+")
# What a root tells only when it is known.
SOMETIMES = {"kvcellar_root_oldest_live_age_seconds"}

found = subprocess.run([os.path.join(SOURCE, "scripts", "prometheus"), "--find"],
                       capture_output=True, text=True, check=False)
if found.returncode == 77:
    print(found.stderr.strip())
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    probe = run("-D", folder, "-s", "metrics_listen=127.0.0.1:0", "info")
if "libmicrohttpd" in probe.errors:
    print("SKIP:", probe.errors.strip())
    sys.exit(77)
PROMTOOL = os.path.join(found.stdout.strip(), "promtool")
PROMETHEUS = os.path.join(found.stdout.strip(), "prometheus")


def dashboard_expressions():
    """(panel, expression) as the server gets them: Grafana has put in its variables."""
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], (target["expr"].replace("$__rate_interval", "5m")
                                   .replace("$instance", ".*").replace("$rank", ".*"))


def names_in(text):
    """Metrics that a text names, without what a histogram adds."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(text)}


def alerts():
    """(name, expression) of each rule, the way the file lays them out."""
    with open(RULES, encoding="utf-8") as file:
        text = file.read()
    for rule in re.split(r"\n {6}- alert: ", text)[1:]:
        name = rule.split("\n", 1)[0]
        expression = re.search(r"expr: (?:>-\n)?(.*?)\n {8}(?! )", rule, re.DOTALL).group(1)
        yield name, " ".join(expression.split())


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=support.TIMEOUT) as answer:
        return answer.read().decode()


class Metrics(support.Case):
    def start(self, *settings, root=None):
        """A process with an open store: it waits for the bytes of its put. Its log is in a file."""
        arguments = [argument for setting in settings for argument in ("-s", setting)]
        log = open(self.path(f"log-{time.monotonic_ns()}"), "w+b")
        self.addCleanup(log.close)
        process = subprocess.Popen([KVCELLAR, "-v", "-D", root or self.root, *arguments, "put", "k"],
                                   stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log,
                                   env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)
        process.log = log.name
        return process

    def wait_for(self, process, pattern):
        """The match of a pattern in the process's log."""
        return self.wait(lambda: re.search(pattern, self.read(process.log)),
                         lambda: f"no {pattern} in {self.read(process.log)}")

    def wait(self, condition, problem):
        end = time.monotonic() + support.TIMEOUT
        while time.monotonic() < end:
            answer = condition()
            if answer:
                return answer
            time.sleep(0.02)
        return self.fail(problem())

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def serve(self, *settings, root=None):
        """(process, URL) of one that serves and has said which namespace it is for."""
        process = self.start("metrics_listen=127.0.0.1:0", *settings, root=root)
        url = self.wait_for(process, r"metrics are served at (\S+)").group(1)
        self.wait(lambda: 'rank="tp0"' in fetch(url), lambda: "no label of a rank")
        return process, url

    def packed(self):
        """Settings and folder of a packed root, so that there are metrics of an index."""
        return ("storage_layout=packed", "capacity=64MiB", "min_free=0"), self.path("packed")

    def promtool(self, *arguments, stdin=""):
        return subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, text=True,
                              timeout=support.TIMEOUT, check=False)

    def expect_clean(self, text):
        self.assertIn("kvcellar_calls_total", text)
        done = self.promtool("check", "metrics", stdin=text)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    # ---------------------------------------------------------------- what is given out

    def test_promtool_has_nothing_to_say(self):
        root = self.path('a "quoted" \\ \u00fc {x="y"}')
        os.mkdir(root)
        file = self.path("kv-{rank}.prom")
        process, url = self.serve(f"metrics_file={file}", root=root)
        served = fetch(url)
        self.expect_clean(served)
        self.assertIn(r'root="', served)
        self.assertIn(r'a \"quoted\" \\ ' + '\u00fc {x=', served)
        self.expect_clean(run("stats", root, "--prometheus").text)
        process.stdin.close()
        self.assertEqual(process.wait(support.TIMEOUT), 0)
        self.expect_clean(self.read(self.path("kv-tp0.prom")))
        self.assertEqual(names_in(self.read(self.path("kv-tp0.prom"))), names_in(served))

    def test_promtool_has_nothing_to_say_about_an_index(self):
        settings, root = self.packed()
        _, url = self.serve(*settings, root=root)
        self.assertIn("kvcellar_packed_live_slots{", fetch(url))
        self.expect_clean(fetch(url))

    def test_info_tells_where(self):
        done = self.check(self.k("-s", "metrics_listen=127.0.0.1:0", "info", "--json"), DONE)
        self.assertRegex(done.json["store"]["store"]["metrics"], r"^http://127\.0\.0\.1:\d+/metrics$")
        self.assertEqual(self.k("info", "--json").json["store"]["store"]["metrics"], "")
        self.assertNotIn("metrics ", self.k("info").text)

    def test_a_port_in_use_stops_nobody(self):
        _, url = self.serve()
        address = url.split("/")[2]
        second = self.start(f"metrics_listen={address}")
        self.wait_for(second, f"warning: metrics_listen: {re.escape(address)} is in use")
        done = self.check(self.k("-s", f"metrics_listen={address}", "info", "--json"), DONE)
        self.assertIn("in use by another process", done.json["store"]["store"]["metrics"])
        self.assertEqual(done.errors, "")  # nothing for whoever does not ask with -v
        self.assertIn("kvcellar_calls_total", fetch(url))
        second.stdin.close()
        self.assertEqual(second.wait(support.TIMEOUT), 0)

    def test_an_address_that_is_none_of_the_loopback_is_an_error(self):
        self.check(self.k("-s", "metrics_listen=0.0.0.0:9464", "put", "k"), CONFIG, "metrics_listen")
        self.check(self.k("-s", "metrics_listen=127.0.0.1", "put", "k"), CONFIG, "metrics_listen")

    def test_signals_are_not_its_business(self):
        process, url = self.serve()
        statuses = [self.read(path) for path in glob.glob(f"/proc/{process.pid}/task/*/status")]
        [status] = [status for status in statuses if status.startswith("Name:\tkvc-metrics\n")]
        blocked = int(re.search(r"SigBlk:\s*([0-9a-f]+)", status).group(1), 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE):
            self.assertTrue(blocked >> (number - 1) & 1, number)
        self.assertFalse(blocked >> (signal.SIGBUS - 1) & 1)
        self.assertIn("kvcellar", fetch(url))

    # ---------------------------------------------------------------- a real server

    def start_prometheus(self, targets):
        """The API's URL of a server that scrapes them once a second and has our rules."""
        config = self.path("prometheus.json")  # JSON is YAML
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                       "rule_files": [os.path.abspath(RULES)],
                       "scrape_configs": [{"job_name": "kvcellar",
                                           "static_configs": [{"targets": targets}]}]}, file)
        checked = self.promtool("check", "config", config)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        for _ in range(5):  # somebody may take the port in between
            address = f"127.0.0.1:{free_port()}"
            log = open(self.path("prometheus.log"), "wb")
            server = subprocess.Popen(
                [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={self.path('tsdb')}",
                 f"--web.listen-address={address}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            log.close()
            self.addCleanup(server.wait)
            self.addCleanup(server.terminate)
            while server.poll() is None:
                try:
                    fetch(f"http://{address}/-/ready")
                    return f"http://{address}/api/v1/"
                except (urllib.error.URLError, OSError):
                    time.sleep(0.05)
        return self.fail(self.read(self.path("prometheus.log")))

    @staticmethod
    def query(api, expression):
        """The result, or the server's error as a text."""
        try:
            answer = fetch(api + "query?" + urllib.parse.urlencode({"query": expression}))
        except urllib.error.HTTPError as error:
            return error.read().decode()
        return json.loads(answer)["data"]["result"]

    def test_prometheus_scrapes(self):
        settings, root = self.packed()
        _, first = self.serve(*settings, root=root)
        _, second = self.serve()
        api = self.start_prometheus([first.split("/")[2], second.split("/")[2]])
        self.wait(lambda: len(self.query(api, "kvcellar_build_info")) == 2,
                  lambda: fetch(api + "targets"))
        for target in json.loads(fetch(api + "targets"))["data"]["activeTargets"]:
            self.assertEqual((target["health"], target["lastError"]), ("up", ""))
        [sample] = self.query(api, f'kvcellar_root_writable{{root="{root}"}}')
        self.assertEqual(sample["value"][1], "1")
        self.assertEqual(sample["metric"]["rank"], "tp0")
        self.assertRegex(sample["metric"]["namespace"], r"-[0-9a-f]{16}$")
        # What the server has is what was given out.
        stored = set(json.loads(fetch(api + "label/__name__/values"))["data"])
        given = names_in(fetch(first)) | names_in(fetch(second))
        self.assertEqual({name for name in names_in(" ".join(stored))}, given)
        # Each expression of the dashboard is one that the server understands.
        for panel, expression in dashboard_expressions():
            self.assertIsInstance(self.query(api, expression), list, (panel, expression))
        # Each rule has been evaluated without an error.
        def rules():
            groups = json.loads(fetch(api + "rules"))["data"]["groups"]
            return [rule for group in groups for rule in group["rules"]]
        self.wait(lambda: rules() and all(rule["health"] != "unknown" for rule in rules()),
                  lambda: json.dumps(rules()))
        self.assertEqual([rule for rule in rules() if rule["health"] != "ok"], [])
        firing = [rule["name"] for rule in rules() if rule["state"] == "firing"]
        self.assertEqual(firing, [])

    # ---------------------------------------------------------------- rules and dashboard

    def metrics(self):
        """All that a process with a root of each layout gives out."""
        settings, root = self.packed()
        _, first = self.serve(*settings, root=root)
        _, second = self.serve("capacity=64MiB")
        return names_in(fetch(first)) | names_in(fetch(second)) | SOMETIMES

    def test_rules_and_dashboard_name_what_there_is(self):
        known = self.metrics()
        for name, expression in alerts():
            # One is about the files themselves, by what their collector says of them.
            self.assertTrue(names_in(expression) or "node_textfile_mtime_seconds" in expression,
                            name)
            self.assertLessEqual(names_in(expression), known, name)
        for panel, expression in dashboard_expressions():
            self.assertTrue(names_in(expression), panel)
            self.assertLessEqual(names_in(expression), known, panel)

    def test_each_counter_has_a_rule_and_an_action(self):
        done = self.promtool("check", "rules", RULES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        expressions = " ".join(expression for _, expression in alerts())
        _, url = self.serve()
        text = fetch(url)
        counters = set(re.findall(r"# TYPE (\S+) (?:counter|histogram)", text))
        self.assertGreater(len(counters), 15)
        self.assertEqual(counters - names_in(expressions), set())
        # Each alert has a row in the document, with what it looks at and what to do.
        rows = dict(re.findall(r"(?m)^\| `(Kvcellar\w+)` \| (.+) \|$", self.read(OPERATIONS)))
        self.assertEqual(set(rows), {name for name, _ in alerts()})
        for name, row in rows.items():
            self.assertEqual(len(row.split(" | ")), 2, name)

    def test_each_alert_fires_when_it_should(self):
        status = 'kvcellar_pages_by_status_total{operation="%s",status="%s",instance="a",rank="tp0"}'
        cause = 'kvcellar_pages_by_cause_total{operation="exists",cause="%s",instance="a",rank="tp0"}'
        plain = 'kvcellar_%s{instance="a",rank="tp0"}'
        root = 'kvcellar_%s{instance="a",rank="tp0",root="/r"}'
        operation = 'kvcellar_%s{operation="%s",instance="a",rank="tp0"}'
        grows, still = "0+60x600", "7+0x600"
        fires = {
            "KvcellarCorrupt": {status % ("get", "corrupt"): grows},
            "KvcellarRemovedCorrupt": {plain % "removed_corrupt_total": grows},
            "KvcellarTimeouts": {status % ("get", "timeout"): grows},
            "KvcellarParkedQueues": {plain % "parked_queues": still},
            "KvcellarRootSuspect": {root % "root_suspect": "1+0x600"},
            "KvcellarRootNotWritable": {root % "root_writable": "0+0x600"},
            "KvcellarDenied": {status % ("set", "denied"): grows},
            "KvcellarErrors": {status % ("set", "error"): grows},
            "KvcellarUnreadableEntries": {cause % "marked": grows},
            "KvcellarOverruns": {plain % "overruns_total": grows},
            "KvcellarIndexBroken": {root % "packed_broken": "1+0x600"},
            "KvcellarQuarantine": {root % "packed_quarantined": "1+0x600"},
            "KvcellarFull": {status % ("set", "full"): grows},
            "KvcellarDeviceFull": {root % "root_free_bytes": "4+0x600",
                                   root % "root_total_bytes": "100+0x600"},
            "KvcellarOverCapacity": {root % "root_own_bytes": "110+0x600",
                                     root % "root_capacity_bytes": "100+0x600"},
            "KvcellarEvictedSoon": {root % "root_oldest_live_age_seconds": "60+0x600",
                                    plain % "evicted_total": grows},
            "KvcellarAskedAgain": {plain % "ghost_hits_total": "0+30x600",
                                   cause % "absent": grows},
            "KvcellarEvictions": {plain % "evicted_total": "0+300x600",
                                  status % ("set", "ok"): grows},
            "KvcellarTurnover": {plain % "evicted_bytes_total": "0+2x600",
                                 root % "root_capacity_bytes": "100+0x600"},
            "KvcellarUsageDrift": {plain % "usage_drift_total": "0+9000000x600"},
            "KvcellarReclaimed": {plain % "reclaimed_total": grows},
            "KvcellarSlowCalls": {
                'kvcellar_call_duration_seconds_bucket{operation="get",le="1.0",instance="a"}': still,
                'kvcellar_call_duration_seconds_bucket{operation="get",le="2.0",instance="a"}': grows,
                'kvcellar_call_duration_seconds_bucket{operation="get",le="+Inf",instance="a"}': grows},
            "KvcellarSlowReads": {operation % ("bytes_total", "get"): grows,
                                  operation % ("call_duration_seconds_sum", "get"): grows},
            "KvcellarBounced": {plain % "bounced_total": "0+120x600",
                                operation % ("pages_total", "get"): grows},
            "KvcellarRetries": {plain % "retries_total": "0+1200x600",
                                operation % ("pages_total", "set"): grows},
            "KvcellarFallback": {plain % "fallbacks_total": "1+0x600"},
            "KvcellarManyQueues": {plain % "storage_registrations": "300+0x600"},
            "KvcellarManyRegions": {plain % "host_registrations": "100+0x600"},
            "KvcellarAbsent": {"up": "1+0x600"},
            # One of two ranks is gone since the third hour.
            "KvcellarRankMissing": {
                'kvcellar_build_info{instance="a",job="k",rank="tp0"}': "1+0x600",
                'kvcellar_build_info{instance="a",job="k",rank="tp1"}': "1+0x180"},
            "KvcellarFileStale": {
                'node_textfile_mtime_seconds{instance="a",file="/m/kvcellar-tp0.prom"}': "0+0x600"},
            "KvcellarNotCalled": {operation % ("calls_total", "get"): still},
            "KvcellarNothingStored": {operation % ("pages_total", "set"): still,
                                      plain % "prefix_calls_total": grows},
            "KvcellarFewHits": {plain % "prefix_pages_found_total": "0+1x600",
                                plain % "prefix_pages_asked_total": grows},
        }
        self.assertEqual(set(fires), {name for name, _ in alerts()})
        info = 'kvcellar_build_info{instance="a",rank="tp0",version="1"}'
        # A server that is well; each of its rates would make some rule fire if it were another.
        well = {info: "1+0x600", operation % ("calls_total", "get"): grows,
                operation % ("pages_total", "get"): grows, operation % ("pages_total", "set"): grows,
                operation % ("bytes_total", "get"): "0+60000000000x600",
                operation % ("call_duration_seconds_sum", "get"): grows,
                status % ("get", "ok"): grows, status % ("set", "ok"): grows,
                status % ("get", "corrupt"): still, status % ("get", "timeout"): still,
                cause % "absent": grows, plain % "ghost_hits_total": "0+1x600",
                plain % "evicted_total": grows, plain % "evicted_bytes_total": grows,
                plain % "bounced_total": still, plain % "retries_total": grows,
                plain % "overruns_total": still, plain % "removed_corrupt_total": still,
                plain % "fallbacks_total": "0+0x600", plain % "parked_queues": "0+0x600",
                plain % "prefix_calls_total": grows, plain % "prefix_pages_asked_total": grows,
                plain % "prefix_pages_found_total": "0+30x600", root % "root_suspect": "0+0x600",
                root % "root_writable": "1+0x600", root % "root_free_bytes": "50+0x600",
                root % "root_total_bytes": "100+0x600", root % "root_own_bytes": "100000000+0x600",
                root % "root_capacity_bytes": "100000000+0x600",
                root % "root_oldest_live_age_seconds": "86400+0x600",
                'node_textfile_mtime_seconds{instance="a",file="/m/kvcellar-tp0.prom"}': "0+60x600",
                'node_textfile_mtime_seconds{instance="a",file="/m/others.prom"}': "0+0x600",
                root % "packed_broken": "0+0x600", root % "packed_quarantined": "0+0x600"}

        def test_of(series, expression, samples):
            return {"interval": "1m",
                    "input_series": [{"series": name, "values": values}
                                     for name, values in series.items()],
                    "promql_expr_test": [{"expr": expression, "eval_time": "4h",
                                          "exp_samples": samples}]}

        tests = [test_of(series, f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                         [{"labels": "{}", "value": 1}]) for name, series in fires.items()]
        tests.append(test_of(well, "ALERTS", []))
        path = self.path("tests.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"rule_files": [os.path.abspath(RULES)], "evaluation_interval": "5m",
                       "tests": tests}, file)
        done = self.promtool("test", "rules", path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_dashboard_is_whole(self):
        with open(DASHBOARD, encoding="utf-8") as file:
            dashboard = json.load(file)
        panels = dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
        for i, (x, y, w, h) in enumerate(places):
            self.assertLessEqual(x + w, 24)
            for ox, oy, ow, oh in places[:i]:
                self.assertFalse(x < ox + ow and ox < x + w and y < oy + oh and oy < y + h)
        names = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
        self.assertLessEqual(used, names | {"__rate_interval"})
        self.assertEqual(glob.glob(os.path.join(os.path.dirname(DASHBOARD), "*")), [DASHBOARD])


if __name__ == "__main__":
    support.main()
