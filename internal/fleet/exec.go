package fleet

import (
	"io"
	"time"
)

// ExecSpec is one command to run in a guest.
type ExecSpec struct {
	Argv []string
	Env  map[string]string // added to the image's environment
	Cwd  string            // empty: the image's working directory
	User string            // name, uid, or uid:gid; empty: root
	// Timeout ends the whole process tree; zero means none.
	Timeout time.Duration
}

// Stdio are the streams of a command. A nil Stdin is at end of file from the
// start; a nil writer discards.
type Stdio struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// ExecStatus is how a command ended. A command that could not be found is 127,
// one that could not be executed 126, a timeout 124, a signal 128+n: a failure
// of transport is an error, never an exit code.
type ExecStatus struct {
	ExitCode int
	Signal   string // name of the signal that ended it, e.g. "KILL"
	TimedOut bool
}

// GuestFile is one file to write into a guest. Parent directories are made.
type GuestFile struct {
	Path string
	Data []byte
	Mode uint32 // permission bits; zero means 0644, 0600 below /fuse
}

// GuestInfo is what a guest says of itself.
type GuestInfo struct {
	Version     string // of fused
	WireVersion int
	BootID      string
	UptimeMS    int64
	Ready       bool
	// Health is the probe's last verdict; nil without a probe or a verdict.
	Health *HealthStatus
	Frozen bool // its processes or filesystem stand still
	// Renewed is the generation of its last continuation from a capture.
	Renewed string
	// Anew is what it got anew because its disk is a copy of another machine's.
	Anew []Renewal
}
