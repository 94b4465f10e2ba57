//! Random logs, cut off everywhere: everything acknowledged is there, nothing is invented, the rest is a prefix.

use super::*;
use crate::wal::record::{ConfState, Snapshot};

/// What is appended, record by record.
#[derive(Clone, Debug, PartialEq)]
enum Record {
    Entry(Entry),
    State(HardState),
    Snapshot(Snapshot),
}

/// What a log amounts to after some records.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    entries: Vec<Entry>,
    hard_state: HardState,
    snapshots: Vec<Snapshot>,
}

impl Model {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Entry(entry) => {
                self.entries.truncate(entry.index as usize - 1);
                self.entries.push(entry.clone());
            }
            Record::State(state) => self.hard_state = *state,
            Record::Snapshot(snapshot) => self.snapshots.push(snapshot.clone()),
        }
    }

    /// Whether this is what was recovered with the entries after `after`.
    fn is(&self, recovered: &Recovered) -> bool {
        let after = recovered.entries_after as usize;
        let snapshots: Vec<&Snapshot> = self
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.index <= self.hard_state.commit)
            .collect();
        let read: Vec<&Snapshot> = recovered
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.index > 0)
            .collect();
        self.hard_state == recovered.hard_state
            && self.entries.get(after..) == Some(&recovered.entries)
            && snapshots.ends_with(&read)
    }
}

/// A run that knows what it appended and what was acknowledged.
struct Run {
    bench: Bench,
    random: Random,
    records: Vec<Record>,
    /// How many records each ticket, by position, completes.
    tickets: Vec<usize>,
    /// Records known to be durable.
    acknowledged: usize,
    model: Model,
    applied: u64,
    options: Options,
}

impl Run {
    fn new(seed: u64, options: Options) -> Run {
        let mut disk = FaultyDisk::new(seed);
        disk.set_delay_us(1..400);
        Run {
            bench: Bench::new(disk, options.clone()),
            random: Random::new(seed),
            records: Vec::new(),
            tickets: vec![0],
            acknowledged: 0,
            model: Model::default(),
            applied: 0,
            options,
        }
    }

    fn append(&mut self) {
        let mut records = Vec::new();
        let last = self.model.entries.len() as u64;
        let durable = self.durable_model();
        let commit = self.model.hard_state.commit.max(durable.hard_state.commit);
        let first = match self.random.below(6) {
            0 => commit + 1 + self.random.below(last - commit + 1),
            _ => last + 1,
        };
        let term = self.model.hard_state.term + u64::from(first <= last);
        let mut entries = Vec::new();
        for index in first..first + self.random.below(4) {
            let length = match self.random.below(8) {
                0 => 0,
                1 => self.random.below(6000),
                _ => self.random.below(200),
            };
            entries.push(entry(term.max(1), index, length as usize));
        }
        records.extend(entries.iter().cloned().map(Record::Entry));
        let mut hard_state = None;
        if !entries.is_empty() || self.random.coin() {
            let last = entries.last().map_or(last, |entry| entry.index);
            let state = HardState {
                term: term.max(1),
                vote: 1 + self.random.below(3),
                commit: commit + self.random.below(last - commit + 1),
            };
            hard_state = Some(state);
            records.push(Record::State(state));
        }
        let ticket = self.bench.writer.append(&entries, hard_state.as_ref());
        self.note(ticket, records);
        if self.random.below(10) == 0 {
            self.checkpoint();
        }
    }

    /// What a checkpoint does: a snapshot record, and the log may be trimmed behind it.
    fn checkpoint(&mut self) {
        let durable = self.durable_model();
        let index = durable.hard_state.commit.min(durable.entries.len() as u64);
        if index <= self.applied {
            return;
        }
        self.applied = index;
        let conf_state = Some(ConfState {
            voters: vec![1],
            ..ConfState::default()
        });
        let snapshot = Snapshot {
            index,
            term: durable.entries[index as usize - 1].term,
            conf_state,
        };
        let ticket = self.bench.writer.save_snapshot(&snapshot);
        self.note(ticket, vec![Record::Snapshot(snapshot)]);
        self.bench.writer.release_to(index);
    }

    fn note(&mut self, ticket: Ticket, records: Vec<Record>) {
        for record in records {
            self.model.take(&record);
            self.records.push(record);
        }
        self.tickets.resize(ticket.0 as usize + 1, self.records.len());
    }

    fn durable_model(&self) -> Model {
        let mut model = Model::default();
        self.records[..self.acknowledged]
            .iter()
            .for_each(|record| model.take(record));
        model
    }

