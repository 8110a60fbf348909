#!/usr/bin/env bash
# Writes the archive ARCHIVE of a root file system that offers what python:3.11-slim-bookworm does: Debian 12 with python,
# pip, venv and Python's headers, and no compiler. Needs root and debootstrap.
#   make_base.sh ARCHIVE.tar
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,4p' "$0"; exit 2; }
root=$(mktemp -d /var/tmp/vivavoce-base.XXXXXX)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv bookworm "$root"
ln -s python3 "$root/usr/bin/python"

# The headers alone: their package would bring libc's along, which the image has to install by itself.
chroot "$root" sh -c 'cd /tmp && apt-get -o APT::Sandbox::User=root download libpython3.11-dev'
dpkg-deb --fsys-tarfile "$root"/tmp/libpython3.11-dev_*.deb | tar -x -C "$root" ./usr/include

rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/tmp/* "$root"/var/log/*
tar -C "$root" -cf "$1.part" .
mv "$1.part" "$1"
