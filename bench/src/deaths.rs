//! Measures the pause of a program when the engine of its mount dies and the next one goes on, with many open files and known directories.
//!
//! Enters: the program, the numbers of files, directories and deaths. Leaves: a table. The [supervisor](crate::supervisor) and the reader
//! are separate processes: a process that waits for the mount can't end.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::fs::OFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::mount::Mount;
use crate::peers::{Peer, Plan};
use crate::run::ServerProcess;
use crate::server::control::Control;
use crate::server::store::Shape;
use crate::supervisor::{DEAD, ENGINE};

const BUCKET: &str = "deaths";
/// Size of each open file, in bytes; a read reads all of it.
const FILE: usize = 4096;
/// The pause between two deaths, in which the reader goes on.
const BETWEEN: Duration = Duration::from_millis(500);
/// Longest wait for a step; after it the measurement fails, because the engine hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The order of a measurement.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) program: PathBuf,
    /// Number of files that stay open.
    pub(crate) files: u64,
    /// Number of directories that were looked up.
    pub(crate) directories: u64,
    pub(crate) deaths: usize,
    /// The pause before the next engine starts.
    pub(crate) restart_after: Duration,
}

/// Kills engines below a reader. Returns a table of the reader's pauses, and of the engines' memory and descriptors.
///
/// # Errors
/// The mount does not start, a read fails, or the next engine does not go on.
pub(crate) fn measure(order: &Order, say: &dyn Fn(&str)) -> anyhow::Result<String> {
    ensure!(order.deaths > 0 && order.files > 0, "--deaths and --files are at least 1");
    let work = tempfile::Builder::new().prefix("s3-deaths-").tempdir()?;
    let server = ServerProcess::start(None, work.path())?;
    let control = Control::new(server.address);
    control.fill(BUCKET, "files/", Shape::Counter.word(), order.files, FILE as u64)?;
    control.fill(BUCKET, "directories/", Shape::Singles.word(), order.directories, 1)?;
    let mount = Supervised::start(order, &server, work.path())?;
    say("mounted");
    let mut reader = Reader::start(mount.mount.dir(), order)?;
    say("all files are open, all directories are known");
    let mut pauses = Vec::new();
    let mut sizes = Vec::new();
    for death in 1..=order.deaths {
        std::thread::sleep(BETWEEN);
        reader.longest()?;
        sizes.push(mount.size()?);
        mount.kill()?;
        let pause = reader.longest()?;
        say(&format!("death {death}: {:.1} ms", pause.as_secs_f64() * 1e3));
        pauses.push(pause);
    }
    sizes.push(mount.size()?);
    reader.end()?;
    Ok(markdown(order, &mut pauses, &sizes))
}

/// Resident bytes of an engine, and the number of its descriptors.
type Size = (u64, usize);

fn markdown(order: &Order, pauses: &mut [Duration], sizes: &[Size]) -> String {
    pauses.sort_unstable();
    let ms = |pause: Duration| format!("{:.1} ms", pause.as_secs_f64() * 1e3);
    let (median, least, most) = (pauses[pauses.len() / 2], pauses[0], pauses[pauses.len() - 1]);
    let of = |(rss, descriptors): Size| format!("{} MiB, {descriptors} descriptors", rss >> 20);
    let (first, second, last) = (sizes[0], sizes[1], sizes[sizes.len() - 1]);
    format!(
        "{} open files, {} directories, {} deaths, next engine after {} ms\n\n| what | figure |\n|---|---|\n\
         | pause of a reader | {} ({} to {}) |\n| engine before the first death | {} |\n\
         | engine after the first death | {} |\n| engine after the last death | {} |\n",
        order.files,
        order.directories,
        pauses.len(),
        order.restart_after.as_millis(),
        ms(median),
        ms(least),
        ms(most),
        of(first),
        of(second),
        of(last),
    )
}

/// A mount, and the log of its supervisor.
struct Supervised {
    mount: Mount,
    log: PathBuf,
}

impl Supervised {
    fn start(order: &Order, server: &ServerProcess, work: &Path) -> anyhow::Result<Self> {
        let endpoint = format!("http://{}", server.address);
        let plan = Plan {
            bucket: BUCKET,
            endpoint: &endpoint,
            ca_file: &work.join("none"),
            dir: &work.join("mnt"),
            cache: None,
            ttl_s: None,
            memory_mib: None,
            deletes: false,
            renames: false,
            overwrites: false,
            stage: None,
            work,
            object_bytes: 0,
        };
        let peer = Peer::supervised(order.program.clone(), order.restart_after)?;
        let mount = Mount::start(&peer.command(&plan)?, work, "deaths", None)?;
        Ok(Self { mount, log: work.join("daemon.log") })
    }

