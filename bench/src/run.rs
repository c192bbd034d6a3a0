//! Rounds: each round runs every workload once on every peer, one after another, so other load on the machine affects all
//! peers alike.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use crate::floor::{Floor, Pass};
use crate::kernel_threads::{self, KernelThreads};
use crate::machine::Machine;
use crate::meter::Group;
use crate::mount::{Mount, Watchdog};
use crate::peers::{Peer, Plan};
use crate::report::{Report, Row};
use crate::server::control::Control;
use crate::warm::warm;
use crate::workload::{Bucket, Job, Sample, Scale, Unit, Workload};

/// Longest run of one workload. After it the bench kills the daemon, and the peer has failed the workload.
const RUN_LIMIT: Duration = Duration::from_secs(180);

/// Memory that is touched before a run besides four big files in the page cache, in bytes: for the daemon.
const WARM_BESIDES: u64 = 512 << 20;

/// The server, a separate process: its CPU time must not count as the client's. Dropping this value ends it.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    group: Group,
    pub(crate) address: SocketAddr,
    /// The address for TLS. It serves the same buckets and counters.
    pub(crate) tls_address: SocketAddr,
    /// The certificate to trust for TLS.
    pub(crate) ca_file: PathBuf,
}

impl ServerProcess {
    /// Starts the server. It writes the certificate to trust into `work`.
    ///
    /// # Errors
    /// The server does not start.
    pub(crate) fn start(cpu: Option<usize>, work: &Path) -> anyhow::Result<Self> {
        let group = Group::new("server");
        let program = std::env::current_exe()?;
        let pin = cpu.map_or_else(String::new, |cpu| format!(" --cpu {cpu}"));
        let ca_file = work.join("ca.pem");
        let mut command =
            group.command(&format!("'{}' serve{pin} --tls '{}'", program.display(), ca_file.display()));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start the server")?;
        let mut stdout = BufReader::new(child.stdout.take().context("the server has no output")?);
        let mut address = || {
            let mut line = String::new();
            stdout.read_line(&mut line)?;
            line.trim().parse().with_context(|| format!("the server said {line:?} instead of an address"))
        };
        match address().and_then(|plain| Ok((plain, address()?))) {
            Ok((address, tls_address)) => Ok(Self { child, group, address, tls_address, ca_file }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn cpu_s(&self) -> f64 {
        self.group.cpu_s(self.child.id())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The order of a run.
pub(crate) struct Order<'a> {
    pub(crate) workloads: Vec<&'a Workload>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) rounds: usize,
    pub(crate) scale: Scale,
    pub(crate) server_cpu: Option<usize>,
    /// Read-ahead of every mount, in KiB.
    pub(crate) read_ahead_kb: Option<u64>,
    /// Whether to measure floors, too.
    pub(crate) floors: bool,
    /// Whether to count the waits of the daemons' threads.
    pub(crate) waits: bool,
}

struct Bench<'a> {
    order: &'a Order<'a>,
    server: ServerProcess,
    control: Control,
    work: tempfile::TempDir,
    serial: u64,
}

/// Runs the order; `say` gets the progress.
///
/// # Errors
/// The server does not start. A peer's failure is a row of the report.
pub(crate) fn run(order: &Order<'_>, say: &dyn Fn(&str)) -> anyhow::Result<Report> {
    let work = tempfile::Builder::new().prefix("s3-bench-").tempdir()?;
    let kernel_threads_idle = kernel_threads::idle();
    let server = ServerProcess::start(order.server_cpu, work.path())?;
    let control = Control::new(server.address);
    let mut bench = Bench { order, server, control, work, serial: 0 };
    let mut report = Report { machine: Machine::here(), scale: order.scale.clone(), ..Report::default() };
    report.rounds = order.rounds;
    report.kernel_threads_idle = kernel_threads_idle;
    report.cpu_counted_by = bench.server.group.method().to_owned();
    bench.fill()?;
    for workload in &order.workloads {
        let takes_part = |peer: &&Peer| peer.floor().is_none_or(|floor| workload.floors.contains(&floor));
        for peer in order.peers.iter().filter(takes_part) {
            let mut row = Row::new(workload, &peer.name, peer.floor().is_some());
            if let Err(error) = bench.once(workload, peer, &Scale::smoke(), &mut row) {
                row.failure = Some(format!("{error:#}"));
            }
            row.samples.clear();
            say(&format!(
                "{} {}: {}",
                workload.name,
                peer.name,
                row.failure.as_deref().unwrap_or("can do it")
            ));
            report.rows.push(row);
        }
        let others = workload.floors.iter().filter(|floor| order.floors && !floor.is_mounted());
        report.rows.extend(others.map(|floor| Row::new(workload, floor.name(), true)));
    }
    for round in 1..=order.rounds {
        for row in report.rows.iter_mut().filter(|row| row.failure.is_none()) {
            let Some(workload) = order.workloads.iter().find(|workload| workload.name == row.workload) else {
                continue;
            };
            let peer = order.peers.iter().find(|peer| peer.name == row.peer);
            let floor = workload.floors.iter().find(|floor| floor.name() == row.peer);
            if workload.unit == Unit::GiB {
                warm(4 * order.scale.big_bytes + WARM_BESIDES).context("touch memory before a run")?;
            }
            let done = match (peer, floor) {
                (Some(peer), _) => bench.once(workload, peer, &order.scale, row),
                (None, Some(floor)) => bench.floor(workload, *floor, row),
                (None, None) => continue,
            };
            if let Err(error) = done {
                row.failure = Some(format!("round {round}: {error:#}"));
            }
            let outcome = row.failure.clone().unwrap_or_else(|| row.latest());
            say(&format!("round {round}/{} {} {}: {outcome}", order.rounds, row.workload, row.peer));
        }
    }
    Ok(report)
}

impl Bench<'_> {
    fn fill(&self) -> anyhow::Result<()> {
        for scale in [&Scale::smoke(), &self.order.scale] {
            let wanted =
                |bucket: &Bucket| self.order.workloads.iter().any(|workload| workload.bucket == *bucket);
            for bucket in Bucket::ALL.into_iter().filter(wanted) {
                let (prefix, shape, count, size) = bucket.objects(scale);
                self.control.fill(&bucket.name(scale), prefix, shape.word(), count, size)?;
            }
        }
        Ok(())
    }

    /// Mounts, runs the workload and unmounts. Adds the sample to the row.
    fn once(&mut self, workload: &Workload, peer: &Peer, scale: &Scale, row: &mut Row) -> anyhow::Result<()> {
        self.serial += 1;
        let work = self.work.path().join(format!("{}-{}", self.serial, workload.name));
        let result = self.mounted(workload, peer, scale, row, &work);
        std::fs::remove_dir_all(&work).with_context(|| format!("clean up {}", work.display()))?;
        row.samples.push(result?);
        Ok(())
    }

    fn mounted(
        &self,
        workload: &Workload,
        peer: &Peer,
        scale: &Scale,
        row: &mut Row,
        work: &Path,
    ) -> anyhow::Result<Sample> {
        let (dir, cache, bucket) = (work.join("mnt"), work.join("cache"), workload.bucket.name(scale));
        std::fs::create_dir_all(&cache)?;
        if workload.bucket == Bucket::Write {
            self.control.empty(&bucket)?;
        }
        let plan = Plan {
            bucket: &bucket,
            endpoint: &if workload.tls {
                format!("https://{}", self.server.tls_address)
            } else {
                format!("http://{}", self.server.address)
            },
            ca_file: &self.server.ca_file,
            dir: &dir,
            cache: workload.cache.then_some(&cache),
            ttl_s: workload.ttl_s,
            memory_mib: workload.memory_mib,
            deletes: workload.deletes,
            renames: workload.renames,
            overwrites: false,
            stage: None,
            work,
            object_bytes: scale.big_bytes,
        };
        let command = peer.command(&plan)?;
        row.remark = peer.remark(&plan);
        self.control.pace(Duration::ZERO, 0)?;
        let name = format!("{}-{}", self.serial, workload.name);
        let mount =
            Mount::start(&command, work, &name, workload.tls.then_some(self.server.ca_file.as_path()))?;
        if let Some(read_ahead_kb) = self.order.read_ahead_kb {
            mount.set_read_ahead(read_ahead_kb)?;
        }
        self.control.pace(Duration::from_millis(workload.latency_ms), workload.rate_mb * 1_000_000)?;
        let watchdog = Watchdog::arm(mount.pid(), RUN_LIMIT);
        let job = Job {
            mount: &mount,
            control: &self.control,
            server_cpu_s: &|| self.server.cpu_s(),
            scale,
            workload,
            bucket: &bucket,
            cache: &cache,
            waits: self.order.waits.then_some(work),
            serial: self.serial,
        };
        let result = (workload.run)(&job);
        let barked = watchdog.disarm();
        // This is read late, because a daemon may raise the read-ahead after it has mounted.
        row.read_ahead_kb = mount.read_ahead_kb();
        // Unmounting needs no latency, and must not wait for read-ahead in flight.
        self.control.pace(Duration::ZERO, 0)?;
        if barked {
            bail!("not done after {} s", RUN_LIMIT.as_secs());
        }
        // The reason comes first, because a table shows only the beginning.
        result.map_err(|error| anyhow!("{error:#}; its last words: {}", mount.last_words()))
    }

    /// Measures a floor in a separate process, with the workload's number of bytes.
    fn floor(&self, workload: &Workload, floor: Floor, row: &mut Row) -> anyhow::Result<()> {
        self.control.pace(Duration::ZERO, 0)?;
        self.control.reset()?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        let bytes = self.order.scale.big_bytes.to_string();
        match floor {
            Floor::NullFs(_) | Floor::PlainFile => bail!("{} is mounted like a peer", floor.name()),
            Floor::PageCache => command.args(["page-cache", &bytes]),
            Floor::Memcpy => command.args(["memcpy", &bytes]),
            Floor::Receive => {
                let address = if workload.tls { self.server.tls_address } else { self.server.address };
                let path = format!("/{}/00000000", workload.bucket.name(&self.order.scale));
                command.args(["receive", &address.to_string(), &path]);
                if workload.tls {
                    command.arg("--ca").arg(&self.server.ca_file);
                }
                &mut command
            }
        };
        let kernel_before = KernelThreads::now();
        let server_before = self.server.cpu_s();
        let output = command
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            .output()
            .with_context(|| format!("start {}", floor.name()))?;
        let server_cpu_s = self.server.cpu_s() - server_before;
        let kernel_cpu_s = kernel_threads::since(kernel_before.as_ref());
        let text = String::from_utf8_lossy(&output.stdout);
        let Pass { seconds, cpu_s, bytes } = serde_json::from_str(&text).with_context(|| {
            format!("{} failed: {}", floor.name(), String::from_utf8_lossy(&output.stderr))
        })?;
        // The reader's CPU time is the copy from the page cache; all other work would be the file system's.
        let (daemon_cpu_s, client_cpu_s) =
            if floor == Floor::PageCache { (0.0, cpu_s) } else { (cpu_s, 0.0) };
        row.samples.push(Sample {
            seconds,
            bytes,
            items: 1,
            daemon_cpu_s,
            client_cpu_s,
            server_cpu_s,
            kernel_cpu_s,
            counts: self.control.counts()?,
            ..Sample::default()
        });
        Ok(())
    }
}
