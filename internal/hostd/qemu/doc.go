// Package qemu runs VMs on Debian's QEMU, 7.2 and newer: with KVM where a
// guest really boots with it, in software emulation elsewhere.
//
// A VM is one QEMU process in its own session, cgroup and user, without
// capabilities. It opens nothing of ours by path: disk, root filesystem,
// kernel, initramfs, tap, console and control socket are descriptors. The
// process outlives this program; pid, start time, boot id and QMP's answer
// together prove later that it is the same one. docs/design/qemu.md has the
// picture.
//
// In the VM's directory the driver keeps:
//
//	disk.qcow2    overlay over the image's immutable root filesystem, and with
//	disk-N.qcow2  each capture another one; qemu.json tells which count
//	guest.json    token and address of the guest agent (0600)
//	boot.json     what the guest boots with, its identity included (0600)
//	initrd        base initramfs and the guest's identity; gone once booted
//	qmp.sock      QEMU's control socket
//	qemu.json     which process it is
//	qemu.log      what QEMU printed
//	console.log   the guest's console, its last part
//	exit.json     why it ended, once that is known
//	paused/       the capture of a VM that is set aside
package qemu
