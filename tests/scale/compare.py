"""The model beside what `tests/scale/measure` has seen of two real hosts.

It is told what the machine's steps took in that storm (connect, addresses, journal, append, record: by the ledger), and how fast
the messages came; and, from floods of messages with one recipient before and after it, how many logins Dovecot does in a second.
It is to predict what comes of these together.
"""

import random

from model import Costs, Model, Site, Step

def costs_of(storm):
    took = storm["stages_mean"]
    # What a try takes beside its steps: pipe(8), starting and ending the process, reading the message.
    around = max(0.0, storm["transport_mean"] - storm["try_mean"] - storm["record_mean"])
    # Each append of an author's copy takes as long as one of a recipient's.
    append = took["append"] / (1 + storm["sent_copies"] / storm["recipients"])
    waits = dict(host=around, connect=took["connect"], route=took["route"], login=0.0, journal=took["journal"],
                 lock=storm["flood_lock"], append=append, record=storm["record_mean"], busy=took["journal"], further=0.0,
                 host_further=0.0, again=append)
    return Costs(**{name: Step(0.0, wait) for name, wait in waits.items()})


def storm_of(size, took):
    """The messages of tests/scale/measure, in its order, as fast as they came."""
    mix = [2] * (80 * size) + [10] * (20 * size) + [50] * (5 * size)
    chance = random.Random(7)
    chance.shuffle(mix)
    return [(n * took / len(mix), recipients, chance.random() < 0.3) for n, recipients in enumerate(mix)]


def model_of(measured, name, seed=1, **changed):
    storm = measured[name]
    size, line = storm["messages"] // 105, sum(1 / rate for rate in storm["floods"]) / 2
    site = Site(costs_of(storm), hosts=2, both_hosts=1.0, login_line=line, storm=storm_of(size, storm["given_after"]),
                backoff=(1.0, 1.0), queue_run=1.0, lock_wait=30.0 if name == "storm" else 0.0, warm=0, seed=seed,
                **{"drain": 3000, **changed})
    return Model(site).run()


ROWS = [
    ("recipients delivered a second, the first nine tenths", "rate", lambda o: 0.9 * o.delivered / o.p90, 1),
    ("tries deferred, of a thousand tries", "deferred", lambda o: 1000 * o.deferred / o.tries, 0),
    ("the step *lock*, mean, s", "lock_mean", lambda o: o.lock_mean + o.look, 3),
    ("the step *lock*, p90, s", "lock_p90", lambda o: o.lock_p90 + o.look, 3),
    ("connections opened", "sessions", lambda o: o.opened_in_all, 0),
    ("connections held at once, most", "connections_most", lambda o: o.held_most, 0),
    ("a try, mean, s", "transport_mean", lambda o: o.try_mean, 2),
    ("arrival to copy, p50, s", "delay_p50", lambda o: o.p50, 1),
    ("arrival to copy, p99, s", "delay_p99", lambda o: o.p99, 1),
]


# Of a step that waits for nothing the model knows no more than its mean.
NOT_COMPARED = {("storm without waiting", "lock_p90")}
STORMS = ("storm", "storm without waiting")


def figures(measured):
    """Of each row and storm: what was seen, and what the model says."""
    found = {}
    for storm in STORMS:
        outcome = model_of(measured, storm)
        outcome.look = costs_of(measured[storm]).lock.wait
        for _, key, of, _ in ROWS:
            seen = measured[storm][key]
            found[storm, key] = (1000 * seen / measured[storm]["tries"] if key == "deferred" else seen, of(outcome))
    return found


def furthest(measured):
    """By how much the model is off where it is most, of 1."""
    found = figures(measured)
    pairs = [pair for which, pair in found.items() if which not in NOT_COMPARED and pair != (0, 0)]
    return max(abs(said - seen) / seen if seen else 1.0 for seen, said in pairs)


def table(measured):
    lines = ["| | as shipped: seen | model | off by | no wait for the lock: seen | model | off by |", "|---|---:|---:|---:|---:|---:|---:|"]
    found = figures(measured)
    for title, key, _, digits in ROWS:
        cells = [title]
        for storm in STORMS:
            seen, said = found[storm, key]
            off = f"{100 * (said - seen) / seen:+.0f} %" if seen else "0 %" if not said else "–"
            cells += [f"{seen:.{digits}f}", f"{said:.{digits}f}", off if (storm, key) not in NOT_COMPARED else f"**{off}**"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
