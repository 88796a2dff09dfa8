//! What kind of disk a file is on. The index of a write-ahead log is memory that processes share, and no network
//! shares memory: two machines that have such a file open damage it, and say nothing.

use std::path::Path;

/// Kinds of file system that are a network.
const NETWORK: [&str; 16] = [
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.sshfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
];
/// Kinds that may be one, or that a virtual machine shares with its host.
const DOUBTFUL: [&str; 4] = ["9p", "prl_fs", "vboxsf", "virtiofs"];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Local,
    /// Perhaps not of this machine alone.
    Doubtful(String),
    Network(String),
}

/// The disk of a folder. Where the system does not say it as Linux does, every disk counts as local.
pub(super) fn of(folder: &Path) -> Disk {
    let (Ok(mounts), Ok(folder)) = (std::fs::read_to_string("/proc/self/mountinfo"), folder.canonicalize()) else {
        return Disk::Local;
    };
    in_mounts(&mounts, &folder)
}

/// How many bytes a file in this folder can have at most, where the system says it.
#[cfg(unix)]
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    // A file system without a size says nothing of its room either.
    let disk = rustix::fs::statvfs(folder).ok().filter(|disk| disk.f_blocks > 0)?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The same where no system says it.
#[cfg(not(unix))]
pub(super) fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

fn in_mounts(mounts: &str, folder: &Path) -> Disk {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        // Spaces of a path are written as octal numbers.
        let place = before.split(' ').nth(4)?.replace("\\040", " ");
        let kind = after.split(' ').next()?.to_owned();
        folder.starts_with(&place).then_some((place.len(), kind))
    };
    // Of two at one place the later hides the other.
    let Some((_, kind)) = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length) else {
        return Disk::Local;
    };
    if NETWORK.contains(&kind.as_str()) {
        Disk::Network(kind)
    } else if DOUBTFUL.contains(&kind.as_str()) || kind.starts_with("fuse.") {
        Disk::Doubtful(kind)
    } else {
        Disk::Local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_that_a_folder_is_in_says_what_its_disk_is() {
        let mounts = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
                      40 22 0:50 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2\n\
                      41 40 0:51 / /home/me/local\\040disk rw - xfs /dev/vdb rw\n\
                      42 22 0:52 / /mnt/c rw - 9p drvfs rw\n\
                      43 22 0:53 / /far rw - fuse.sshfs me@host: rw\n\
                      44 22 0:54 / /odd rw - fuse.grpcfuse grpcfuse rw\n\
                      45 22 0:55 / /twice rw - cifs //server/share rw\n\
                      46 22 0:56 / /twice rw - tmpfs tmpfs rw\n";
        let network = |kind: &str| Disk::Network(kind.to_owned());
        let doubtful = |kind: &str| Disk::Doubtful(kind.to_owned());
        for (folder, want) in [
            ("/var/lib", Disk::Local),
            ("/homeless", Disk::Local),
            ("/home/me", network("nfs4")),
            ("/home/me/local disk/deep", Disk::Local),
            ("/mnt/c/Users", doubtful("9p")),
            ("/far", network("fuse.sshfs")),
            ("/odd", doubtful("fuse.grpcfuse")),
            ("/twice", Disk::Local),
        ] {
            assert_eq!(in_mounts(mounts, Path::new(folder)), want, "{folder}");
        }
        assert_eq!(in_mounts("", Path::new("/")), Disk::Local);
    }
}
