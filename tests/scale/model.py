"""A model of many mail hosts before one database and the mailbox stores: what is waited for, and for how long.

Time is in seconds, and one event stands for one step of a delivery. The steps are those of src/site/deliver.rs and
src/delivery: connect, addresses, log in; journal, lock and look, append, record. Postfix's part is what its manual says of
retries (qmgr(8), postconf(5): minimal_backoff_time, maximal_backoff_time, queue_run_delay) and of process limits.
"""

import heapq
import math
import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import simpy


@dataclass
class Step:
    """What a step of a delivery takes: processor time at one of the servers, and waiting beside it."""

    cpu: float
    wait: float = 0.0
    spread: float = 0.0  # the standard deviation of its logarithm; if 0, it varies as Site.vary says


@dataclass
class Costs:
    """The steps of one delivery, from inputs.toml or from what tests/scale/measure has seen."""

    host: Step  # starting and ending the process, Postfix's part, reading the message
    connect: Step
    route: Step
    login: Step
    journal: Step
    lock: Step  # and the look
    append: Step
    record: Step
    asked: Step  # who has the lock, where it was not got
    busy: Step  # ending an attempt that did not get it
    further: Step  # what the database does for each further recipient of one message, by the service
    host_further: Step  # what the host does for each of these
    author: Step  # the login for the author's copy, beside a recipient's
    end: Step = field(default_factory=lambda: Step(0.0))  # of a session with the database, after its delivery


@dataclass
class Site:
    """What an administrator buys and configures, and what comes."""

    costs: Costs
    hosts: int = 10
    rate: float = 100.0  # recipients a second, on all hosts together
    serve: bool = False
    mix: dict = field(default_factory=lambda: {1: 0.90, 10: 0.09, 50: 0.01})  # recipients of a message: share of messages
    authors: float = 0.3  # the share of messages whose author lives here
    both_hosts: float = 0.1  # the share of messages with several recipients that come to two hosts at once
    database_cores: float = 16
    imap_cores: float = 64
    host_cores: float = 8
    login_line: float = 0.0  # where logins go one after the other, what each takes of that line
    max_connections: int = 100_000
    commits: float = 20_000  # that the database can make durable in a second
    pooled: bool = False  # PgBouncer on each host, in transaction mode, with as many sessions as are ever in use at once
    processes: int = 20  # of the transport, on each host
    workers: int = 4  # of the service, on each host
    mailbox_sessions: int = 8
    users: int = 100_000
    busy_users: float = 0.0  # a share of mail that goes to a thousandth of them
    lock_wait: float = 30.0
    patience: float = 60.0  # database.failover_timeout
    worker_wait: float = 30.0  # service.worker_wait
    backoff: tuple = (300.0, 4000.0)
    queue_run: float = 300.0
    away: tuple = None  # the database: (from, for)
    until: float = 60.0  # mail comes until then
    warm: float = 5.0  # what comes before is not counted
    drain: float = 6000.0
    vary: float = 0.5  # a step takes so much more or less, by chance
    seed: int = 1
    storm: list = None  # instead of mail by chance: (when, recipients, author is local)


class Cores:
    """Processors that take steps in the order in which they come."""

    def __init__(self, cores):
        # What is not a whole number is a slower one: two that get 1.4 of their time are two of speed 0.7.
        self.count = max(1, math.ceil(cores))
        self.speed = cores / self.count
        self.free, self.busy = [0.0] * self.count, 0.0

    def ends(self, now, cpu):
        """When a step that comes now has had its processor time."""
        took = cpu / self.speed
        end = max(now, heapq.heappop(self.free)) + took
        heapq.heappush(self.free, end)
        self.busy += took
        return end


class Lost(Exception):
    """The session with the database is gone: its server is no longer the primary."""


