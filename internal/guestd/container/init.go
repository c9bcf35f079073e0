package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
)

const exitBroken = 126

// Main is the agent's program as a service's first process, or as the one that
// enters where a service runs: "run PLAN -- …", "enter PLAN PID -- COMMAND…".
func Main(args []string) int {
	// Namespaces, the root and what the process may do are the thread's.
	runtime.LockOSThread()
	exit, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fused:", err)
	}
	return exit
}

func run(args []string) (int, error) {
	if len(args) < 3 {
		return exitBroken, errors.New("service: too few arguments")
	}
	doc, err := os.ReadFile(args[1]) //nolint:gosec // fused itself names it
	if err != nil {
		return exitBroken, err
	}
	var p plan
	if err := json.Unmarshal(doc, &p); err != nil {
		return exitBroken, errors.New("service: the plan cannot be read") // the cause may quote it
	}
	spec := p.Command
	switch {
	case args[0] == "run":
		if err := p.layOut(); err != nil {
			return exitBroken, fmt.Errorf("service %s: lay out the root: %w", p.Name, err)
		}
	case args[0] == "enter" && len(args) > 4:
		if err := enter(args[2]); err != nil {
			return exitBroken, fmt.Errorf("service %s: enter: %w", p.Name, err)
		}
		spec.Argv = args[4:]
	default:
		return exitBroken, errors.New("service: unknown arguments")
	}
	return p.start(spec)
}

// start runs a command in the root that this thread has and returns its exit
// code. As the first of its namespace this process reaps what others leave.
func (p plan) start(spec fleet.ExecSpec) (int, error) {
	if spec.Cwd != "" {
		if err := os.MkdirAll(spec.Cwd, 0o755); err != nil {
			return exitBroken, err
		}
	}
	prog, exit, err := process.Resolve(process.Config{Env: p.Image.Env, Workdir: p.Image.Workdir, User: p.Image.User}, spec)
	if err != nil {
		return exit, fmt.Errorf("cannot run %s: %w", spec.Argv[0], err)
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	if err := boundCapabilities(); err != nil {
		return exitBroken, err
	}
	prog.Attr.Files = []uintptr{0, 1, 2}
	pid, err := syscall.ForkExec(prog.Path, prog.Argv, prog.Attr)
	if err != nil {
		return process.ExitOf(err), fmt.Errorf("cannot run %s: %w", spec.Argv[0], err)
	}
	go passOn(signals, pid) // ends with this process
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return exitBroken, fmt.Errorf("wait: %w", err)
		case got == pid:
			return process.ExitStatus(ws), nil
		}
	}
}

// passOn gives the command what its first process is sent.
func passOn(signals <-chan os.Signal, pid int) {
	own := []os.Signal{syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU}
	for s := range signals {
		if sig, ok := s.(syscall.Signal); ok && !slices.Contains(own, s) {
			_ = syscall.Kill(pid, sig) // it may have ended
		}
	}
}

// mounts are what a service's root gets beside its image.
var mounts = []struct {
	dir, kind, data string
	flags           uintptr
}{
	{"proc", "proc", "", unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
	{"sys", "sysfs", "", unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
	{"dev", "tmpfs", "mode=0755,size=64k", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"dev/pts", "devpts", "newinstance,gid=5,mode=0620,ptmxmode=0666", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
}

// devices of a service, with their numbers.
var devices = map[string]uint64{
	"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
	"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0),
}

var devLinks = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
}

// layOut makes the service's root this thread's, in namespaces that are its
// own already.
func (p plan) layOut() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to itself: %w", err)
	}
	upper, work := filepath.Join(p.Data, "upper"), filepath.Join(p.Data, "work")
	for _, dir := range []string{upper, work, p.Root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(p.Data, 0o700); err != nil {
		return err
	}
	options := "lowerdir=" + p.Lower + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", p.Root, "overlay", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount its overlay: %w", err)
	}
	if err := os.Chdir(p.Root); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := mountpoint(m.dir); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, m.flags, m.data); err != nil {
			return &os.PathError{Op: "mount " + m.kind, Path: m.dir, Err: err}
		}
	}
	if err := fillDev(); err != nil {
		return err
	}
	// What is the whole machine's can be read.
	for _, of := range []string{"proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus"} {
		if err := readOnly(of); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil { // the machine's root
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(p.Name)); err != nil {
		return err
	}
	return p.writeEtc()
}

// mountpoint makes a directory of what is there, which must not be a link.
func mountpoint(dir string) error {
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func fillDev() error {
	for name, number := range devices {
		path := filepath.Join("dev", name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
			return &os.PathError{Op: "mknod", Path: path, Err: err}
		}
		if err := os.Chmod(path, 0o666); err != nil { // whatever the umask
			return err
		}
	}
	for name, to := range devLinks {
		if err := os.Symlink(to, filepath.Join("dev", name)); err != nil {
			return err
		}
	}
	return nil
}

func readOnly(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return err
	}
	const again = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: path, Err: err}
	}
	return os.NewSyscallError("make read-only", unix.Mount("", path, "", again, ""))
}

// writeEtc gives the service names: its own, the others' and the world's.
func (p plan) writeEtc() error {
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"resolv.conf": p.Resolv, "hosts": p.hostsFile(), "hostname": p.Name + "\n"} {
		path := filepath.Join("/etc", name)
		tmp := path + ".fuse-new"
		if err := os.RemoveAll(tmp); err != nil {
			return err
		}
		if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil { //nolint:gosec // every user of the service reads these
			return err
		}
		if err := os.Rename(tmp, path); err != nil {
			return err
		}
	}
	return nil
}

// enter puts this thread where the process with that pid is; its children join
// that one's processes.
func enter(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return os.NewSyscallError("find the service", err)
	}
	defer unix.Close(fd)
	// A thread that shares its root with others cannot take another one.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return os.NewSyscallError("setns", unix.Setns(fd, namespaces))
}

// kept are what a service's programs can be allowed at most, about as containers
// are: without mounting, devices, modules, tracing and the machine's clock.
var kept = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SYS_CHROOT, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
}

func boundCapabilities() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(kept, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("bound capabilities", err)
		}
	}
	return nil
}
