"""The model's own rules. `tests/scale/run --quick` runs these."""

import pathlib
import tempfile
import unittest

import inputs
from model import Costs, Cores, Model, Site, Step


def costs(**changed):
    """Steps of a millisecond each, but for what is changed; a session ends at once."""
    steps = dict.fromkeys(Costs.__dataclass_fields__, Step(0.001)) | {"end": Step(0.0)}
    return Costs(**{**steps, **changed})


class Rules(unittest.TestCase):
    def test_steps_wait_for_a_processor_in_their_order(self):
        cores = Cores(2)
        self.assertEqual([cores.ends(0.0, 1.0) for _ in range(4)], [1.0, 1.0, 2.0, 2.0])

    def test_half_of_a_processor_takes_twice_as_long(self):
        self.assertEqual(Cores(0.5).ends(0.0, 1.0), 2.0)

    def test_a_message_alone_takes_its_steps_and_no_more(self):
        done = Model(Site(costs(), hosts=1, storm=[(0.0, 1, False)], warm=0, vary=0)).run()
        self.assertAlmostEqual(done.longest, 0.008, places=6)
        self.assertEqual((done.deferred, done.opened_in_all), (0, 1))

    def test_an_author_who_lives_here_has_one_copy_by_whichever_recipient(self):
        model = Model(Site(costs(), hosts=1, storm=[(0.0, 5, True)], warm=0))
        self.assertEqual(model.run().delivered, 5)
        self.assertEqual(len(model.sent), 1)

    def test_who_does_not_wait_for_the_lock_is_deferred_and_comes_back(self):
        site = dict(hosts=1, host_cores=50, imap_cores=50, database_cores=50, storm=[(0.0, 10, False)], warm=0, drain=40000)
        waiting = Model(Site(costs(), **site)).run()
        hasty = Model(Site(costs(), **site, lock_wait=0.0)).run()
        self.assertEqual((waiting.deferred, waiting.delivered), (0, 10))
        self.assertGreater(hasty.deferred, 0)
        self.assertEqual(hasty.delivered, 10)
        self.assertGreaterEqual(hasty.longest, 300.0)

    def test_the_service_takes_one_lock_for_all_recipients_of_a_message(self):
        model = Model(Site(costs(), hosts=1, serve=True, storm=[(0.0, 50, False)], warm=0))
        done = model.run()
        self.assertEqual((done.delivered, len(model.lock_waits), done.opened_in_all), (50, 1, 0))

    def test_a_pooler_has_no_more_sessions_than_were_ever_in_use_at_once(self):
        site = dict(hosts=2, rate=100, until=10, warm=0)
        pooled, each = Model(Site(costs(), **site, pooled=True)).run(), Model(Site(costs(), **site)).run()
        self.assertEqual(each.opened_in_all, each.tries)
        self.assertLessEqual(pooled.opened_in_all, 40)

    def test_beyond_the_databases_connections_nobody_is_let_in(self):
        done = Model(Site(costs(append=Step(0.0, 1.0)), hosts=1, max_connections=2, storm=[(0.0, 1, False)] * 6, warm=0)).run()
        self.assertEqual((done.held_most, done.delivered, done.deferred), (2, 6, 0))

    def test_while_the_database_is_away_nobody_has_a_session(self):
        model = Model(Site(costs(), hosts=1, storm=[(1.0, 1, False)], away=(0.0, 15.0), warm=0))
        done = model.run()
        self.assertEqual(done.deferred, 0)
        self.assertGreaterEqual(done.longest, 14.0)

    def test_longer_than_its_patience_nobody_waits_for_the_database(self):
        done = Model(Site(costs(), hosts=1, storm=[(1.0, 1, False)], away=(0.0, 100.0), patience=60.0, warm=0)).run()
        self.assertEqual(done.why, {"no database": 1})
        self.assertEqual(done.delivered, 1)

    def test_one_host_holds_no_more_sessions_than_it_may_run_processes(self):
        # In a fail-over all of them are held, and the rest waits in Postfix's queue.
        site = Site(costs(), hosts=1, host_cores=50, rate=200, until=20, away=(5.0, 5.0), warm=0, processes=7)
        done = Model(site).run()
        self.assertEqual((done.held_most, done.delivered), (7, done.recipients))
        self.assertGreater(done.waiting_most, 500)

    def test_a_hundred_hosts_share_what_comes(self):
        model = Model(Site(costs(), hosts=100, host_cores=1, rate=1000, mix={1: 1.0}, until=8, warm=0))
        done = model.run()
        self.assertEqual((done.deferred, done.delivered), (0, done.recipients))
        busy = sorted(cores.busy for cores in model.host_cores)
        self.assertGreater(busy[0], 0.5 * busy[-1])

    def test_the_service_holds_its_workers_sessions_on_each_host(self):
        done = Model(Site(costs(), hosts=100, workers=3, serve=True, rate=100, until=5, warm=0)).run()
        self.assertEqual((done.held_most, done.opened_in_all), (300, 0))

    def test_no_recipient_is_forgotten(self):
        for serve in (False, True):
            with self.subTest(serve=serve):
                site = Site(costs(), hosts=3, rate=200, serve=serve, until=20, away=(8.0, 90.0), warm=0, drain=20000)
                done = Model(site).run()
                self.assertEqual(done.recipients, done.delivered)


