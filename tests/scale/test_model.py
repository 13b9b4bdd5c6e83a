"""The model's own rules. `tests/scale/run --quick` runs these."""

import unittest

from model import Costs, Cores, Model, Site, Step


def costs(**changed):
    """Steps of a millisecond each, but for what is changed."""
    steps = dict.fromkeys(Costs.__dataclass_fields__, Step(0.001))
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

    def test_no_recipient_is_forgotten(self):
        for serve in (False, True):
            with self.subTest(serve=serve):
                site = Site(costs(), hosts=3, rate=200, serve=serve, until=20, away=(8.0, 90.0), warm=0, drain=20000)
                done = Model(site).run()
                self.assertEqual(done.recipients, done.delivered)


if __name__ == "__main__":
    unittest.main()