    fn step(&mut self) {
        for persisted in self.bench.step().unwrap() {
            let records = self.tickets[persisted.through.0 as usize];
            assert!(records >= self.acknowledged);
            self.acknowledged = records;
        }
    }

    /// Recovers from `disk` and finds how many records survived: at least those acknowledged.
    fn recover(&self, disk: &mut FaultyDisk) -> Result<(Recovered, usize), String> {
        let recovered = recover(disk, Path::new(DIRECTORY), self.options.clone(), self.applied, 0);
        let recovered = recovered.map_err(|error| error.to_string())?;
        let mut model = self.durable_model();
        for survived in self.acknowledged..=self.records.len() {
            if model.is(&recovered) {
                return Ok((recovered, survived));
            }
            if let Some(record) = self.records.get(survived) {
                model.take(record);
            }
        }
        Err(format!(
            "no prefix of the {} records with the first {}",
            self.records.len(),
            self.acknowledged
        ))
    }

    /// Looks at some power cuts that could happen now; each recovery must itself survive the next power cut.
    fn look(&mut self, cuts: u64) -> Result<(), String> {
        for _ in 0..cuts {
            let mut disk = self.bench.disk.clone();
            if self.random.below(3) == 0 {
                disk.kill(self.random.bits());
            } else {
                disk.power_cut(self.random.bits());
            }
            if self.random.below(3) == 0 {
                // Recovery itself is cut off.
                disk.set_delay_us(1..10);
                let mut again = disk.clone();
                again.add_fault(crate::io::faulty::Fault {
                    operation: "",
                    path: String::new(),
                    skip: self.random.below(40),
                    times: u64::MAX,
                    errno: libc::EIO,
                });
                let _ = self.recover(&mut again);
                again.clear_faults();
                if self.random.coin() {
                    again.power_cut(self.random.bits());
                } else {
                    again.kill(self.random.bits());
                }
                disk = again;
            }
            let (_, survived) = self.recover(&mut disk)?;
            disk.power_cut(self.random.bits());
            let (_, still) = self.recover(&mut disk)?;
            if still < survived {
                return Err(format!("{survived} records were recovered, {still} of them again"));
            }
        }
        Ok(())
    }

    /// Goes on after a power cut, or after the process was killed.
    fn restart(&mut self) -> Result<(), String> {
        let mut disk = self.bench.disk.clone();
        if self.random.coin() {
            disk.power_cut(self.random.bits());
        } else {
            disk.kill(self.random.bits());
        }
        let (recovered, survived) = self.recover(&mut disk)?;
        self.bench = Bench {
            disk,
            writer: recovered.writer,
        };
        self.records.truncate(survived);
        self.tickets = vec![survived];
        self.acknowledged = survived;
        self.model = self.durable_model();
        Ok(())
    }
}

/// Runs a log; says how many segments it went through.
fn run(seed: u64, options: Options, syncs_lie: bool) -> Result<u64, String> {
    let mut run = Run::new(seed, options);
    run.bench.disk.set_syncs_lie(syncs_lie);
    for step in 0..120 {
        for _ in 0..run.random.below(4) {
            run.append();
        }
        run.bench.submit();
        run.look(1)
            .map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
        run.step();
        if run.random.below(40) == 0 {
            run.restart()
                .map_err(|error| format!("seed {seed}, restart at {step}: {error}"))?;
        }
    }
    assert!(run.bench.disk.violations().is_empty());
    Ok(run.bench.writer.segments().last().map_or(0, |name| name.sequence))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_invented() {
    let mut segments = 0;
    for seed in 0..40 {
        let options = Options {
            max_wals: 2,
            ..options()
        };
        segments += run(seed, options, false).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(
        segments > 80,
        "{segments} segments are too few to say anything about rotation"
    );
}

#[test]
fn the_same_with_padded_batches() {
    for seed in 1000..1010 {
        let options = Options {
            max_wals: 2,
            pad_batches: true,
            ..options()
        };
        run(seed, options, false).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn canary_a_disk_whose_syncs_lie_is_found_out() {
    let failures = (0..10).filter(|seed| run(*seed, options(), true).is_err()).count();
    assert!(failures >= 8, "{failures} of 10");
}

#[test]
fn canary_a_writer_that_does_not_sync_is_found_out() {
    let options = Options {
        unsafe_no_fsync: true,
        ..options()
    };
    let failures = (0..10)
        .filter(|seed| run(*seed, options.clone(), false).is_err())
        .count();
    assert!(failures >= 8, "{failures} of 10");
}
