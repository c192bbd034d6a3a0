//! Writes panics to the log, because nobody reads the standard error of a mount in the background.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;

/// Installs a panic hook: logs each panic as an ERROR with thread, place and backtrace, and then calls the previous hook.
pub(super) fn to_log() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("{}\n{}", line(info), Backtrace::force_capture());
        // The panic may end the process.
        super::flush();
        before(info);
    }));
}

fn line(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let message = info.payload_as_str().unwrap_or("no message");
    format!("thread '{name}' panicked at {place}: {message}")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::{Config, init};

    /// Set where the test below runs again as a process of its own: a panic hook and a log belong to a process.
    const DIRECTORY: &str = "TEST_LOG_DIRECTORY";

    #[test]
    fn a_panic_is_in_the_log_with_its_thread_and_the_way_there() {
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            let config = Config {
                stdout: false,
                directory: Some(directory.into()),
                json: false,
                off: false,
                debug: false,
                filter: None,
            };
            let _level = init(&config).unwrap();
            let worker = std::thread::Builder::new().name("worker".into()).spawn(|| panic!("out of luck"));
            assert!(worker.unwrap().join().is_err());
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let name = "logging::panic::tests::a_panic_is_in_the_log_with_its_thread_and_the_way_there";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", name]).env(DIRECTORY, directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let log = std::fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
        let place = "thread 'worker' panicked at mountpoint/src/logging/panic.rs:";
        assert!(log.contains(" ERROR ") && log.contains(place) && log.contains(": out of luck\n"), "{log}");
        assert!(log.contains("   0: ") && log.contains("rust_begin_unwind"), "{log}");
    }
}
