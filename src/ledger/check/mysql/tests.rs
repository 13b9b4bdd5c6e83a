//! The findings on what a server reports.

use super::*;

#[test]
fn a_version_is_its_first_three_numbers() {
    assert_eq!(numbers("9.7.4-2"), Some((9, 7, 4)));
    assert_eq!(numbers("11.8.6-MariaDB-0+deb13u1 from Debian"), Some((11, 8, 6)));
    assert_eq!(numbers("unknown"), None);
}

fn variables(pairs: &[(&str, &str)]) -> Variables {
    Variables::of(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

#[test]
fn a_version_that_is_too_old_is_bad() {
    for (product, shown, state) in [
        (Dialect::Mysql, "8.0.15", FindingState::Bad),
        (Dialect::Mysql, "8.0.16", FindingState::Good),
        (Dialect::Mysql, "9.7.4-2", FindingState::Good),
        (Dialect::Mysql, "unknown", FindingState::Warning),
        (Dialect::Mariadb, "10.5.29-MariaDB", FindingState::Bad),
        (Dialect::Mariadb, "10.6.0-MariaDB", FindingState::Good),
        (Dialect::Mariadb, "unknown", FindingState::Warning),
    ] {
        let finding = version(product, shown);
        assert_eq!((finding.state, finding.found.as_str()), (state, shown));
    }
}

#[test]
fn a_packet_that_is_too_small_for_a_record_is_bad() {
    for (bytes, state, mebibytes) in [
        (1 << 20, FindingState::Bad, "1 MiB"),
        (SMALLEST_PACKET - 1, FindingState::Bad, "3 MiB"),
        (SMALLEST_PACKET, FindingState::Good, "4 MiB"),
        (64 << 20, FindingState::Good, "64 MiB"),
    ] {
        let finding = packet(bytes);
        assert_eq!(finding.state, state, "{bytes}");
        assert!(finding.found.starts_with(mebibytes), "{finding:?}");
    }
}

#[test]
fn a_server_that_forgets_or_does_not_write_is_bad() {
    // The first finding is about writes.
    let states = |pairs: &[(&str, &str)]| {
        settings(&variables(pairs)).into_iter().map(|finding| finding.state).collect::<Vec<_>>()
    };
    let good = FindingState::Good;
    assert_eq!(states(&[("read_only", "ON")]), [FindingState::Bad]);
    assert_eq!(states(&[("read_only", "OFF"), ("super_read_only", "OFF")]), [good]);
    assert_eq!(states(&[("innodb_flush_log_at_trx_commit", "2")]), [good, FindingState::Bad]);
    let logged = [("log_bin", "ON"), ("sync_binlog", "0"), ("binlog_format", "STATEMENT")];
    assert_eq!(states(&logged), [good, FindingState::Warning, FindingState::Bad]);
    assert_eq!(states(&[("wsrep_on", "ON")]), [good, FindingState::Bad]);
    let group = [("group_replication_group_name", "7b2f"), ("group_replication_single_primary_mode", "OFF")];
    assert_eq!(states(&group), [good, FindingState::Bad]);
    let group = [
        ("group_replication_group_name", "7b2f"),
        ("group_replication_single_primary_mode", "ON"),
        ("group_replication_consistency", "EVENTUAL"),
    ];
    assert_eq!(states(&group), [good, FindingState::Bad, FindingState::Warning]);
    assert_eq!(states(&[("wsrep_on", "OFF"), ("group_replication_group_name", "")]), [good]);
    assert_eq!(
        [(3, 3), (3, 2), (3, 1), (2, 1), (0, 0)].map(|(all, online)| members(all, online).state == FindingState::Good),
        [true, true, false, false, false]
    );
}

#[test]
fn a_commit_that_may_go_on_without_a_replica_is_found() {
    for (of, no_replica) in [("source", "wait_no_replica"), ("master", "wait_no_slave")] {
        let found = |replicated: bool, change: &[(&str, &str)]| {
            let mut pairs = HashMap::from([("enabled", "ON"), ("status", "ON"), ("timeout", "600000")]);
            pairs.extend([("wait_point", "AFTER_SYNC"), (no_replica, "ON")]);
            pairs.extend(change.iter().copied());
            let pairs = pairs.into_iter();
            let variables = pairs.map(|(name, value)| (format!("rpl_semi_sync_{of}_{name}"), value.to_owned()));
            let wanted = Requirements { replicated, ..Requirements::default() };
            let findings = semi_synchronous(wanted, &Variables::of(variables));
            findings.into_iter().map(|finding| finding.state).collect::<Vec<_>>()
        };
        assert_eq!([found(false, &[]), found(true, &[])], [[FindingState::Good], [FindingState::Good]]);
        for fault in [("status", "OFF"), ("timeout", "100000"), ("wait_point", "AFTER_COMMIT"), (no_replica, "OFF")] {
            assert_eq!(found(false, &[fault]), [FindingState::Warning], "{fault:?}");
            // Other sessions may act too early on a commit, but it is not lost.
            let if_replicated = if fault.0 == "wait_point" { FindingState::Warning } else { FindingState::Bad };
            assert_eq!(found(true, &[fault]), [if_replicated], "{fault:?}");
        }
        // A timeout exactly as long as a delivery may take is enough.
        let deadline = Requirements::default().deadline.as_millis();
        assert_eq!(found(true, &[("timeout", &deadline.to_string())]), [FindingState::Good]);
        assert_eq!(found(true, &[("timeout", &(deadline - 1).to_string())]), [FindingState::Bad]);
    }
    let enabled = |value: &str| {
        let names = ["rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"];
        names.map(|name| variables(&[(name, value)]).on("rpl_semi_sync_source_enabled"))
    };
    assert_eq!([enabled("ON"), enabled("OFF")], [[true; 2], [false; 2]]);
}

#[test]
fn a_server_that_is_followed_and_waits_for_nobody_is_found() {
    let state = |replicated, followers| asynchronous(replicated, followers).state;
    assert_eq!(
        [None, Some(0), Some(2)].map(|of| state(false, of)),
        [FindingState::Warning, FindingState::Good, FindingState::Warning]
    );
    assert_eq!([None, Some(0), Some(2)].map(|of| state(true, of)), [FindingState::Bad; 3]);
}