class Inputs(unittest.TestCase):
    """inputs.toml, out of what was measured."""

    def setUp(self):
        run = lambda **cpu: {"cpu": {"hosts": 0, "database": 0, "imap": 0, "pooler": 0, **cpu}, "tries": 100}
        stages = {"connect": 4.0, "route": 1.0, "journal": 1.0, "lock, look": 2.0, "record": 1.5}
        copies = {1: (8.0, 3.0, 2.0), 10: (7.0, 1.2, 0.65)}
        copies = {inputs.COPY.format(n): dict(zip(("imap", "database", "ours"), cost)) for n, cost in copies.items()}
        self.measured = {
            "date": "2026-11-25", "machine": "another", "load": [1, 2, 3], "load after": [4, 5, 6],
            "one at a time": run(imap=1.0), "one at a time, with a Sent copy": run(imap=3.0),
            "flood": run(hosts=1.1, database=1.5, imap=1.8), "flood, pooled": run(database=0.7, pooler=0.8),
            "bench": {
                "stages": {"machine": "a machine", **{name: {"ms": took} for name, took in stages.items()}},
                "process": {"machine": "a machine", "a delivery": {"cpu": 6.0}},
                "service": {"machine": "a machine", **copies},
            },
        }
        self.text = (pathlib.Path(__file__).parent / "inputs.toml").read_text()

    def test_each_number_is_made_of_what_was_measured(self):
        values = inputs.values(self.measured)
        self.assertEqual({name: round(took, 6) for name, took in values["pipe"].items()},
                         {"host": 11.0, "database": 15.0, "login": 10.0, "append": 8.0, "author": 12.0})
        self.assertEqual({name: round(took, 6) for name, took in values["pooled"].items()}, {"database": 7.0, "host_more": 8.0})
        self.assertEqual({name: round(took, 6) for name, took in values["service"].items()},
                         {"host": 7.0, "host_further": 0.5, "database": 3.0, "further": 1.0})

    def test_comments_and_what_is_assumed_stay_and_numbers_are_replaced(self):
        written = inputs.written(self.text, self.measured)
        comments = lambda text: [line.split("#")[1].strip() for line in text.splitlines() if "#" in line]
        self.assertEqual(comments(written), comments(self.text))
        self.assertEqual(written.split("\n[sites]\n")[1], self.text.split("\n[sites]\n")[1])
        self.assertIn("\nlogin = 10.00 ", written)
        self.assertIn('\nstages = "a machine"\n', written)
        self.assertEqual(inputs.written(written, self.measured), written)

    def test_the_benchs_tables_are_read(self):
        results = pathlib.Path(__file__).parents[1] / "bench" / "results.md"
        with tempfile.TemporaryDirectory() as folder:
            service = pathlib.Path(folder) / "service.md"
            service.write_text(
                "2 × a machine.\n\n## service\n\n"
                "| maildropd | Maildir, 1 each, processes kept | 99 | 9.29 (9.06 – 9.52) | 5.78 | 2.28 | 1.25 | 0.6 | 0.6 |\n"
                "| Dovecot's LMTP | Maildir, 10 each, processes kept | 177 | 5.16 | 5.11 | 0.00 | 0.00 | | |\n"
                "| maildropd | Maildir, 10 each, processes kept | 149 | 5.42 (5.27 – 5.44) | 4.61 | 0.42 | 0.33 | 1 | 1 |\n")
            figures = inputs.of_the_bench([results, service])
            with self.assertRaises(SystemExit):
                inputs.of_the_bench([service])
        self.assertEqual(figures["service"][inputs.COPY.format(10)], {"imap": 4.61, "database": 0.42, "ours": 0.33})
        self.assertEqual(figures["service"]["machine"], "2 × a machine.")
        self.assertGreater(figures["stages"]["lock, look"]["ms"], 0)
        self.assertGreater(figures["process"]["a delivery"]["cpu"], 0)

    def test_what_cannot_be_is_not_written(self):
        self.measured["flood"]["cpu"]["imap"] = 0.1
        with self.assertRaises(SystemExit):
            inputs.written(self.text, self.measured)


if __name__ == "__main__":
    unittest.main()
