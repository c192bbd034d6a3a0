//! The port on which a process of another program listens.

use std::fs;

/// The IPv4 TCP port on which a process listens: one of its open sockets is in `/proc/net/tcp` with the state LISTEN.
pub fn listens_on(pid: u32) -> Option<u16> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let links = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|to| Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        // sl local_address rem_address st queues timer retransmits uid timeout inode
        let fields: Vec<_> = line.split_whitespace().collect();
        let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let ours = *state == "0A" && sockets.iter().any(|socket| socket == inode);
        ours.then(|| u16::from_str_radix(address.split_once(':')?.1, 16).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_port_of_a_process_is_found_while_it_listens() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap())))
            .spawn()
            .unwrap();
        let found = listens_on(child.id());
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(found, Some(listener.local_addr().unwrap().port()));
        assert_eq!(listens_on(child.id()), None);
    }
}
