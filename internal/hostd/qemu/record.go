package qemu

import (
	"cmp"
	"errors"
	"io/fs"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/bounds"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/ports"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/svcdisk"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// Names of the files in a VM's directory.
const (
	fileBase    = "base.ext4" // a hard link to the image
	fileGuest   = "guest.json"
	fileInitrd  = "initrd"
	fileQMP     = "qmp.sock"
	fileProcess = "qemu.json"
	fileLog     = kept.VMMLog
	fileConsole = kept.Console
	fileExit    = "exit.json"
	fileBoot    = "boot.json" // what the guest was booted with, secrets included
	dirPaused   = "paused"    // the capture of a paused VM
)

var files = append([]string{
	fileBase, fileGuest, fileInitrd, fileProcess, fileLog, fileConsole, fileExit, fileBoot, kept.File, ports.File, bounds.File, thaw.File,
}, svcdisk.Files()...)

// guestRecord is how to reach the guest agent. It is written before QEMU
// starts, and again around each rotation of the token.
type guestRecord struct {
	UID    string `json:"uid"`
	Token  string `json:"token"`
	Port   int    `json:"port,omitempty"` // on the loopback, with user networking
	Digest string `json:"digest"`         // of the image
	// Rotation is the number of the last one that was begun, Next its token
	// while the guest may not have taken it yet, Cert and Key its certificate.
	Rotation int64  `json:"rotation,omitempty"`
	Next     string `json:"next,omitempty"`
	Cert     string `json:"cert,omitempty"`
	Key      string `json:"key,omitempty"`
}

// processRecord is which process the VM is.
type processRecord struct {
	UID string `json:"uid"`
	proc.Ident
	QEMU    string    `json:"qemu"` // version
	Accel   string    `json:"accel"`
	Kernel  string    `json:"kernel"`
	Started time.Time `json:"started"`
	// Paused says that there is no process: the VM is in its directory.
	Paused bool        `json:"paused,omitempty"`
	Disk   chain.Chain `json:"disk,omitzero"`
	Socket string      `json:"socket,omitempty"` // of QMP; empty: qmp.sock
	Tap    int         `json:"tap,omitempty"`    // the process's descriptor of it
	// Port goes before the guest record's: it is of this process.
	Port    int                `json:"port,omitempty"`
	Machine fleet.MachineFacts `json:"machine,omitzero"`
}

// socket is the name of the control socket.
func (r processRecord) socket() string { return cmp.Or(r.Socket, fileQMP) }

// recordExit keeps why a VM ended; the first record counts.
func recordExit(dir string, exit fleet.ExitRecord) (fleet.ExitRecord, error) {
	old, err := record.Read[fleet.ExitRecord](dir, fileExit)
	if err == nil && old.UID == exit.UID {
		return old, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return exit, err
	}
	return exit, record.Write(dir, fileExit, exit)
}