    /// The process ids after this word in the supervisor's log.
    fn named(&self, word: &str) -> anyhow::Result<Vec<Pid>> {
        let log = fs::read_to_string(&self.log)?;
        let pids = log.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.parse().ok());
        Ok(pids.filter_map(Pid::from_raw).collect())
    }

    /// The engine that the supervisor started last.
    fn engine(&self) -> anyhow::Result<Pid> {
        self.named(ENGINE)?.last().copied().context("the supervisor has started no engine")
    }

    /// Kills the engine, and waits until it is dead.
    fn kill(&self) -> anyhow::Result<()> {
        let engine = self.engine()?;
        kill_process(engine, Signal::KILL).context("kill the engine")?;
        let begun = Instant::now();
        while self.named(DEAD)?.last() != Some(&engine) {
            ensure!(begun.elapsed() < LIMIT, "the engine {engine:?} does not die");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn size(&self) -> anyhow::Result<Size> {
        let process = PathBuf::from(format!("/proc/{}", self.engine()?.as_raw_nonzero()));
        let status = fs::read_to_string(process.join("status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let kib: u64 = kib.context("the engine is gone")?.trim().parse()?;
        Ok((kib << 10, fs::read_dir(process.join("fd"))?.count()))
    }
}

/// The process that reads. It is killed when this value is dropped.
struct Reader {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Reader {
    fn start(dir: &Path, order: &Order) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("read-on").arg(dir).arg(order.files.to_string()).arg(order.directories.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("the reader has no output")?);
        let mut reader = Self { child, questions, answers };
        reader.answer()?;
        Ok(reader)
    }

    fn answer(&mut self) -> anyhow::Result<u64> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the reader ended: {line:?}"))
    }

    /// The longest read since the last call. At least one read begins after this call.
    fn longest(&mut self) -> anyhow::Result<Duration> {
        let questions = self.questions.as_mut().context("the reader has ended")?;
        questions.write_all(b"?")?;
        Ok(Duration::from_micros(self.answer()?))
    }

    /// Tells the reader to read each file and directory once more, and waits for its end.
    fn end(mut self) -> anyhow::Result<()> {
        drop(self.questions.take());
        let ended = self.child.wait()?;
        ensure!(ended.success(), "the reader ended with {ended}");
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// The reader's process. It opens files and looks directories up, then reads, and answers each byte of its standard input with the
/// longest read in microseconds. At the end of the input it reads each file and looks each directory up once more.
///
/// # Errors
/// A read or a lookup fails, or a name is missing.
pub(crate) fn read_on(dir: &Path, files: u64, directories: u64) -> anyhow::Result<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })
        .context("raise the limit of open files")?;
    let known: Vec<_> = fs::read_dir(dir.join("directories"))?.collect::<Result<_, _>>()?;
    ensure!(known.len() as u64 == directories, "{} directories, and not {directories}", known.len());
    let look = || known.iter().try_for_each(|entry| fs::metadata(entry.path()).map(drop));
    look().context("look a directory up")?;
    let direct = |number| {
        let path = dir.join("files").join(Shape::Counter.name(number));
        let flags = OFlags::DIRECT.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(&path);
        opened.with_context(|| format!("open {}", path.display()))
    };
    let open: Vec<_> = (0..files).map(direct).collect::<Result<_, _>>()?;
    let mut room = vec![0; 2 * FILE];
    let start = room.as_ptr().align_offset(FILE);
    let mut read = |file: &File| -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let got = file.read_at(&mut room[start..start + FILE], 0).context("read an open file")?;
        ensure!(got == FILE, "a read returned {got} bytes of {FILE}");
        Ok(begun.elapsed())
    };
    let (ask, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut questions = std::io::stdin().lock().bytes();
        while let Some(Ok(_)) = questions.next() {
            if ask.send(()).is_err() {
                return;
            }
        }
    });
    let answer = |longest: Duration| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{}", longest.as_micros()).and_then(|()| stdout.flush())
    };
    answer(Duration::ZERO)?;
    let mut longest = Duration::ZERO;
    for file in open.iter().cycle() {
        let question = asked.try_recv();
        longest = longest.max(read(file)?);
        match question {
            Ok(()) => answer(std::mem::take(&mut longest))?,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => break,
        }
    }
    for file in &open {
        read(file)?;
    }
    look().context("look a directory up at the end")
}
