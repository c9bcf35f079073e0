package process

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fusevm/fuse/internal/fleet"
)

// defaultPath is the PATH of commands whose image and caller give none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var errNotFound = errors.New("not found")

// command is a checked ExecSpec.
type command struct {
	argv []string
	env  []string
	path string // the PATH the command sees
	cwd  string
	who  account
}

// prepare checks a spec against the guest. What the caller got wrong is an
// error here; only the program itself can still be missing.
func (r *Runner) prepare(spec fleet.ExecSpec) (command, error) {
	if err := check(spec); err != nil {
		return command{}, err
	}
	user := spec.User
	if user == "" {
		user = r.cfg.User
	}
	who, err := lookup("/", user)
	if err != nil {
		return command{}, err
	}
	cwd := firstOf(spec.Cwd, r.cfg.Workdir, "/")
	info, err := os.Stat(cwd)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil && spec.Cwd == "" && os.IsNotExist(err) {
		cwd = "/" // the image names a directory that it does not have
	} else if err != nil {
		return command{}, fleet.Errorf(fleet.CodeInvalidArgument, "working directory %q cannot be entered: %w", cwd, errnoOf(err))
	}
	vars := map[string]string{"PATH": defaultPath, "HOME": who.home}
	if who.name != "" {
		vars["USER"], vars["LOGNAME"] = who.name, who.name
	}
	maps.Copy(vars, r.cfg.Env)
	maps.Copy(vars, spec.Env)
	env := make([]string, 0, len(vars)+1)
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, k+"="+vars[k])
	}
	return command{argv: spec.Argv, env: env, path: vars["PATH"], cwd: cwd, who: who}, nil
}

func check(spec fleet.ExecSpec) error {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "a command needs the name of a program")
	}
	if spec.Timeout < 0 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "timeout %v must not be negative", spec.Timeout)
	}
	for _, arg := range spec.Argv {
		if strings.ContainsRune(arg, 0) {
			return fleet.Errorf(fleet.CodeInvalidArgument, "an argument holds a NUL byte, which no program can be given")
		}
	}
	for k, v := range spec.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%q is no environment variable: its name must not be empty or hold '=', neither may hold a NUL byte", k)
		}
	}
	if spec.Cwd != "" && !filepath.IsAbs(spec.Cwd) {
		return fleet.Errorf(fleet.CodeInvalidArgument, "working directory %q must be an absolute path", spec.Cwd)
	}
	return nil
}

// find returns the path of the program as execvp would, with the PATH and
// working directory that the command will have.
func (c command) find() (string, error) {
	name := c.argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	denied := false
	for dir := range strings.SplitSeq(c.path, ":") {
		path := filepath.Join(dir, name)
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.cwd, path)
		}
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			continue
		}
		if info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
		denied = true
	}
	if denied {
		return "", syscall.EACCES
	}
	return "", errNotFound
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// errnoOf leaves out the path, which the message already has.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
