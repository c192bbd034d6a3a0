//! The flags of the mount: permissions and attributes.

use clap::{Args as ClapArgs, ValueEnum};

use crate::fs::RenameErrno;

/// The flags of the mount: permissions and attributes.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Mount options")]
pub(crate) struct MountOptions {
    /// Refuse every change
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Allow deleting files
    #[arg(long)]
    pub(crate) allow_delete: bool,
    /// Allow replacing files
    #[arg(long)]
    pub(crate) allow_overwrite: bool,
    /// Allow appending to files (O_APPEND): the store copies what is there, new bytes follow
    #[arg(long)]
    pub(crate) allow_append: bool,
    /// Allow renaming files and directories: the store copies them, and the old keys are deleted
    #[arg(long)]
    pub(crate) allow_rename: bool,
    /// Most objects of a directory that may be renamed; beyond, the error is EXDEV, and programs copy and delete
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "allow_rename")]
    pub(crate) rename_limit: usize,
    /// Error of a rename without --allow-rename: with exdev, mv and other programs copy and delete instead
    #[arg(long, value_enum, default_value_t, conflicts_with = "allow_rename")]
    pub(crate) rename_errno: RenameErrnoArg,
    /// Keep modes, owners, times, symbolic links and user.* attributes in the objects' metadata, as s3fs does
    #[arg(long)]
    pub(crate) keep_metadata: bool,
    /// Store a new directory at once, as an object of its name and a slash; show objects name_$folder$ as directories
    #[arg(long)]
    pub(crate) directory_markers: bool,
    /// Show ETag, version, storage class and checksum of objects as extended attributes user.s3.*
    #[arg(long)]
    pub(crate) xattrs: bool,
    /// Accept chmod, chown and utimens of stored files and directories, without effect
    #[arg(long, conflicts_with = "keep_metadata")]
    pub(crate) ignore_attributes: bool,
    /// Unmount even if this process is killed
    #[arg(long)]
    pub(crate) auto_unmount: bool,
    /// Let root access the mount too
    #[arg(long)]
    pub(crate) allow_root: bool,
    /// Let every user access the mount
    #[arg(long, conflicts_with = "allow_root")]
    pub(crate) allow_other: bool,
    /// Owner of all files and directories [default: the mounting user]
    #[arg(long)]
    pub(crate) uid: Option<u32>,
    /// Group of all files and directories [default: the mounting user's]
    #[arg(long)]
    pub(crate) gid: Option<u32>,
    /// Permissions of files, octal
    #[arg(long, default_value = "0644", value_parser = parse_mode)]
    pub(crate) file_mode: u16,
    /// Permissions of directories, octal
    #[arg(long, default_value = "0755", value_parser = parse_mode)]
    pub(crate) dir_mode: u16,
    /// Confine this process once it has mounted: it starts no program, has no privilege, and opens no file but those of its mount
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) sandbox: SandboxArg,
    /// Refused: appends to objects of directory buckets
    #[arg(long, hide = true)]
    pub(crate) incremental_upload: bool,
    /// No file can be executed; only mount(8) says so, with `-o noexec`
    #[arg(skip)]
    pub(crate) no_exec: bool,
    /// SELinux labels, as mount(2) takes them; only mount(8) says so, with `-o context=`
    #[arg(skip)]
    pub(crate) labels: Vec<String>,
}

/// The values of `--rename-errno`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RenameErrnoArg {
    /// ENOSYS, "Function not implemented"
    #[default]
    Enosys,
    /// EXDEV, "Invalid cross-device link"
    Exdev,
}

/// The values of `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxArg {
    /// Confine as far as the kernel can, if the environment asks for it (MOUNT_S3_SANDBOX=1), as in Mountpoint Pods and the packages' unit
    #[default]
    Auto,
    /// Always; without a part that the kernel lacks, there is no mount
    On,
    /// Never
    Off,
}

impl From<RenameErrnoArg> for RenameErrno {
    fn from(arg: RenameErrnoArg) -> Self {
        match arg {
            RenameErrnoArg::Enosys => Self::Enosys,
            RenameErrnoArg::Exdev => Self::Exdev,
        }
    }
}

fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        Ok(_) => Err("only user/group/other permissions are supported, from 0000 to 0777".into()),
        Err(_) => Err("must be a valid octal number, from 0000 to 0777".into()),
    }
}
