"""The tables and the plot of docs/sizing.md and of README.md beside this file, and what CI asks of the model."""

import argparse
import json
import multiprocessing
import pathlib
import sys

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

import compare
import inputs
from model import Costs, Model, Site, Step
from plot import plot

HERE = pathlib.Path(__file__).resolve().parent
SIZING = HERE.parents[1] / "docs/sizing.md"
INPUTS = tomllib.loads((HERE / "inputs.toml").read_text())
SEEN = json.loads((HERE / "two_hosts.json").read_text())
# Recipients a second, mail hosts, processors of each, and the service's workers on each. The whole of each site is run.
SIZES = [(100, 1, 8, 16), (100, 2, 4, 8), (100, 100, 2, 2), (1000, 8, 8, 16), (1000, 100, 4, 4), (10_000, 100, 8, 8)]
# Those that are an administrator's first choice: in the plot, and in the conclusions.
USUAL = {100: SIZES[1], 1000: SIZES[3], 10_000: SIZES[5]}
WAYS = ("pipe", "pipe, pooled", "service")
PROCESSORS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def costs(way):
    """The steps of a delivery by this way, in seconds."""
    pipe, pooled, serve, site = (INPUTS[name] for name in ("pipe", "pooled", "service", "sites"))
    steps = dict(INPUTS["steps"])
    if way == "pipe":
        database, host, further, host_further = pipe["database"], pipe["host"], 0, 0
    elif way == "service":
        database, host, further, host_further = serve["database"], serve["host"], serve["further"], serve["host_further"]
    else:
        database, host, further, host_further = pooled["database"], pipe["host"] + pooled["host_more"], 0, 0
    part = {name: database * took / sum(steps.values()) for name, took in steps.items()}
    if way != "pipe":
        # A session that is there already; but one is opened now and then, at the price of [pipe].
        kept = sum(took for name, took in steps.items() if name != "connect")
        part = {name: database * took / kept for name, took in steps.items()}
        part["connect"] = pipe["database"] * steps["connect"] / sum(steps.values())
    commit = site["commit_wait"]
    waits = {"journal": commit, "record": commit, "busy": commit}
    cpu = dict(part, host=host, login=pipe["login"], append=pipe["append"], author=pipe["author"], asked=part["lock"],
               busy=part["journal"], further=further, host_further=host_further)
    return Costs(**{name: Step(took / 1000, waits.get(name, 0) / 1000) for name, took in cpu.items()})


def site(size, way, **changed):
    return Site(costs(way), **{**given(size, way), **processors(size[0], way), **changed})


def given(size, way):
    """All but the processors of the database and of the mailbox stores."""
    sites, (rate, hosts, cores, workers) = INPUTS["sites"], size
    return dict(
        hosts=hosts, host_cores=cores, workers=workers, rate=float(rate), serve=way == "service", pooled=way == "pipe, pooled",
        mix={1: sites["one"], 10: sites["ten"], 50: sites["fifty"]}, authors=sites["authors"], both_hosts=sites["both_hosts"],
        commits=sites["commits"], users=rate * sites["users_by_rate"], busy_users=sites["busy_users"])


def used(way, known={}):
    """Processors that the database and the mailbox stores need for each recipient a second."""
    if way not in known:
        model = Model(Site(costs(way), **given(USUAL[100], way), database_cores=1000, imap_cores=1000, until=60.0, warm=0))
        many = model.run().recipients
        known[way] = (model.database.busy / many, model.imap.busy / many)
    return known[way]


def processors(rate, way):
    """The smallest that are used to no more than is planned for."""
    database, imap = (rate * need / INPUTS["sites"]["utilised"] for need in used(way))
    return dict(database_cores=next((size for size in PROCESSORS if size >= database), round(database)),
                imap_cores=max(2, 2 * round(imap / 2 + 0.5)))


