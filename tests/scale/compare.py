"""The model beside what `tests/scale/measure` has seen of two real hosts.

It is given what the machine's steps took in that storm (connect, addresses, journal, lock where nobody else has it, append, record:
by the ledger and the log) and how much that differed, for how long the server held sessions whose client had gone, and how fast the
messages came; and, from floods of messages with one recipient before and after it, how many logins Dovecot does in a second. It
is to predict what comes of these together: the mean of several runs, each by other chances.
"""

import math
import random
import statistics

from model import Costs, Model, Site, Step

RUNS = 5


def costs_of(measured, name):
    storm, flood = measured[name], measured["flood"]["stages_mean"]
    mean, median = storm["stages_mean"], storm["stages_median"]
    tries, busy = storm["tries"], storm["outcomes"].get("busy", 0)
    # Where others are waited for, the step says nothing of itself: as in the flood, it takes its share of what the journal does.
    lock = mean["lock"] if storm["deferred"] else mean["journal"] * flood["lock"] / flood["journal"]
    # What a try takes beside its steps: pipe(8), starting and ending the process, reading the message.
    around = max(0.0, storm["transport_mean"] - storm["try_mean"] - storm["record_mean"] * (tries - busy) / tries)
    # Each append of an author's copy takes as long as one of a recipient's.
    copies = 1 + storm["sent_copies"] / storm["recipients"]
    # For how long the server has a session, by how many it has at once; less what the steps in it take.
    in_steps = storm["try_mean"] + (storm["record_mean"] * (tries - busy) + mean["journal"] * busy) / tries
    end = max(0.0, storm["connections_mean"] * storm["looked"] / tries - in_steps)

    def step(mean, median=None):
        """As a logarithm of it is spread evenly around its median."""
        return Step(0.0, mean, math.sqrt(2 * math.log(mean / median)) if median and mean > median else 0.0)

    asked = step(max(0.0, storm["busy_lock_mean"] - lock / 2))
    return Costs(
        host=step(around), connect=step(mean["connect"], median["connect"]), route=step(mean["route"], median["route"]),
        login=step(0.0), author=step(0.0), journal=step(mean["journal"], median["journal"]),
        lock=step(lock, lock * median["journal"] / mean["journal"]), append=step(mean["append"] / copies, median["append"] / copies),
        record=step(storm["record_mean"], storm["record_median"]), asked=asked, busy=step(mean["journal"], median["journal"]),
        further=step(0.0), host_further=step(0.0), end=step(end))


def storm_of(size, took):
    """The messages of tests/scale/measure, in its order, as fast as they came."""
    mix = [2] * (80 * size) + [10] * (20 * size) + [50] * (5 * size)
    chance = random.Random(7)
    chance.shuffle(mix)
    return [(n * took / len(mix), recipients, chance.random() < 0.3) for n, recipients in enumerate(mix)]


def model_of(measured, name, seed=1, **changed):
    storm = measured[name]
    size, line = storm["messages"] // 105, sum(1 / rate for rate in storm["floods"]) / 2
    site = Site(costs_of(measured, name), hosts=2, both_hosts=1.0, login_line=line, storm=storm_of(size, storm["given_after"]),
                backoff=(1.0, 1.0), queue_run=1.0, lock_wait=30.0 if name == "storm" else 0.0, warm=0, seed=seed,
                **{"drain": 3000, **changed})
    return Model(site).run()


# The rows by which the model is held to what was seen.
HELD = [
    ("recipients delivered a second, the first nine tenths", "rate", lambda o: 0.9 * o.delivered / o.p90, 1),
    ("tries deferred, of a thousand tries", "deferred", lambda o: 1000 * o.deferred / o.tries, 0),
    ("the step *lock*, mean, s", "lock_mean", lambda o: o.lock_mean, 3),
    ("the step *lock*, p90, s", "lock_p90", lambda o: o.lock_p90, 3),
    ("connections opened", "sessions", lambda o: o.opened_in_all, 0),
    ("connections held at once, most", "connections_most", lambda o: o.held_most, 0),
]
# Those that are only printed beside them.
ROWS = [
    *HELD,
    ("a try, mean, s", "transport_mean", lambda o: o.try_mean, 2),
    ("arrival to copy, p50, s", "delay_p50", lambda o: o.p50, 1),
    ("arrival to copy, p99, s", "delay_p99", lambda o: o.p99, 1),
]


STORMS = ("storm", "storm without waiting")


def figures(measured):
    """Of each row and storm: what was seen, and what the model says."""
    found = {}
    for storm in STORMS:
        outcomes = [model_of(measured, storm, seed) for seed in range(1, RUNS + 1)]
        for _, key, of, _ in ROWS:
            seen = measured[storm][key]
            seen = 1000 * seen / measured[storm]["tries"] if key == "deferred" else seen
            found[storm, key] = (seen, statistics.mean(map(of, outcomes)))
    return found


def furthest(measured):
    """By how much the model is off where it is most, of 1, in the rows that it is held to."""
    held = [key for _, key, _, _ in HELD]
    pairs = [pair for (_, key), pair in figures(measured).items() if key in held and pair != (0, 0)]
    return max(abs(said - seen) / seen if seen else 1.0 for seen, said in pairs)


def table(measured):
    lines = ["| | as shipped: seen | model | off by | no wait for the lock: seen | model | off by |", "|---|---:|---:|---:|---:|---:|---:|"]
    found = figures(measured)
    for title, key, _, digits in ROWS:
        cells = [title]
        for storm in STORMS:
            seen, said = found[storm, key]
            off = f"{100 * (said - seen) / seen:+.0f} %" if seen else "0 %" if not said else "–"
            cells += [f"{seen:.{digits}f}", f"{said:.{digits}f}", off]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
