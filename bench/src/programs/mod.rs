//! Programs of the field on a local folder and on mounts. Enters: peers, an environment and the names of programs. Leaves: a row for each
//! program on each file system, with its outcome, seconds, CPU time, and the requests and bytes that the store counted. The store is
//! `s3server`, which answers with the chosen latency. Each run gets a new mount, and the store's files are not in the page cache.

mod environment;
mod process;
mod report;
mod table;

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use rustix::fs::Advice;
use s3server::{Effect, Fault, Server};

use crate::machine::Machine;
use crate::mount::Mount;
use crate::peers::{Peer, Plan};
pub(crate) use environment::Environment;
use process::{PREPARE_LIMIT, Runner, Said, TASK_LIMIT};
use report::{DIRECT, FULL, OURS, Row, Sample};
pub(crate) use report::{Report, markdown};
use table::{SHARED, TASKS, Task};

/// The order of a run.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) environment: Environment,
    /// Names of programs; empty for all.
    pub(crate) names: Vec<String>,
    pub(crate) rounds: usize,
    /// Delay of each answer of the store.
    pub(crate) latency: Duration,
    /// Whether to use CI's data, a tenth of the full data.
    pub(crate) small: bool,
    /// Whether to run the programs' own libraries for S3, too.
    pub(crate) direct: bool,
    /// Read-ahead of every mount, in KiB.
    pub(crate) read_ahead_kb: Option<u64>,
    /// Whether to repeat a row with more requests than expected: a program's threads may send more by chance.
    pub(crate) again: bool,
}

/// Most repetitions of such a row. Doubled, a program that sends too many requests half of the time passes.
const AGAIN_MAX: usize = 2;

/// Why a program that leaves files where it reads has failed.
const CHANGED: &str = "a program that reads changed the bucket";

/// The flags of a mount that are set.
#[derive(Debug)]
struct Mode {
    name: &'static str,
    ttl_s: Option<u32>,
    /// Whether the mount has a disk cache, filled by an earlier run.
    cache: bool,
    /// Whether deletes, renames, appends and overwrites are allowed.
    changes: bool,
    /// Whether every write is accepted (`--mode full`), which only mount-s3 has.
    full: bool,
}

const PLAIN: Mode = Mode { name: "default", ttl_s: None, cache: false, changes: false, full: false };
const TTL: Mode = Mode { name: "names for 60 s", ttl_s: Some(60), ..PLAIN };
const READ_MODES: &[Mode] = &[PLAIN, TTL, Mode { name: "full disk cache", cache: true, ..PLAIN }];
const WRITE_MODES: &[Mode] = &[
    PLAIN,
    Mode { name: "every --allow", changes: true, ..PLAIN },
    Mode { name: FULL, full: true, ..PLAIN },
];

/// The programs with these names; all without names.
///
/// # Errors
/// A name of no program.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Task>> {
    for name in names {
        let known = || TASKS.iter().map(|task| task.name).collect::<Vec<_>>().join(", ");
        ensure!(
            TASKS.iter().any(|task| task.name == name),
            "no program is called {name}; there are {}",
            known()
        );
    }
    let is_wanted = |task: &&Task| names.is_empty() || names.iter().any(|name| name == task.name);
    Ok(TASKS.iter().filter(is_wanted).collect())
}

/// Runs the order; `say` gets the progress.
///
/// # Errors
/// The bench itself fails. A program's failure is a row of the report.
pub(crate) fn run(order: &Order, peers: &[Peer], say: &dyn Fn(&str)) -> anyhow::Result<Report> {
    let tasks = chosen(&order.names)?;
    let work = tempfile::Builder::new().prefix("s3-programs-").tempdir()?;
    let sources = work.path().join("programs");
    std::fs::create_dir(&sources)?;
    for (name, text) in SHARED {
        std::fs::write(sources.join(name), text)?;
    }
    for task in TASKS {
        std::fs::write(sources.join(format!("{}.py", task.name)), task.source)?;
    }
    let direct = tasks.iter().filter_map(|task| Some(task.direct.as_ref()?.module));
    let modules: Vec<_> = tasks.iter().map(|task| task.module).chain(direct).collect();
    let lacking = order.environment.lacks(&modules)?;
    let mut report = Report {
        machine: Machine::here(),
        libraries: order.environment.versions()?,
        rounds: order.rounds,
        latency_ms: order.latency.as_secs_f64() * 1e3,
        small: order.small,
        read_ahead_kb: order.read_ahead_kb,
        rows: Vec::new(),
    };
    let runner = Runner { environment: &order.environment, sources: &sources, small: order.small };
    for task in tasks {
        let tool_lacks = task.tool.filter(|tool| !is_there(tool));
        let missing =
            tool_lacks.or_else(|| lacking.iter().any(|it| it == task.module).then_some(task.module));
        let folder = work.path().join(task.name);
        std::fs::create_dir(&folder)?;
        let mut bench =
            Bench { order, runner: &runner, task, lacking: &lacking, work: &folder, serial: 0, needed: None };
        match missing {
            Some(missing) => report.rows.push(Row::new(task, "local", "").absent(missing)),
            None => report.rows.extend(bench.rows(peers, say)),
        }
        std::fs::remove_dir_all(&folder).with_context(|| format!("clean up {}", folder.display()))?;
    }
    Ok(report)
}

