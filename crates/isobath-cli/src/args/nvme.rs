//! NVMe drives, and who uses them.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Args)]
#[command(after_help = "\
A drive that is bound to vfio-pci is driven by a program, without the kernel: no \
file system, and no other user, reaches it. `unbind` gives it back.

Examples:
  isobath nvme list
  isobath nvme bind 0000:01:00.0
  isobath nvme unbind 0000:01:00.0")]
pub(crate) struct NvmeArgs {
    /// Where `sys`, `proc` and `dev` are
    #[arg(long, global = true, hide = true, value_name = "DIRECTORY", default_value = "/", value_hint = ValueHint::DirPath)]
    pub(crate) root: PathBuf,
    #[command(subcommand)]
    pub(crate) verb: NvmeVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NvmeVerb {
    /// Show the drives: who drives them, their IOMMU group, who uses them
    #[command(after_help = "\
Example:
  isobath nvme list --json")]
    List,
    /// Show what a drive says of itself and its first namespaces
    #[command(after_help = "\
Works with drives of the kernel, and with drives that are bound to vfio-pci and \
not in use.

Example:
  isobath nvme identify 0000:01:00.0")]
    Identify(NvmeDriveArgs),
    /// Show a drive's own counts of its health and use
    #[command(after_help = "\
Example:
  isobath nvme smart 0000:01:00.0")]
    Smart(NvmeDriveArgs),
    /// Take a drive from the kernel and give it to vfio-pci
    #[command(after_help = "\
Nothing is written to the drive. One that is mounted, or otherwise in use, is \
refused always; one with a partition table, a file system or other data needs \
--force. A store of Isobath may lie on it.

Example:
  isobath nvme bind 0000:01:00.0")]
    Bind(NvmeBindArgs),
    /// Give a drive back to the kernel
    #[command(after_help = "\
Works also after the program that used the drive was killed.

Example:
  isobath nvme unbind 0000:01:00.0")]
    Unbind(NvmeDriveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NvmeDriveArgs {
    /// PCI address of the drive, such as 0000:01:00.0
    #[arg(value_name = "ADDRESS")]
    pub(crate) address: String,
}

#[derive(Debug, Args)]
pub(crate) struct NvmeBindArgs {
    #[command(flatten)]
    pub(crate) drive: NvmeDriveArgs,
    /// Even if something lies on the drive, which a program may overwrite then
    #[arg(long)]
    pub(crate) force: bool,
}
