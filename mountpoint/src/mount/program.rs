//! The program that prints credentials (`credential_process`), as the helper of a sandboxed engine runs it: `sh -c`, as AWS's SDKs do.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::fuse;

/// How long it may take. Its caller gives up then.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes of output that are read.
const OUTPUT_MAX: u64 = 32 << 10;

/// The output of the command.
///
/// # Errors
/// It fails, takes too long, or can't be started. The error has no word of its output.
pub(super) fn output(command: &str) -> io::Result<String> {
    let mut shell: Command = fuse::helper("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = shell.spawn()?;
    let stdout =
        child.stdout.take().ok_or_else(|| io::Error::other("the credential_process has no output"))?;
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new().name("printed".to_owned()).spawn(move || {
        let mut text = String::new();
        let read = stdout.take(OUTPUT_MAX).read_to_string(&mut text).map(|_| text);
        let _ = send.send(read);
    })?;
    let read = receive.recv_timeout(WITHIN);
    if read.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    match read {
        Ok(text) if status.success() => text,
        Ok(_) => Err(io::Error::other(format!("the credential_process failed: {status}"))),
        Err(_) => {
            Err(io::Error::other(format!("the credential_process took longer than {} s", WITHIN.as_secs())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_program_comes_back_and_a_failure_says_nothing_of_it() {
        assert_eq!(output("echo one two").unwrap(), "one two\n");
        let error = output("echo SECRET; exit 3").unwrap_err().to_string();
        assert!(error.contains('3') && !error.contains("SECRET"), "{error}");
        assert!(output("exec /nowhere/to/be/found").is_err());
    }
}
