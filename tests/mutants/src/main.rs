//! `tests/mutants/run` calls this, in a copy of the tree that it may change.
//!
//! mutants RESULTS SURVIVORS TESTS FILE…
//!
//! RESULTS keeps what is known: a line for each mutant. SURVIVORS lists those that nothing can kill, and why. TESTS are
//! the words for `cargo test` that choose the test programs, then `--` and parts of the names of tests: PART, TARGET/PART of one
//! test program, -PART for those that are left out. Of a program for which there is no PART, all are taken.

mod mutate;

use mutate::{Mutant, Mutated, mutate};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const AWAKE: &str = include_str!("active_mutant.rs");

/// As in active_mutant.rs.
const NOTED: usize = 1_000_000;

/// How long one mutant is tried, in all, in seconds, where `$MUTANT_PATIENCE` does not say otherwise. A test that is under way
/// then is still waited for.
const PATIENCE: u64 = 240;

/// One test of one program.
struct Test {
    program: String,
    name: String,
    took: Duration,
    reaches: BTreeSet<usize>,
}

/// A file with its mutants.
struct Source {
    path: String,
    original: String,
    hash: u64,
    mutants: Vec<Mutant>,
    /// What names each of them for good, whatever becomes of the lines around it.
    keys: Vec<String>,
    unviable: BTreeSet<usize>,
}

fn keys(path: &str, mutants: &[Mutant]) -> Vec<String> {
    let mut met: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::new();
    for mutant in mutants {
        let code = if mutant.code.is_empty() { String::new() } else { format!(" at `{}`", mutant.code) };
        let key = format!("{path}: {}{code}", mutant.name);
        let times = met.entry(key.clone()).or_default();
        *times += 1;
        all.push(if *times == 1 { key } else { format!("{key} ({times})") });
    }
    all
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Fallible<bool> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: mutants RESULTS SURVIVORS TESTS FILE…");
    let (results, survivors, tests) = (next()?, next()?, next()?);
    let files: Vec<String> = arguments.collect();
    let known = read_results(&results)?;
    let mut first = 1;
    let mut sources = Vec::new();
    for path in files {
        let original = fs::read_to_string(&path)?;
        let mutants = mutate(&original, first, &BTreeSet::new()).map_err(|error| format!("{path}: {error}"))?.mutants;
        first += mutants.len();
        let mut hash = DefaultHasher::new();
        original.hash(&mut hash);
        let (hash, keys) = (hash.finish(), keys(&path, &mutants));
        // What the compiler did not take the last time, it takes no more this time.
        let is_unviable =
            |key: &String| known.get(key).is_some_and(|(of, outcome, _)| *of == hash && outcome == "unviable");
        let unviable = mutants.iter().zip(&keys).filter(|(_, key)| is_unviable(key)).map(|(mutant, _)| mutant.number);
        let unviable = unviable.collect();
        sources.push(Source { path, original, hash, mutants, keys, unviable });
    }
    if first > 8192 {
        return Err("these are more mutants than active_mutant.rs has room for".into());
    }
    let library = fs::read_to_string("src/lib.rs")?;
    fs::write("src/mutants.rs", AWAKE)?;
    // Mutants overflow, compare with nothing, and return too early.
    let lints = "#![allow(warnings, arithmetic_overflow, unconditional_panic)]";
    fs::write("src/lib.rs", format!("{lints}\n{library}\npub mod mutants;\n"))?;
    weed_out(&mut sources)?;
    let outcome = tried(&mut sources, &results, &tests);
    fs::write("src/lib.rs", library)?;
    for source in &sources {
        fs::write(&source.path, &source.original)?;
    }
    outcome?;
    judge(&sources, &results, &survivors)
}