class Model:
    def __init__(self, site):
        self.site, self.env, self.chance = site, simpy.Environment(), random.Random(site.seed)
        self.database, self.imap = Cores(site.database_cores), Cores(site.imap_cores)
        self.host_cores = [Cores(site.host_cores) for _ in range(site.hosts)]
        self.login_line, self.flushes = Cores(1), Cores(1)
        self.pools = [[0, 0] for _ in range(site.hosts)]  # the epoch of its sessions, and how many of them are idle
        slots = site.processes
        self.slots = [simpy.Resource(self.env, slots) for _ in range(site.hosts)]
        self.workers = [simpy.Resource(self.env, site.workers) for _ in range(site.hosts)]
        # The mailboxes that each worker has a session for, the one used last at the end; a worker is whoever has waited longest.
        self.idle = [[OrderedDict() for _ in range(site.workers)] for _ in range(site.hosts)]
        self.connected = [[None] * site.workers for _ in range(site.hosts)]
        self.whose = [list(range(site.workers)) for _ in range(site.hosts)]
        self.count, self.locks, self.sent = Counter(), {}, set()
        self.held, self.most, self.area, self.last = 0, 0, 0.0, 0.0
        self.delays, self.lock_waits, self.tries = [], [], []
        self.waiting, self.most_waiting, self.waiting_at = 0, 0, []
        self.opened_at_end = None

    # What there is of the database.

    def is_away(self):
        return self.site.away is not None and 0 <= self.env.now - self.site.away[0] < self.site.away[1]

    def epoch(self):
        return 1 if self.site.away is not None and self.env.now >= self.site.away[0] else 0

    def connections(self, more):
        now = self.env.now
        self.area += self.held * max(0.0, now - max(self.last, self.site.warm))
        self.last, self.held = now, self.held + more
        self.most = max(self.most, self.held)
        if now >= self.site.warm:
            self.count["opened"] += max(0, more)

    def work(self, cores, step, times=1):
        if step.spread:
            times *= self.chance.lognormvariate(-(step.spread ** 2) / 2, step.spread)
        else:
            times *= self.chance.uniform(1 - self.site.vary, 1 + self.site.vary)
        end = cores.ends(self.env.now, step.cpu * times)
        return self.env.timeout(end - self.env.now + step.wait * times)

    def asks(self, step, epoch, times=1, commits=False):
        """A statement in a session that was opened in that epoch."""
        if self.epoch() != epoch:
            raise Lost
        yield self.work(self.database, step, times)
        if commits:
            flushed = self.flushes.ends(self.env.now, 1 / self.site.commits)
            if flushed - self.env.now > 0.001:
                yield self.env.timeout(flushed - self.env.now)
        if self.epoch() != epoch:
            raise Lost

    def connect(self, host):
        """A session, within database.failover_timeout; its epoch, or None. Pauses grow, and differ by chance (src/database/hosts.rs)."""
        site, give_up, pause = self.site, self.env.now + self.site.patience, 0.25
        pool = self.pools[host]
        while self.is_away() or (self.held >= site.max_connections and not pool[1]):
            if self.env.now >= give_up:
                return None
            yield self.env.timeout(min(give_up - self.env.now, pause * self.chance.uniform(0.5, 1.5)))
            pause = min(4.0, 2 * pause)
        epoch = self.epoch()
        if pool[0] != epoch:
            self.connections(-pool[1])
            pool[:] = [epoch, 0]
        if pool[1]:
            pool[1] -= 1
            return epoch
        self.connections(1)
        yield self.work(self.database, site.costs.connect)
        return epoch

    def reach(self, host, epoch=None):
        """A session that has been asked for the addresses; until then, one that is lost is opened anew (src/site/deliver.rs)."""
        while True:
            if epoch is None:
                epoch = yield from self.connect(host)
                if epoch is None:
                    return None
            try:
                yield from self.asks(self.site.costs.route, epoch)
                return epoch
            except Lost:
                self.close(host, epoch)
                epoch = None

    def close(self, host, epoch):
        """Ends the session, or gives it back to the pooler."""
        if self.site.pooled and epoch == self.epoch() == self.pools[host][0]:
            self.pools[host][1] += 1
        elif self.site.costs.end.cpu or self.site.costs.end.wait:
            self.env.process(self.ends(self.site.costs.end))
        else:
            self.connections(-1)

    def ends(self, step):
        """A server that has much to do holds a session for a while after its client has gone."""
        yield self.work(self.database, step)
        self.connections(-1)

    # One delivery.

    def locked(self, message):
        """Waits for the lock; the request, or None where another had it for too long."""
        lock = self.locks.get(message)
        if lock is None:
            lock = self.locks[message] = simpy.Resource(self.env, 1)
        request = lock.request()
        if not request.triggered:
            self.count["met"] += 1
            yield request | self.env.timeout(self.site.lock_wait)
        if not request.triggered:
            request.cancel()
            return None
        return request

    def append(self, message, recipients, local):
        """The recipients' copies, and the author's where it is not there yet."""
        costs, site = self.site.costs, self.site
        sessions = site.mailbox_sessions if site.serve else 1
        left = recipients
        while left > 0:
            together = min(left, sessions)
            yield self.env.all_of([self.work(self.imap, costs.append) for _ in range(together)]) if together > 1 \
                else self.work(self.imap, costs.append)
            left -= together
        if local and message not in self.sent:
            self.sent.add(message)
            yield self.work(self.imap, costs.append)

    def under_lock(self, message, recipients, single, local, epoch):
        """Journal, lock, look, append, record: 'sent', 'busy'."""
        costs, request = self.site.costs, None
        try:
            yield from self.asks(costs.journal, epoch, commits=True)
            # The lock is taken in the middle of its step, and held while the rest of it is looked up and answered.
            began = self.env.now
            yield from self.asks(costs.lock, epoch, 0.5)
            if not single:
                request = yield from self.locked(message)
                if request is None:
                    yield from self.asks(costs.asked, epoch)
                    self.lock_waits.append(self.env.now - began)
                    yield from self.asks(costs.busy, epoch, commits=True)
                    return "busy"
            yield from self.asks(costs.lock, epoch, 0.5)
            self.lock_waits.append(self.env.now - began)
            yield from self.append(message, recipients, local)
            yield from self.asks(costs.record, epoch, commits=True)
            if recipients > 1:
                yield from self.asks(costs.further, epoch, recipients - 1)
            return "sent"
        finally:
            if request is not None:
                self.locks[message].release(request)

    def log_in(self, times, author=False):
        """Side by side, for so many recipients, and for the author."""
        costs = self.site.costs
        if self.site.login_line:
            took = (times + author) * self.site.login_line * self.chance.uniform(1 - self.site.vary, 1 + self.site.vary)
            yield self.env.timeout(self.login_line.ends(self.env.now, took) - self.env.now)
        logins = [self.work(self.imap, step) for step in [costs.login] * times + [costs.author] * author]
        yield logins[0] if len(logins) == 1 else self.env.all_of(logins)

    def by_pipe(self, host, message, single, local):
        """A process for one recipient."""
        costs = self.site.costs
        yield self.work(self.host_cores[host], costs.host)
        epoch = yield from self.reach(host)
        if epoch is None:
            return "no database"
        try:
            if self.site.pooled:
                # Between transactions another may have it.
                self.close(host, epoch)
                epoch = None
            yield from self.log_in(1, local)
            if epoch is None:
                epoch = yield from self.connect(host)
                if epoch is None:
                    return "no database"
            return (yield from self.under_lock(message, 1, single, local, epoch))
        except Lost:
            return "lost"
        finally:
            if epoch is not None:
                self.close(host, epoch)

    def user(self):
        if self.chance.random() < self.site.busy_users:
            return self.chance.randrange(max(1, self.site.users // 1000))
        return self.chance.randrange(self.site.users)

    def by_service(self, host, message, recipients, single, local):
        """A worker for all recipients of one message at this host."""
        site, costs = self.site, self.site.costs
        yield self.work(self.host_cores[host], costs.host)
        if recipients > 1:
            yield self.work(self.host_cores[host], costs.host_further, recipients - 1)
        with self.workers[host].request() as request:
            if not request.triggered:
                yield request | self.env.timeout(site.worker_wait)
            if not request.triggered:
                return "all workers busy"
            me = self.whose[host].pop(0)
            try:
                epoch = self.connected[host][me]
                self.connected[host][me] = None
                epoch = yield from self.reach(host, epoch)
                if epoch is None:
                    return "no database"
                self.connected[host][me] = epoch
                sessions, logins = self.idle[host][me], 0
                for _ in range(recipients + (1 if local else 0)):
                    user = self.user()
                    if user not in sessions:
                        logins += 1
                        if len(sessions) >= site.mailbox_sessions:
                            sessions.popitem(last=False)
                    sessions[user] = True
                    sessions.move_to_end(user)
                self.count["logins"] += logins
                # As many at a time as there are sessions.
                for at in range(0, logins, site.mailbox_sessions):
                    yield from self.log_in(min(site.mailbox_sessions, logins - at))
                return (yield from self.under_lock(message, recipients, single, local, epoch))
            except Lost:
                self.connections(-1)
                self.connected[host][me] = None
                return "lost"
            finally:
                self.whose[host].append(me)

    # Postfix.

    def one_try(self, host, message, recipients, single, local, arrived, left):
        with self.slots[host].request() as slot:
            yield slot
            began = self.env.now
            if self.site.serve:
                said = yield from self.by_service(host, message, recipients, single, local)
            else:
                said = yield from self.by_pipe(host, message, single, local)
        now = self.env.now
        self.tries.append(now - began)
        if began >= self.site.warm:
            self.count["tries"] += recipients
        if said == "sent":
            self.waiting -= recipients
            if arrived >= self.site.warm:
                self.delays.append((arrived, now - arrived, recipients))
        else:
            self.count[said] += recipients
            if began >= self.site.warm:
                self.count["deferred"] += recipients
            left.append(recipients)

    def message_at(self, host, message, recipients, single, local):
        """What one host has of a message, until nothing is left: all that is deferred is tried again together (qmgr(8))."""
        arrived, env, site = self.env.now, self.env, self.site
        self.waiting += recipients
        parts = [recipients] if site.serve else [1] * recipients
        while True:
            left = []
            tries = [env.process(self.one_try(host, message, part, single, local, arrived, left)) for part in parts]
            yield tries[0] if len(tries) == 1 else env.all_of(tries)
            if not left:
                return
            parts = left
            # Deferred, it waits for its time, and then for the next look into the queue. What is deferred is counted apart.
            self.waiting -= sum(left)
            pause = min(site.backoff[1], max(site.backoff[0], env.now - arrived))
            yield env.timeout(pause + self.chance.random() * site.queue_run)
            self.waiting += sum(left)

    def arrives(self, message, recipients, local):
        site = self.site
        host = self.chance.randrange(site.hosts)
        halves = [(host, recipients)]
        if recipients > 1 and site.hosts > 1 and self.chance.random() < site.both_hosts:
            halves = [(host, recipients // 2), ((host + 1) % site.hosts, recipients - recipients // 2)]
        single = recipients == 1 or (site.serve and len(halves) == 1)
        for at, some in halves:
            self.env.process(self.message_at(at, message, some, single, local))
        if self.env.now >= site.warm:
            self.count["recipients"] += recipients

    def mail(self):
        site = self.site
        if site.storm is not None:
            for message, (when, recipients, local) in enumerate(site.storm):
                if when > self.env.now:
                    yield self.env.timeout(when - self.env.now)
                self.arrives(message, recipients, local)
            return
        sizes, shares = list(site.mix), list(site.mix.values())
        mean = sum(size * share for size, share in site.mix.items()) / sum(shares)
        message = 0
        while self.env.now < site.until:
            yield self.env.timeout(self.chance.expovariate(site.rate / mean))
            message += 1
            self.arrives(message, self.chance.choices(sizes, shares)[0], self.chance.random() < site.authors)

    def watch(self):
        while True:
            self.waiting_at.append((self.env.now, self.waiting))
            self.most_waiting = max(self.most_waiting, self.waiting)
            yield self.env.timeout(0.5)

    def run(self):
        """What came of it."""
        site, env = self.site, self.env
        for host in range(site.hosts):
            if site.serve:
                self.connected[host] = [0] * site.workers
                self.connections(site.workers)
        self.count["opened"] = 0
        env.process(self.mail())
        env.process(self.watch())
        end = site.until if site.storm is None else 1e-9
        env.run(until=end)
        self.connections(0)
        opened, area, busy = self.count["opened"], self.area, (self.database.busy, self.imap.busy, sum(c.busy for c in self.host_cores))
        if site.drain:
            env.run(until=end + site.drain)
        return Outcome(self, end, opened, area, busy)


def quantile(values, share):
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


class Outcome:
    """The figures of a run."""

    def __init__(self, model, end, opened, area, busy):
        site, count = model.site, model.count
        delays = sorted(delay for _, delay, recipients in model.delays for _ in range(recipients))
        self.recipients, self.delivered = count["recipients"], len(delays)
        self.deferred = count["deferred"]
        self.per_thousand = 1000 * count["deferred"] / max(1, count["recipients"])
        self.why = {why: count[why] for why in ("busy", "no database", "lost", "all workers busy") if count[why]}
        self.met = count["met"] / max(1, len(model.lock_waits))
        waits = sorted(model.lock_waits)
        self.lock_mean = sum(waits) / max(1, len(waits))
        self.lock_p50, self.lock_p90, self.lock_p99 = (quantile(waits, share) for share in (0.5, 0.9, 0.99))
        self.try_mean = sum(model.tries) / max(1, len(model.tries))
        self.p50, self.p90, self.p99 = (quantile(delays, share) for share in (0.5, 0.9, 0.99))
        self.longest = delays[-1] if delays else float("nan")
        counted = max(end - site.warm, 1e-9)
        self.opened, self.opened_in_all = opened / counted, count["opened"]
        self.tries = len(model.tries)
        self.held_mean, self.held_most = area / counted, model.most
        cores = site.database_cores, site.imap_cores, site.host_cores * site.hosts
        database, imap, hosts = (took / max(end, 1e-9) / of for took, of in zip(busy, cores))
        # What is waited for by then is not done yet.
        self.database_used, self.imap_used, self.hosts_used = (min(1.0, used) for used in (database, imap, hosts))
        self.database_cores_used = busy[0] / max(end, 1e-9) * model.database.speed
        self.waiting_most = model.most_waiting
        self.gone_after = self.backlog_gone(model) if site.away else 0.0
        self.logins = count["logins"] / max(1, count["recipients"])

    @staticmethod
    def backlog_gone(model):
        """How long after the database is back as few wait as did before it went."""
        began, took = model.site.away
        before = [waiting for at, waiting in model.waiting_at if model.site.warm <= at < began]
        usual = max(before) if before else 0
        back = began + took
        after = [at for at, waiting in model.waiting_at if at >= back and waiting <= usual]
        # It came down to that, and mail still came.
        return after[0] - back if after and after[0] <= model.site.until else float("inf")
