//! Landlock rules for the files of a sandboxed engine.

use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, path_beneath_rules,
};

use super::Folders;

/// Files that every engine reads: facts about itself, its callers and its machine.
const READ: [&str; 3] = ["/proc", "/sys", "/etc/machine-id"];
/// Devices that an engine in the background opens.
const DEVICES: [&str; 1] = ["/dev/null"];

/// The ruleset. An engine renames files from one folder of its cache to another. Landlock can allow that from Linux 5.19 on, so an older
/// one counts as missing.
///
/// # Errors
/// The reason why this kernel has no usable landlock.
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