/// Builds with all mutants, and leaves out those that the compiler refuses, until it takes the rest.
fn weed_out(sources: &mut [Source]) -> Fallible<()> {
    for round in 1.. {
        let mut written = Vec::new();
        for source in &*sources {
            let mutated = write_without(source)?;
            fs::write(&source.path, &mutated.source)?;
            written.push(mutated.mutants);
        }
        let (fine, messages) = cargo(&["check", "--lib"])?;
        if fine {
            break;
        }
        let mut dropped = 0;
        for (source, mutants) in sources.iter_mut().zip(&written) {
            for (start, end) in errors(&messages, &source.path) {
                let within = |mutant: &&Mutant| mutant.written.iter().any(|at| at.start < end && start < at.end);
                let mut guilty: Vec<usize> = mutants.iter().filter(within).map(|mutant| mutant.number).collect();
                if guilty.is_empty() {
                    // The error is in what is left of the original. What brought it about is the last mutant before it,
                    // or a `return` at the top of its function, which settles a type that the rest does not have.
                    let before = |mutant: &&Mutant| mutant.written.iter().any(|at| at.end <= start);
                    let last = mutants.iter().filter(before).max_by_key(|m| m.written.iter().map(|at| at.end).max());
                    let function = last.map(|mutant| mutant.function);
                    let mates = || mutants.iter().filter(|mutant| Some(mutant.function) == function);
                    guilty = mates().filter(|mutant| mutant.is_whole()).map(|mutant| mutant.number).collect();
                    if guilty.iter().all(|number| source.unviable.contains(number)) {
                        guilty = mates().map(|mutant| mutant.number).collect();
                    }
                    eprintln!(
                        "mutants: {}: an error outside of the mutants: {} are left out",
                        source.path,
                        guilty.len()
                    );
                }
                for number in guilty {
                    dropped += usize::from(source.unviable.insert(number));
                }
            }
        }
        eprintln!("mutants: round {round}: {dropped} are left out, which the compiler does not take");
        if dropped == 0 {
            return Err(format!("it does not build:\n{}", errors_of(&messages)).into());
        }
    }
    Ok(())
}

/// The file with those of its mutants that are not left out; numbers stay what they are.
fn write_without(source: &Source) -> Fallible<Mutated> {
    let first = source.mutants.first().map_or(1, |mutant| mutant.number);
    Ok(mutate(&source.original, first, &source.unviable)?)
}

/// Where the errors are in a file.
fn errors(messages: &[Value], path: &str) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    for message in messages.iter().filter(|message| message["level"] == "error") {
        for span in message["spans"].as_array().into_iter().flatten() {
            if span["file_name"] == path && span["is_primary"] == true {
                let number = |name: &str| span[name].as_u64().unwrap_or_default() as usize;
                all.push((number("byte_start"), number("byte_end").max(number("byte_start") + 1)));
            }
        }
    }
    all
}

/// What the compiler said, for people.
fn errors_of(messages: &[Value]) -> String {
    messages.iter().filter_map(|message| message["rendered"].as_str()).collect()
}

/// Calls cargo; whether it went well, and what the compiler said.
fn cargo(arguments: &[&str]) -> Fallible<(bool, Vec<Value>)> {
    let mut command = Command::new("cargo");
    command.args(arguments).args(["--locked", "--quiet", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).stdin(Stdio::null()).output()?;
    let mut messages = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let value: Value = serde_json::from_str(line)?;
        match value["reason"].as_str() {
            Some("compiler-message") => messages.push(value["message"].clone()),
            Some("compiler-artifact") if value["profile"]["test"] == true => messages.push(value),
            _ => {}
        }
    }
    Ok((output.status.success(), messages))
}

