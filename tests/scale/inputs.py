"""What the model goes by (inputs.toml), out of what was measured: by tests/scale/measure, and by parts of the bench.

`measured.json` has all of that, as it was measured; the numbers of inputs.toml but those of [sites] are made of it, and of
nothing else. `tests/scale/run --quick` sees to that.
"""

import json
import re
import sys

# What is read of the bench: the parts, and in each the rows of its tables by how they begin, with the columns that count.
COPY = "Maildir, {} each, processes kept"
BENCH = {
    "stages": {stage: ([stage], {"ms": 1}) for stage in ("connect", "route", "journal", "lock, look", "record")},
    "process": {"a delivery": (["processor time of a delivery"], {"cpu": 1})},
    "service": {copy: (["maildropd", copy], {"imap": 4, "database": 5, "ours": 6}) for copy in (COPY.format(1), COPY.format(10))},
}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def of_the_bench(files):
    """What these files of Markdown say, which the bench has written (`tests/bench/run --write FILE`); the last that has a part."""
    figures = {}
    for file in files:
        if not file.exists():
            sys.exit(f"measure: there is no {file}: tests/bench/run, with --only stages, process or service, and --write")
        text = file.read_text()
        machine = re.search(r"^\d+ × .*", text, re.M)
        for part, rows in BENCH.items():
            found = re.search(rf"^## {part}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
            if not found:
                continue
            lines = [cells(line) for line in found[1].splitlines() if line.startswith("|")]
            figures[part] = {"machine": machine[0] if machine else "?"}
            for name, (begins, columns) in rows.items():
                row = next((line for line in lines if line[:len(begins)] == begins), None)
                if row is None:
                    sys.exit(f"measure: {file}: part {part} has no row {begins}")
                # "4.20 (4.07 – 4.38)": the median, and the quartiles.
                figures[part][name] = {column: float(row[place].split()[0]) for column, place in columns.items()}
    missing = BENCH.keys() - figures.keys()
    if missing:
        sys.exit(f"measure: no file has what `tests/bench/run --only {min(missing)}` writes")
    return figures


def values(measured):
    """The numbers, in milliseconds for each recipient, by section and key."""
    each = lambda run, server: 1000 * measured[run]["cpu"][server] / measured[run]["tries"]
    bench = measured["bench"]
    service = lambda recipients, whose: bench["service"][COPY.format(recipients)][whose]
    # A copy costs a + n b where its message has n recipients; the bench tells what each of these copies costs.
    further = lambda whose: (10 * service(10, whose) - service(1, whose)) / 9
    append = service(1, "imap")
    # The author's copy is appended like any; its login costs less, as the recipient's has just been.
    sent = each("one at a time, with a Sent copy", "imap") - each("one at a time", "imap")
    return {
        "pipe": {"host": each("flood", "hosts"), "database": each("flood", "database"), "login": each("flood", "imap") - append,
                 "append": append, "author": sent - append},
        "steps": {stage.split(",")[0]: figures["ms"] for stage, figures in bench["stages"].items() if stage != "machine"},
        "pooled": {"database": each("flood, pooled", "database"), "host_more": each("flood, pooled", "pooler")},
        "service": {"host": each("flood", "hosts") - bench["process"]["a delivery"]["cpu"] + service(1, "ours"),
                  "host_further": further("ours"), "database": service(1, "database"), "further": further("database")},
    }


def origins(measured):
    """Where they come from: the section [from]."""
    load = lambda numbers: ", ".join(f"{number:.0f}" for number in numbers)
    figures = {"measured": f"{measured['date']}, {measured['machine']}, load averages before and after: "
                        f"{load(measured['load'])}; {load(measured['load after'])}"}
    return figures | {part: bench["machine"] for part, bench in measured["bench"].items()}


def written(text, measured):
    """inputs.toml with these numbers; its comments stay, and so does what is assumed."""
    for section, numbers in {"from": origins(measured), **values(measured)}.items():
        begin = text.index(f"\n[{section}]\n") + 1
        end = text.find("\n[", begin)
        end = len(text) if end < 0 else end
        part = text[begin:end]
        for key, value in numbers.items():
            if not isinstance(value, str) and value <= 0:
                sys.exit(f"measure: {section}.{key} would be {value:.2f}: it was measured while the machine did too much else")
            entry = f"{key} = " + (json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value:.2f}")
            line = rf'^{key} = ("[^"]*"|[\d.]+)( *)'
            # The comment stays in its column.
            wide = lambda found: entry.ljust(len(found[0])) if found[2] else entry
            part, found = re.subn(line, lambda found: wide(found), part, flags=re.M)
            if found != 1:
                sys.exit(f"measure: [{section}] has no line for {key}")
        text = text[:begin] + part + text[end:]
    return text
