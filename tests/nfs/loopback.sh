#!/usr/bin/env bash
# Exports a folder by NFS to this machine, mounts it twice, and runs check.py on it, under NFS 3 and 4.2. As root, with Debian's
# nfs-kernel-server, on a kernel that has NFS; elsewhere it says what is missing and exits with 77, which counts as skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

skip() { printf 'skipped: %s\n' "$*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "not root"
command -v exportfs >/dev/null || skip "no nfs-kernel-server"
modprobe -a nfsd nfs 2>/dev/null || grep -qw nfsd /proc/filesystems || skip "this kernel has no NFS"

folder=$(mktemp -d "${TMPDIR:-/tmp}/lamina-nfs.XXXXXX")
clean_up() {
  for mount in one other; do umount -l "$folder/$mount" 2>/dev/null || true; done
  exportfs -u "127.0.0.1:$folder/export" || true
  rm -rf "$folder"
}
trap clean_up EXIT
mkdir "$folder/export" "$folder/one" "$folder/other"

mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
pgrep -x rpcbind >/dev/null || rpcbind
pgrep -x rpc.mountd >/dev/null || rpc.mountd
rpc.nfsd 8
exportfs -o rw,sync,no_root_squash,insecure,fsid=0 "127.0.0.1:$folder/export"
for version in 4.2 3; do
  [ "$version" = 3 ] && path=$folder/export || path=/  # fsid=0: the root of what version 4 sees
  mkdir "$folder/export/v$version"
  for mount in one other; do
    mount -t nfs -o "vers=$version,nosharecache,nolock" "127.0.0.1:$path" "$folder/$mount"
  done
  printf '== NFS %s\n' "$version"
  PYTHONPATH=python OMP_NUM_THREADS=1 "${PYTHON:-.venv/bin/python}" tests/nfs/check.py "$folder/one/v$version" "$folder/other/v$version"
  umount "$folder/one" "$folder/other"
done
