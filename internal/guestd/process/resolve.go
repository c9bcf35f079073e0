package process

import (
	"errors"
	"syscall"

	"github.com/fusevm/fuse/internal/fleet"
)

// Program is a command that is ready to be started in the root that its caller
// has.
type Program struct {
	Path string
	Argv []string
	Attr *syscall.ProcAttr // with user, directory and environment; files are the caller's
}

// Resolve finds a command's program, user and directory as a Runner would. For a
// program that is not there the exit code says so, as a shell's.
func Resolve(cfg Config, spec fleet.ExecSpec) (p Program, exit int, err error) {
	cmd, err := (&Runner{cfg: cfg}).prepare(spec)
	if err != nil {
		return p, exitNotExecutable, err
	}
	path, err := cmd.find()
	if err != nil {
		return p, ExitOf(err), err
	}
	return Program{Path: path, Argv: cmd.argv, Attr: &syscall.ProcAttr{
		Dir: cmd.cwd, Env: cmd.env,
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: cmd.who.uid, Gid: cmd.who.gid, Groups: cmd.who.groups}},
	}}, 0, nil
}

// ExitOf is the exit code of a command that could not be started.
func ExitOf(err error) int {
	if errors.Is(err, errNotFound) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return exitNotFound
	}
	return exitNotExecutable
}

// ExitStatus is a process's end as an exit code.
func ExitStatus(ws syscall.WaitStatus) int { return statusOf(ws).ExitCode }