/// Builds the tests, sees which mutants each of them reaches, and tries each mutant by them.
fn tried(sources: &mut [Source], results: &str, tests: &str) -> Fallible<()> {
    let (targets, names) = tests.split_once(" -- ").unwrap_or((tests, ""));
    let mut arguments = vec!["test", "--no-run"];
    arguments.extend(targets.split_whitespace());
    let (fine, messages) = cargo(&arguments)?;
    if !fine {
        return Err(format!("the tests do not build:\n{}", errors_of(&messages)).into());
    }
    let programs: Vec<&str> = messages.iter().filter_map(|message| message["executable"].as_str()).collect();
    let known = read_results(results)?;
    let wanted: Vec<&str> = names.split_whitespace().collect();
    let mut all = Vec::new();
    for program in programs {
        let list = Command::new(program).args(["--list", "--format", "terse"]).output()?;
        for line in String::from_utf8_lossy(&list.stdout).lines() {
            let Some(name) = line.strip_suffix(": test") else { continue };
            let (mut takes, mut takes_any) = (false, true);
            let mut leaves = false;
            for word in &wanted {
                if let Some(word) = word.strip_prefix('-') {
                    leaves |= name.contains(word);
                    continue;
                }
                let (target, word) = word.split_once('/').unwrap_or(("", word));
                if target.is_empty() || program.contains(&format!("/{target}-")) {
                    (takes, takes_any) = (takes || name.contains(word), false);
                }
            }
            if (takes || takes_any) && !leaves {
                all.push(Test {
                    program: program.into(),
                    name: name.into(),
                    took: Duration::ZERO,
                    reaches: BTreeSet::new(),
                });
            }
        }
    }
    let begun = Instant::now();
    let failed = see_what_is_reached(&mut all)?;
    eprintln!("mutants: {} tests reach what they reach in {:.0?}", all.len(), begun.elapsed());
    for name in &failed {
        eprintln!("mutants: fails without any mutant, and is left out: {name}");
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(results)?;
    let mut left = Vec::new();
    for source in &*sources {
        for (mutant, key) in source.mutants.iter().zip(&source.keys) {
            let settled = known.get(key).is_some_and(|(hash, outcome, _)| *hash == source.hash && is_settled(outcome));
            if settled {
                continue;
            }
            if source.unviable.contains(&mutant.number) {
                writeln!(&file, "{}\tunviable\t\t{key}", source.hash)?;
            } else {
                left.push((source, mutant, key));
            }
        }
    }
    // Who has killed in this file before, in this run or another one.
    let mut killed: HashMap<(String, String), usize> = HashMap::new();
    for (key, (_, _, by)) in known.iter().filter(|(_, (_, outcome, _))| outcome == "killed") {
        let path = key.split(": ").next().unwrap_or_default();
        *killed.entry((path.to_owned(), by.clone())).or_default() += 1;
    }
    let kills = Mutex::new(killed);
    let patience = std::env::var("MUTANT_PATIENCE").ok().map(|seconds| seconds.parse()).transpose()?;
    let patience = Duration::from_secs(patience.unwrap_or(PATIENCE));
    side_by_side(left.len(), |at| {
        let Some((source, mutant, key)) = left.get(at) else { return Ok(()) };
        let (outcome, by) = try_one(mutant.number, &source.path, &all, &kills, patience)?;
        // In one piece, since others write as well.
        (&file).write_all(format!("{}\t{outcome}\t{by}\t{key}\n", source.hash).as_bytes())?;
        if outcome != "killed" {
            eprintln!("{outcome} {}:{}: {key} ({by})", source.path, mutant.line);
        }
        Ok(())
    })
}

/// Runs each test without any mutant; those that fail twice say nothing of mutants, and are taken out.
fn see_what_is_reached(all: &mut Vec<Test>) -> Fallible<Vec<String>> {
    let _ = fs::remove_dir_all("reached");
    fs::create_dir("reached")?;
    let seen: Mutex<HashMap<usize, (Duration, BTreeSet<usize>)>> = Mutex::default();
    side_by_side(all.len(), |at| {
        let Some(test) = all.get(at) else { return Ok(()) };
        let file = format!("reached/{at}");
        // Of a test that fails by luck, as on a busy machine, the mutants that it alone would kill would survive.
        for _ in 0..2 {
            // What it has noted before it failed is no part of it.
            fs::write(&file, "")?;
            // A test may run the program as somebody else.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            let began = Instant::now();
            if ran(test, NOTED + at, Duration::from_mins(5))? == Ran::Passed {
                let took = began.elapsed();
                let reaches = fs::read_to_string(&file)?.lines().filter_map(|line| line.parse().ok()).collect();
                lock(&seen).insert(at, (took, reaches));
                break;
            }
        }
        Ok(())
    })?;
    let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut failed = Vec::new();
    for (at, mut test) in std::mem::take(all).into_iter().enumerate() {
        match seen.remove(&at) {
            Some((took, reaches)) => {
                (test.took, test.reaches) = (took, reaches);
                all.push(test);
            }
            None => failed.push(test.name),
        }
    }
    Ok(failed)
}

/// What becomes of a mutant of the file `path`, and which test saw it.
fn try_one(
    number: usize,
    path: &str,
    all: &[Test],
    kills: &Mutex<HashMap<(String, String), usize>>,
    patience: Duration,
) -> Fallible<(&'static str, String)> {
    let in_this_file = |test: &Test| (path.to_owned(), test.name.clone());
    let mut reaching: Vec<&Test> = all.iter().filter(|test| test.reaches.contains(&number)).collect();
    {
        // First who is quick, reaches little else, and has killed in this file before.
        let kills = lock(kills);
        reaching.sort_by_cached_key(|test| {
            let killed = kills.get(&in_this_file(test)).copied().unwrap_or(0);
            test.took.as_micros() as usize * test.reaches.len() / (1 + killed)
        });
    }
    let begun = Instant::now();
    for (asked, test) in reaching.iter().enumerate() {
        if begun.elapsed() > patience {
            return Ok(("survived", format!("{asked} of {} tests that reach it", reaching.len())));
        }
        let limit = Duration::from_secs(8) + test.took * 8;
        match ran(test, number, limit)? {
            Ran::Passed => {}
            // A test that fails once in a while has seen nothing.
            Ran::Failed if ran(test, number, limit)? == Ran::Passed => {}
            Ran::Failed => {
                *lock(kills).entry(in_this_file(test)).or_default() += 1;
                return Ok(("killed", test.name.clone()));
            }
            // On a busy machine a test may be slow for once.
            Ran::TooLong if ran(test, number, limit * 2)? == Ran::Passed => {}
            Ran::TooLong => return Ok(("timeout", test.name.clone())),
        }
    }
    Ok(("survived", format!("{} tests reach it", reaching.len())))
}

/// Does all of `count` things, some of them at once: tests wait more than they compute. The first failure ends it.
fn side_by_side(count: usize, one: impl Fn(usize) -> Fallible<()> + Sync) -> Fallible<()> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let workers = thread::available_parallelism()?.get() * 2;
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || lock(&failure).is_some() {
                        break;
                    }
                    if let Err(error) = one(at) {
                        *lock(&failure) = Some(error.to_string());
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |error| Err(error.into()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether more tests could not change it.
fn is_settled(outcome: &str) -> bool {
    outcome != "survived"
}

fn read_results(results: &str) -> Fallible<BTreeMap<String, (u64, String, String)>> {
    let mut known = BTreeMap::new();
    if Path::new(results).exists() {
        for line in fs::read_to_string(results)?.lines() {
            let mut words = line.splitn(4, '\t');
            let (Some(hash), Some(outcome), Some(by), Some(key)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            known.insert(key.to_owned(), (hash.parse()?, outcome.to_owned(), by.to_owned()));
        }
    }
    Ok(known)
}

#[derive(PartialEq)]
enum Ran {
    Passed,
    Failed,
    TooLong,
}

/// Runs a test in a process group of its own, and ends all of it where it takes too long. `asked` is what active_mutant.rs reads.
fn ran(test: &Test, asked: usize, limit: Duration) -> Fallible<Ran> {
    // What goes round for ever may also fill the memory.
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v 4194304; ulimit -m {asked}; exec \"$0\" \"$@\""), &test.program]);
    command.args(["--exact", &test.name, "--test-threads", "1"]);
    command.env("CARGO_MANIFEST_DIR", std::env::current_dir()?).process_group(0);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            if status.success() {
                return Ok(Ran::Passed);
            }
            end_group(child.id())?;
            return Ok(Ran::Failed);
        }
        if begun.elapsed() > limit {
            end_group(child.id())?;
            child.wait()?;
            return Ok(Ran::TooLong);
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Ends what a test that failed has left behind.
fn end_group(leader: u32) -> Fallible<()> {
    // Most often there is nobody any more, and kill(1) says so.
    Command::new("kill").args(["-KILL", "--", &format!("-{leader}")]).stderr(Stdio::null()).status()?;
    Ok(())
}

/// Says the score, file by file; `false` where a mutant survived that is not listed.
fn judge(sources: &[Source], results: &str, survivors: &str) -> Fallible<bool> {
    let known = read_results(results)?;
    let text = fs::read_to_string(survivors)?;
    let listed: BTreeSet<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let mut unlisted = Vec::new();
    println!("| file | mutants | killed | by time | listed | not listed | unviable |\n|---|---|---|---|---|---|---|");
    for source in sources {
        let mut counts = BTreeMap::new();
        for key in &source.keys {
            let outcome = match known.get(key) {
                Some((_, outcome, _)) if outcome == "survived" && listed.contains(key.as_str()) => "listed",
                Some((_, outcome, _)) => outcome.as_str(),
                None => "not run",
            };
            if outcome == "survived" {
                unlisted.push(key.clone());
            }
            if outcome == "killed" && listed.contains(key.as_str()) {
                println!("is killed by now, and need not be listed: {key}");
            }
            *counts.entry(outcome.to_owned()).or_insert(0) += 1;
        }
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        let all: usize = counts.values().sum();
        println!(
            "| {} | {all} | {} | {} | {} | {} | {} |",
            source.path,
            count("killed"),
            count("timeout"),
            count("listed"),
            count("survived"),
            count("unviable")
        );
    }
    for key in &unlisted {
        println!("survived, and is not listed: {key}");
    }
    Ok(unlisted.is_empty())
}