/// Whether a program with this name is in PATH.
fn is_there(tool: &str) -> bool {
    let found = std::process::Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    found.is_ok_and(|output| output.status.success())
}

struct Bench<'a> {
    order: &'a Order,
    runner: &'a Runner<'a>,
    task: &'static Task,
    /// Modules that are missing in the environment.
    lacking: &'a [String],
    work: &'a Path,
    serial: u64,
    needed: Option<u64>,
}

/// One row: a program on one file system, or with its own library for S3.
struct Subject<'a> {
    place: Place<'a>,
    row: Row,
}

/// The data of a task.
#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    /// A local folder, whose digest is the expected one.
    Local,
    /// The bucket itself, read by the program's own library for S3.
    Direct,
    Mount(&'a Peer, &'a Mode),
}

impl Bench<'_> {
    /// Runs all rows of this program, in interleaved rounds.
    fn rows(&mut self, peers: &[Peer], say: &dyn Fn(&str)) -> Vec<Row> {
        let modes = if self.task.writes() { WRITE_MODES } else { READ_MODES };
        let mut subjects = vec![Subject { place: Place::Local, row: Row::new(self.task, "local", "") }];
        for peer in peers {
            for mode in modes.iter().filter(|mode| !mode.full || peer.name == OURS) {
                let row = Row::new(self.task, &peer.name, mode.name);
                subjects.push(Subject { place: Place::Mount(peer, mode), row });
            }
        }
        if let Some(direct) = &self.task.direct
            && self.order.direct
        {
            let row = Row::new(self.task, DIRECT, direct.library);
            let row = if self.lacking.iter().any(|it| it == direct.module) {
                row.absent(direct.module)
            } else {
                row
            };
            subjects.push(Subject { place: Place::Direct, row });
        }
        let server = match self.prepare() {
            Ok(server) => server,
            Err(error) => {
                let why = format!("its data could not be made: {error:#}");
                return subjects.into_iter().map(|subject| subject.row.broken(&why)).collect();
            }
        };
        let mut local = None;
        for _ in 0..self.order.rounds {
            for subject in &mut subjects {
                self.round(&server, subject, &mut local, say);
            }
        }
        let again = if self.order.again { AGAIN_MAX } else { 0 };
        for subject in &mut subjects {
            for _ in 0..again {
                if subject.row.too_many(self.order.small).is_some() {
                    self.round(&server, subject, &mut local, say);
                }
            }
        }
        subjects.into_iter().map(|subject| subject.row).collect()
    }

    /// Runs a row once, unless it has failed before.
    fn round(
        &mut self,
        server: &Server,
        subject: &mut Subject<'_>,
        local: &mut Option<String>,
        say: &dyn Fn(&str),
    ) {
        if !subject.row.is_going_on() {
            return;
        }
        self.serial += 1;
        let work = self.work.join(format!("run-{}", self.serial));
        let sampled = self.once(server, subject.place, &work);
        let _ = std::fs::remove_dir_all(&work);
        match sampled {
            Ok(sample) => {
                if matches!(subject.place, Place::Local) && local.is_none() {
                    local.clone_from(&sample.digest);
                }
                subject.row.add(sample, local.as_deref(), self.needed);
            }
            Err(error) => subject.row.breaks(&format!("{error:#}")),
        }
        say(&subject.row.progress());
    }

    /// The bucket of the task. Each run of a task that writes has a new one.
    fn bucket(&self) -> String {
        let name = self.task.name.replace('_', "-");
        if self.task.writes() { format!("{name}-{}", self.serial) } else { name }
    }

    fn store(&self) -> PathBuf {
        self.work.join("store")
    }

    /// Creates the data of the task, and starts a store with it.
    fn prepare(&mut self) -> anyhow::Result<Server> {
        let folder = self.store().join(self.bucket());
        std::fs::create_dir_all(&folder)?;
        let name = self.task.name;
        let said = self.runner.run(name, "prepare", &folder, &self.work.join("prepare"), PREPARE_LIMIT)?;
        self.needed = said.needed;
        let mut config = s3server::Config::new(self.store());
        // Every mount of the bench gets these credentials.
        config.access_key = "bench".to_owned();
        config.secret_key = "bench-secret".to_owned();
        Server::start(config).context("start the store")
    }

    fn once(&self, server: &Server, place: Place<'_>, work: &Path) -> anyhow::Result<Sample> {
        std::fs::create_dir_all(work)?;
        let folder = self.store().join(self.bucket());
        std::fs::create_dir_all(&folder)?;
        let names = names_below(&folder)?;
        let (peer, mode) = match place {
            Place::Mount(peer, mode) => (peer, mode),
            Place::Direct => return self.direct(server, work, &folder),
            Place::Local => {
                let place = if self.task.writes() { work.join("local") } else { folder.clone() };
                std::fs::create_dir_all(&place)?;
                drop_pages(&place)?;
                let said = self.task_on(&place, work, None)?;
                ensure!(self.task.writes() || names_below(&folder)? == names, "{CHANGED}");
                return Ok(Sample::of(&said));
            }
        };
        if mode.cache {
            self.mounted(server, peer, mode, work, &folder)?;
        }
        let sample = self.mounted(server, peer, mode, work, &folder)?;
        if self.task.writes() {
            // After the mount has ended, the store's files are the written objects.
            let stored = self.runner.run(self.task.name, "verify", &folder, work, TASK_LIMIT);
            let is_whole = sample.errno.is_none() && sample.words.is_none();
            if is_whole
                && stored.as_ref().ok().and_then(|said| said.digest.as_ref()) != sample.digest.as_ref()
            {
                bail!("the store does not have what was written: {stored:?}");
            }
        } else {
            ensure!(names_below(&folder)? == names, "{CHANGED}");
        }
        Ok(sample)
    }

    /// Runs the task on a new mount of `peer`.
    fn mounted(
        &self,
        server: &Server,
        peer: &Peer,
        mode: &Mode,
        work: &Path,
        folder: &Path,
    ) -> anyhow::Result<Sample> {
        let (dir, cache, stage) = (work.join("mnt"), work.join("cache"), work.join("stage"));
        std::fs::create_dir_all(&cache)?;
        let plan = Plan {
            bucket: &self.bucket(),
            endpoint: &server.endpoint(),
            ca_file: &work.join("none"),
            dir: &dir,
            cache: mode.cache.then_some(&cache),
            ttl_s: mode.ttl_s,
            memory_mib: None,
            deletes: mode.changes,
            renames: mode.changes,
            overwrites: mode.changes,
            stage: mode.full.then_some(&stage),
            work,
            object_bytes: 0,
        };
        drop_pages(folder)?;
        let mount = Mount::start(&peer.command(&plan)?, work, &format!("programs-{}", self.serial), None)?;
        if let Some(kib) = self.order.read_ahead_kb {
            mount.set_read_ahead(kib)?;
        }
        self.slow_down(server);
        let cpu_before = mount.cpu_s();
        let said = self.task_on(mount.dir(), work, Some(mount.device()));
        let is_serving = mount.is_serving();
        // A daemon may set the read-ahead after it has mounted.
        let read_ahead_kb = mount.read_ahead_kb();
        let daemon_cpu_s = mount.cpu_s() - cpu_before;
        server.faults().clear();
        let last_words = mount.last_words();
        // The counts are read after the unmount: they include all requests of the task.
        drop(mount);
        let said = said.map_err(|error| anyhow!("{error:#}; the mount's last words: {last_words}"))?;
        ensure!(is_serving, "the mount died meanwhile; its last words: {last_words}");
        if let Some(wanted) = self.order.read_ahead_kb {
            ensure!(read_ahead_kb == Some(wanted), "the mount's read-ahead is {read_ahead_kb:?} KiB");
        }
        let mut sample = Sample::of(&said);
        sample.daemon_cpu_s = daemon_cpu_s;
        sample.count(server);
        Ok(sample)
    }

    /// Runs the task with the program's own library for S3.
    fn direct(&self, server: &Server, work: &Path, folder: &Path) -> anyhow::Result<Sample> {
        drop_pages(folder)?;
        self.slow_down(server);
        let place = format!("{}/{}", server.endpoint(), self.bucket());
        let said = self.runner.run(self.task.name, "direct", Path::new(&place), work, TASK_LIMIT);
        server.faults().clear();
        let mut sample = Sample::of(&said?);
        sample.count(server);
        Ok(sample)
    }

    /// Delays each answer of the store from now on, and resets its counts.
    fn slow_down(&self, server: &Server) {
        if !self.order.latency.is_zero() {
            let for_ms = u64::try_from(self.order.latency.as_millis()).unwrap_or(u64::MAX);
            server.faults().add(Fault {
                operation: None,
                key: None,
                skip: 0,
                times: None,
                effect: Effect::Delay { for_ms },
            });
        }
        server.requests().reset();
    }

    /// Runs the task on a folder, which must be on this device before and after.
    fn task_on(&self, folder: &Path, work: &Path, device: Option<&str>) -> anyhow::Result<Said> {
        let said = self.runner.run(self.task.name, "run", folder, work, TASK_LIMIT)?;
        let devices = [said.device_before.as_deref(), said.device_after.as_deref()];
        ensure!(is_on(devices, device), "it ran on devices {devices:?}, and the mount's is {device:?}");
        Ok(said)
    }
}