def seconds(value):
    if value != value or value == float("inf"):
        return "not while it was looked at"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def few(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.05 else "0"


def calm_and_failed(task):
    """A row of the first table, one of the second, and how many waited in the fail-over."""
    size, way = task
    rate, hosts, cores, workers = size
    calm, buy = Model(site(size, way, until=20.0, warm=4.0)).run(), processors(rate, way)
    each = f", {workers} workers each" if way == "service" else ""
    bought = (f"| {rate:,} | {hosts} × {cores} | {way}{each} | {buy['database_cores']} ({100 * calm.database_used:.0f} %) | "
              f"{few(calm.held_mean)}, {few(calm.held_most)}; {few(calm.opened)} | {buy['imap_cores']} ({100 * calm.imap_used:.0f} %) | "
              f"{seconds(calm.p50)}, {seconds(calm.p99)} | {few(calm.per_thousand)} |")
    model = Model(site(size, way, away=(10.0, 15.0), until=100.0, warm=4.0))
    failed = model.run()
    fails = (f"| {rate:,} | {hosts} × {cores} | {way} | {few(failed.waiting_most)} | {seconds(failed.gone_after)} | {seconds(failed.p99)} | "
             f"{few(failed.held_most)} | {few(failed.per_thousand)} |")
    print(bought, fails, sep="\n", flush=True)
    return bought, fails, buy, [(at - 10.0, many) for at, many in model.waiting_at if 4.0 <= at <= 75.0]


def what_to_buy(each):
    """A row for each size and way; what is bought, and how many waited in the fail-over, of those for the plot. `each` is `map`, or
    another that runs several at once."""
    tasks = [(size, way) for size in SIZES for way in WAYS]
    # The largest, which take longest, first.
    done = list(each(calm_and_failed, tasks[::-1]))[::-1]
    lines = ["| recipients a second | mail hosts × processors | way | database: processors (used) | its sessions: mean, most; opened a second | "
             "mailbox stores: processors, all together | arrival to copy: p50, p99, s | deferred, of a thousand |",
             "|---:|---:|---|---:|---:|---:|---:|---:|", *(bought for bought, _, _, _ in done)]
    fails = ["| recipients a second | mail hosts × processors | way | most that wait | gone, s after it is back | p99 of all that came, s | sessions, most | deferred, of a thousand |",
             "|---:|---:|---|---:|---:|---:|---:|---:|", *(fails for _, fails, _, _ in done)]
    usual = {(size[0], way): told for (size, way), told in zip(tasks, done) if USUAL[size[0]] == size}
    return ("\n".join(lines), "\n".join(fails), {which: waiting for which, (_, _, _, waiting) in usual.items()},
            {which: buy for which, (_, _, buy, _) in usual.items()})


def fail_over(task):
    away, patience, way = task
    done = Model(site(USUAL[1000], way, away=(10.0, float(away)), patience=float(patience), until=110.0 + 2 * away, warm=4.0)).run()
    line = (f"| {away} s | {patience} s | {way} | {few(done.waiting_most)} | {seconds(done.gone_after)} | {seconds(done.p99)} | "
            f"{few(done.per_thousand)} |")
    print(line, flush=True)
    return line


def fail_overs(each):
    """How long the database is away, at 1,000 recipients a second."""
    tasks = [(away, patience, way) for away, patience in ((5, 60), (15, 60), (60, 60), (15, 0)) for way in WAYS]
    return "\n".join(["| the database is away for | `database.failover_timeout` | way | most that wait | gone, s after it is back | p99 of all that came, s | deferred, of a thousand |",
                      "|---:|---:|---|---:|---:|---:|---:|", *each(fail_over, tasks)])


def conclusions():
    """What has to hold, whatever the machine: the name of each, and whether it does."""
    quick = dict(until=25.0, warm=2.0)
    run = lambda way="pipe", **changed: Model(site(USUAL[100], way, **{**quick, **changed})).run()
    calm = {way: run(way=way) for way in WAYS}
    hasty = run(lock_wait=0.0, drain=60_000.0)
    away = {wait: run(away=(8.0, 5.0), patience=wait) for wait in (0.0, 60.0)}
    # One host has more to do than it can.
    few_hosts, more_hosts = (run(hosts=hosts, host_cores=2, rate=300) for hosts in (1, 4))
    # As long as the one host has processors and processes enough, it makes no difference to be one.
    one = Model(site(SIZES[0], "pipe", **quick)).run()
    twice = [run(until=15.0, seed=3) for _ in range(2)]
    return [
        ("with the shipped wait for a lock nobody is deferred", all(done.deferred == 0 for done in calm.values())),
        ("without it many are", hasty.deferred > 10),
        ("all are delivered in the end, with and without", all(done.delivered == done.recipients for done in [*calm.values(), hasty, *away.values()])),
        ("who does not wait for the database is deferred, who waits hardly ever is", away[60.0].deferred < away[0.0].deferred / 5),
        ("more hosts: not more of it deferred, and nobody waits longer", more_hosts.deferred <= few_hosts.deferred and more_hosts.p99 <= few_hosts.p99),
        ("one host that has processors enough will do, with nobody deferred", one.deferred == 0 and one.p99 < 5.0),
        ("the service opens no sessions, and holds fewer processors of the database", calm["service"].opened == 0 and calm["service"].database_cores_used < calm["pipe"].database_cores_used),
        ("a pooler opens fewer sessions", calm["pipe, pooled"].opened < calm["pipe"].opened / 10),
        ("the model is within a quarter of what two real hosts have shown", compare.furthest(SEEN) <= 0.25),
        ("the same seed gives the same", len({(done.p99, done.tries) for done in twice}) == 1),
    ]


def write_tables(page, tables):
    """Puts each table between its marks."""
    text = page.read_text()
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- {name}, end -->"
        before, rest = text.split(begin)
        text = before + begin + "\n" + table + "\n\n" + end + rest.split(end)[1]
    page.write_text(text)


def main():
    parser = argparse.ArgumentParser(prog="tests/scale/run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what CI asks")
    parser.add_argument("--write", action="store_true", help="put the tables between the marks of both pages, and the plot beside docs/sizing.md")
    parser.add_argument("--jobs", type=int, default=1, help="so many sites at once; the largest takes half a GB of memory")
    parser.add_argument("--compare", metavar="FILE", help="only the model beside what tests/scale/measure has written there")
    options = parser.parse_args()
    if options.compare:
        print(compare.table(json.loads(pathlib.Path(options.compare).read_text())))
        return
    asked = conclusions()
    if options.quick:
        # Who has put in figures of his own asks for the tables.
        text, measured = (HERE / "inputs.toml").read_text(), json.loads((HERE / "measured.json").read_text())
        asked.append(("inputs.toml has what was measured", inputs.written(text, measured) == text))
    failed = [name for name, holds in asked if not holds]
    for name in failed:
        print(f"does not hold: {name}", file=sys.stderr)
    if failed:
        sys.exit(1)
    print("the conclusions hold")
    if options.quick:
        return
    with multiprocessing.Pool(options.jobs) as pool:
        each = lambda run, tasks: pool.map(run, tasks, chunksize=1)
        buy, fails, waiting, bought = what_to_buy(each)
        longer = fail_overs(each)
    if options.write:
        write_tables(SIZING, {"buy": buy, "fail-over": fails})
        write_tables(HERE / "README.md", {"longer": longer, "two hosts": compare.table(SEEN)})
        SIZING.with_suffix(".svg").write_text(plot(bought, waiting))


if __name__ == "__main__":
    main()
