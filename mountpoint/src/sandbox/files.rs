//! The files of a sandboxed engine, as rules for landlock.

use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, path_beneath_rules,
};

use super::Folders;

/// Read by every engine: facts about itself, its callers and its machine.
const READ: [&str; 3] = ["/proc", "/sys", "/etc/machine-id"];
/// Devices that a process in the background opens.
const DEVICES: [&str; 1] = ["/dev/null"];

/// The rules. An engine renames files from one folder of its cache to another, which landlock allows to nobody before Linux 5.19: an older one
/// counts as none.
///
/// # Errors
/// The reason why this kernel has none.
pub(super) fn ruleset(folders: &Folders) -> Result<OwnedFd, String> {
    let all = AccessFs::from_all(ABI::V5);
    let looked_at = AccessFs::ReadFile | AccessFs::ReadDir;
    let written = all & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock);
    let rules = || -> Result<Option<OwnedFd>, landlock::RulesetError> {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::Refer)?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .create()?
            .add_rules(path_beneath_rules(READ, looked_at))?
            .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))?
            .add_rules(path_beneath_rules(&folders.read, looked_at))?
            .add_rules(path_beneath_rules(&folders.written, written))?;
        Ok(ruleset.into())
    };
    rules().map_err(|error| error.to_string())?.ok_or_else(|| "this kernel has none".to_owned())
}
