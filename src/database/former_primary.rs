//! How far the histories of the site's database servers reach, as this process has seen. A former primary that still answers
//! has a shorter history than the server that took over. The histories are kept in memory only, because fencing a former
//! primary is the cluster manager's task.
//!
//! On PostgreSQL a promotion raises the timeline; on MySQL each change of a group's members raises its view (Group Replication).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::info;

/// How far a server's history reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The cluster's identifier: `postgresql/7412345678901234567`. Only timelines of one cluster compare.
    pub cluster: String,
    /// The timeline's number, or the view's.
    pub number: u64,
}

#[derive(Debug, Default)]
pub struct KnownTimelines(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The latest timeline of each cluster.
    latest: BTreeMap<String, u64>,
    /// The servers that turned out to be no primary only after they had let us in.
    suspects: BTreeSet<String>,
}

impl KnownTimelines {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the server has to identify itself before it is used: it did not report on connecting that it is no
    /// primary.
    pub(crate) fn suspect(&self, server: &str) {
        self.known().suspects.insert(server.to_owned());
    }

    /// Whether the server has to identify itself before it is used.
    pub(crate) fn suspects(&self, server: &str) -> bool {
        self.known().suspects.contains(server)
    }

    /// Records a server's timeline.
    ///
    /// # Errors
    /// If another server of the same cluster has a later one.
    pub fn compare(&self, timeline: &Timeline, server: &str) -> Result<(), String> {
        let Timeline { cluster, number } = timeline;
        let mut known = self.known();
        match known.latest.get(cluster).copied() {
            Some(latest) if *number < latest => {
                known.suspects.insert(server.to_owned());
                return Err(format!(
                    "it is at {number} of {cluster}, and this process has met {latest}: it has missed a fail-over, or was restored; \
                     if it is the right one, restart what has run for longer than that"
                ));
            }
            Some(latest) if latest == *number => {}
            _ => {
                known.latest.insert(cluster.clone(), *number);
                info!(cluster, number, server, "a later timeline of the database");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cluster: &str, number: u64) -> Timeline {
        Timeline { cluster: cluster.into(), number }
    }

    #[test]
    fn an_earlier_timeline_of_the_same_cluster_is_refused_and_no_other_is() {
        let known = KnownTimelines::default();
        for (cluster, number) in [("a", 9), ("a", 9), ("a", 10), ("b", 1), ("a", 10)] {
            assert_eq!(known.compare(&at(cluster, number), "db1"), Ok(()), "{cluster} {number}");
        }
        assert!(!known.suspects("db2"));
        let error_text = known.compare(&at("a", 9), "db2").unwrap_err();
        assert!(error_text.contains("it is at 9 of a, and this process has met 10"), "{error_text}");
        assert!(known.suspects("db2") && !known.suspects("db1"));
        assert_eq!(known.compare(&at("b", 1), "db1"), Ok(()));
    }

    #[test]
    fn a_server_is_asked_first_once_it_was_found_to_be_no_primary() {
        let known = KnownTimelines::default();
        assert!(!known.suspects("db3"));
        known.suspect("db3");
        assert!(known.suspects("db3"));
    }
}
