package guestops

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of a command. The kernel's own limit on one argument is 128 KiB.
const (
	maxArgs     = 4096
	maxArgument = 128<<10 - 1
	maxArgv     = 1 << 20
	maxEnv      = 1024
	maxStdin    = 8 << 20
	maxCwd      = 4096
)

var (
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
)

// ExecRequest is one command: Cmd, or Shell for sh -lc.
type ExecRequest struct {
	Actor string
	Cmd   []string
	Shell string
	// Env, Cwd, User and Stdin are additions to the existing wire.
	Env   map[string]string
	Cwd   string
	User  string
	Stdin []byte
	// Timeout ends the command and all it started. A buffered command without
	// one has 60 s, and 600 s at most; a streamed one has none.
	Timeout time.Duration
}

func (r ExecRequest) stdin() io.Reader {
	if len(r.Stdin) == 0 {
		return nil
	}
	return bytes.NewReader(r.Stdin)
}

// spec checks the request and makes the command of it.
func (r ExecRequest) spec() (fleet.ExecSpec, error) {
	argv := r.Cmd
	switch {
	case len(r.Cmd) > 0 && r.Shell != "":
		return fleet.ExecSpec{}, fleet.Invalid("cmd", "one of cmd and shell", "leave one out", "and shell are both set")
	case r.Shell != "":
		argv = []string{"sh", "-lc", r.Shell}
	case len(r.Cmd) == 0:
		return fleet.ExecSpec{}, fleet.Invalid("cmd", "one of cmd and shell", "send the command as cmd, a list, or as shell, a line", "and shell are both empty")
	}
	for _, check := range []func() error{
		func() error { return checkArgv(argv) },
		r.checkEnv, r.checkPlace,
	} {
		if err := check(); err != nil {
			return fleet.ExecSpec{}, err
		}
	}
	return fleet.ExecSpec{Argv: slices.Clone(argv), Env: maps.Clone(r.Env), Cwd: r.Cwd, User: r.User, Timeout: r.Timeout}, nil
}

func checkArgv(argv []string) error {
	const remedy = "pass large input over stdin"
	if argv[0] == "" {
		return fleet.Invalid("cmd", "a program", "name the program to run", "starts with an empty word")
	}
	if len(argv) > maxArgs {
		return fleet.Invalid("cmd", fmt.Sprintf("%d words", maxArgs), remedy, "has %d words", len(argv))
	}
	total := 0
	for i, a := range argv {
		total += len(a)
		switch {
		case strings.ContainsRune(a, 0):
			return fleet.Invalid("cmd", "text", "take the NUL byte out", "has a NUL byte in word %d", i+1)
		case len(a) > maxArgument:
			return fleet.Invalid("cmd", fmt.Sprintf("%d bytes a word", maxArgument), remedy, "has %d bytes in word %d", len(a), i+1)
		}
	}
	if total > maxArgv {
		return fleet.Invalid("cmd", fmt.Sprintf("%d bytes", maxArgv), remedy, "is %d bytes", total)
	}
	return nil
}

func (r ExecRequest) checkEnv() error {
	if len(r.Env) > maxEnv {
		return fleet.Invalid("env", fmt.Sprintf("%d variables", maxEnv), "send fewer", "has %d variables", len(r.Env))
	}
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		if !envName.MatchString(k) {
			return fleet.Invalid("env", envName.String(), "rename the variable", "has the variable %.80q", k)
		}
		if v := r.Env[k]; len(v) > maxArgument || strings.ContainsRune(v, 0) {
			return fleet.Invalid("env", fmt.Sprintf("text of %d bytes", maxArgument), "pass large input over stdin", "has %d bytes, or a NUL byte, in %s", len(v), k)
		}
	}
	return nil
}

func (r ExecRequest) checkPlace() error {
	switch {
	case r.Cwd != "" && (!strings.HasPrefix(r.Cwd, "/") || len(r.Cwd) > maxCwd || strings.ContainsRune(r.Cwd, 0)):
		return fleet.Invalid("cwd", fmt.Sprintf("an absolute path of at most %d bytes", maxCwd), "give the full path", "%.120q is not allowed", r.Cwd)
	case r.User != "" && !userName.MatchString(r.User):
		return fleet.Invalid("user", "a name, a uid, or uid:gid", "name a user of the image", "%.80q is not allowed", r.User)
	case len(r.Stdin) > maxStdin:
		return fleet.Invalid("stdin", fmt.Sprintf("%d bytes", maxStdin), "upload a file instead", "is %d bytes", len(r.Stdin))
	case r.Timeout < 0:
		return fleet.Invalid("timeout_ms", "0 or more", "0 means the default", "is %d", r.Timeout.Milliseconds())
	}
	return nil
}