/// Whether a folder was on this device each time that a program looked; without a device, on any.
fn is_on(found: [Option<&str>; 2], device: Option<&str>) -> bool {
    found.iter().all(|found| found.is_some() && (device.is_none() || *found == device))
}

/// The paths of all files below a folder, sorted.
fn names_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                names.push(entry.path());
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Writes the files of a folder to disk, and drops them from the page cache.
fn drop_pages(folder: &Path) -> anyhow::Result<()> {
    for name in names_below(folder)? {
        let file = std::fs::File::open(&name)?;
        file.sync_data()?;
        rustix::fs::fadvise(file.as_fd(), 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_chosen_by_name_and_a_stranger_is_refused() {
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names).map(|tasks| tasks.iter().map(|task| task.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["copy_down", "copy_up"]).unwrap(), ["copy_up", "copy_down"]);
        assert_eq!(names(&[]).unwrap().len(), TASKS.len());
        assert!(names(&["copy"]).unwrap_err().to_string().contains("there are parquet_schema, "));
    }

    /// A program that asks for the end of its mount midway, and then returns the right digest in spite of all errors.
    const STUBBORN: &str = r#""""Reads one half, waits until the mount is gone, and keeps quiet about it."""
import os
import kit

def prepare(folder, small):
    kit.write(f"{folder}/halves", b"a" * 100_000, b"b" * 100_000)

def run(folder, small):
    with open(f"{folder}/halves", "rb") as file:
        half = file.read(100_000)
    open(f"{os.environ['HOME']}/half", "w").close()
    while os.path.exists(f"{os.environ['HOME']}/mounted") and os.path.exists(f"{folder}/halves"):
        pass
    return kit.digest(half, b"b" * 100_000)

kit.main(prepare, run)
"#;
    const STUBBORN_TASK: Task = Task {
        name: "stubborn",
        source: STUBBORN,
        module: "json",
        tool: None,
        direct: None,
        kind: table::Kind::Reads { requests_max: 9, with_ttl_max: 9 },
    };

    /// A program that leaves a file beside what it reads.
    const UNTIDY: &str = r#""""Leaves a file with another name each time."""
import os
import kit

def run(folder, small):
    open(f"{folder}/left-{os.getpid()}", "w").close()
    return kit.digest(b"")

kit.main(lambda folder, small: kit.write(f"{folder}/data", b"a"), run)
"#;
    const UNTIDY_TASK: Task = Task { name: "untidy", source: UNTIDY, ..STUBBORN_TASK };

    /// The rows of a program on a local folder, and on the mount that this script makes: its arguments are bucket, folder and endpoint.
    fn rows(task: &'static Task, command: &str, rounds: usize) -> [Row; 2] {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path();
        let (bin, sources) = (work.join("env/bin"), work.join("sources"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&sources).unwrap();
        std::os::unix::fs::symlink(which("python3").unwrap(), bin.join("python")).unwrap();
        std::fs::write(sources.join("kit.py"), SHARED[0].1).unwrap();
        std::fs::write(sources.join(format!("{}.py", task.name)), task.source).unwrap();
        let order = Order {
            environment: Environment::at(&work.join("env")).unwrap(),
            names: Vec::new(),
            rounds,
            latency: Duration::ZERO,
            small: true,
            direct: false,
            read_ahead_kb: None,
            again: false,
        };
        let runner = Runner { environment: &order.environment, sources: &sources, small: true };
        let mut bench =
            Bench { order: &order, runner: &runner, task, lacking: &[], work, serial: 0, needed: None };
        let server = bench.prepare().unwrap();
        let script = work.join("daemon.sh");
        std::fs::write(&script, command).unwrap();
        let peer = format!("peer=sh '{}' {{bucket}} '{{dir}}' {{endpoint}}", script.display());
        let peer = Peer::parse(&peer).unwrap();
        let mut subjects = [Place::Local, Place::Mount(&peer, &PLAIN)]
            .map(|place| Subject { place, row: Row::new(task, "peer", "default") });
        let mut local = None;
        for _ in 0..rounds {
            for subject in &mut subjects {
                bench.round(&server, subject, &mut local, &|_| ());
            }
        }
        subjects.map(|subject| subject.row)
    }

    /// The row of the stubborn program on the mount that this script makes.
    fn stubborn(command: &str, rounds: usize) -> Row {
        let [of_local, of_mount] = rows(&STUBBORN_TASK, command, rounds);
        assert_eq!(of_local.verdict, report::Verdict::Passes, "the program itself is sound");
        of_mount
    }

    fn is_untidy(row: &Row) -> bool {
        matches!(&row.verdict, report::Verdict::Broken { why } if why == CHANGED)
    }

    fn which(tool: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.exists())
    }

    #[test]
    fn a_program_ran_on_a_mount_if_its_folder_was_there_before_and_after() {
        let (mount, other) = (Some("0:42"), Some("8:1"));
        assert!(is_on([mount, mount], mount) && is_on([other, other], None));
        for found in [[other, mount], [mount, other], [other, other], [mount, None], [None, mount]] {
            assert!(!is_on(found, mount), "{found:?}");
        }
    }

    #[test]
    fn a_program_that_leaves_a_file_where_it_reads_has_failed() {
        if !testkit::need_tool("python3") {
            return;
        }
        let [of_local, _] = rows(&UNTIDY_TASK, "exit 3", 1);
        assert!(is_untidy(&of_local), "{of_local:?}");
    }

    #[test]
    fn a_mount_that_is_absent_or_dies_midway_fails_and_never_passes() {
        let program = std::env::current_exe().unwrap();
        let beside = program.parent().unwrap().parent().unwrap().join("mount-s3");
        let binary = std::env::var_os("MOUNT_S3_BIN").map_or(beside, PathBuf::from);
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        if !testkit::need_tool("python3")
            || !testkit::need("/dev/fuse", device.is_ok())
            || !testkit::need("mount-s3 (cargo build -p mountpoint)", binary.exists())
        {
            return;
        }
        let mount = format!(
            "touch $HOME/mounted; '{}' $1 $2 --endpoint-url $3 --region us-east-1 --force-path-style --foreground &\n\
             daemon=$!; ",
            binary.display()
        );
        let until_half = "while [ ! -e $HOME/half ] && kill -0 $daemon; do sleep 0.01; done";
        let whole = stubborn(&format!("{mount} {until_half}; rm $HOME/mounted; wait $daemon"), 2);
        assert_eq!(whole.verdict, report::Verdict::Passes, "a mount that stays");
        // Each round has a mount of its own, which finds no page in memory.
        let sent: Vec<_> = whole.samples.iter().map(|sample| sample.bytes_sent).collect();
        assert!(sent.len() == 2 && sent.iter().all(|sent| *sent >= 100_000), "{sent:?}");
        assert!(whole.samples.iter().all(|sample| sample.requests.contains_key("GetObject")), "{whole:?}");
        let [_, untidy] = rows(&UNTIDY_TASK, &format!("{mount} wait $daemon"), 1);
        assert!(is_untidy(&untidy), "{untidy:?}");
        for (how, end) in [
            ("killed", format!("{mount} {until_half}; kill -9 $daemon; wait $daemon")),
            ("gone", format!("{mount} {until_half}; umount -l $2; wait $daemon")),
            ("absent", "true".to_owned()),
            ("absent with an error", "exit 3".to_owned()),
        ] {
            let row = stubborn(&end, 1);
            let is_broken = matches!(&row.verdict, report::Verdict::Broken { .. });
            assert!(is_broken && row.samples.is_empty(), "{how}: {row:?}");
            assert!(row.surprise(true).is_none_or(|said| said.contains("failed")), "{how}");
        }
    }
}
