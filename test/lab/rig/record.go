package rig

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/test/inventory"
)

// runs is where each lab writes down what it made, so that the next one can
// sweep it: a directory per lab, locked as long as its process lives. It holds
// the disks of machines, so it is no file system in memory.
const runs = "/var/tmp/fuse-lab"

// run is one lab's record.
type run struct {
	id   string   // six hex digits, in the names of all that it makes
	dir  string   // data of hosts and servers, below runs
	lock *os.File // held as long as this process lives
}

// begin sweeps what dead labs left and opens a record.
func begin() (*run, error) {
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return nil, err
	}
	all, err := lockFile(filepath.Join(runs, "lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	if err := sweepDead(); err != nil {
		return nil, fmt.Errorf("sweep what an earlier lab left: %w", err)
	}
	raw := make([]byte, 3)
	if _, err := rand.Read(raw); err != nil {
		return nil, err
	}
	r := &run{id: hex.EncodeToString(raw)}
	r.dir = filepath.Join(runs, r.id)
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		return nil, err
	}
	r.lock, err = lockFile(filepath.Join(r.dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	return r, err
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Sweep removes what labs left whose process is gone. Each new lab does it too.
func Sweep() error {
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return err
	}
	all, err := lockFile(filepath.Join(runs, "lock"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	return errors.Join(sweepDead(), all.Close())
}

// sweepDead removes what labs left that nobody holds.
func sweepDead() error {
	entries, err := os.ReadDir(runs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		r := &run{id: e.Name(), dir: filepath.Join(runs, e.Name())}
		r.lock, err = lockFile(filepath.Join(r.dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // it lives
		}
		if err == nil {
			err = r.end()
		}
		if err == nil {
			err = r.forget()
		}
		if err != nil {
			return fmt.Errorf("lab %s: %w", r.id, err)
		}
	}
	return nil
}

// remember writes down a process before anything depends on it.
func (r *run) remember(pid int) error {
	start, err := proc.StartTime(pid)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(r.dir, "processes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	boot, err := proc.BootID()
	if err == nil {
		_, err = fmt.Fprintln(f, pid, start, boot)
	}
	return errors.Join(err, f.Close())
}

// remove ends and removes all that the lab made. Nobody sweeps meanwhile: a record
// that is half removed would be taken for a dead lab's.
func (r *run) remove() error {
	if err := r.end(); err != nil {
		return err // the record stays for the next sweep
	}
	all, err := lockFile(filepath.Join(runs, "lock"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	return errors.Join(r.forget(), all.Close())
}

// end ends and removes all but the record, in an order in which nothing comes
// back: processes, control groups, namespaces with their links.
func (r *run) end() error {
	return errors.Join(r.endProcesses(), r.removeGroups(), r.removeNetwork())
}

// forget removes the record with all files; whoever calls it holds the lock of all.
func (r *run) forget() error {
	return errors.Join(os.RemoveAll(r.dir), r.lock.Close())
}

func (r *run) endProcesses() error {
	f, err := os.Open(filepath.Join(r.dir, "processes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	for s := bufio.NewScanner(f); s.Scan(); {
		var id proc.Ident
		if _, err := fmt.Sscan(s.Text(), &id.PID, &id.Start, &id.BootID); err != nil {
			continue // its writer was killed in the middle of it
		}
		if err := endProcess(id, boot); err != nil {
			return err
		}
	}
	return nil
}

// endProcess kills a process; the first one of a host takes all others along.
func endProcess(id proc.Ident, boot string) error {
	p, err := proc.Open(id, boot)
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(p.Kill(), p.Close())
}

// marks are what the names of this lab's objects contain.
func (r *run) marks() ([]string, error) {
	all := []string{"labfuse-" + r.id, "labfuse" + r.id}
	hosts, err := filepath.Glob(filepath.Join(r.dir, "host-*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range hosts {
		of, err := inventory.Marks(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// removeGroups removes the control groups of the lab's hosts.
func (r *run) removeGroups() error {
	hosts, err := filepath.Glob(filepath.Join(r.dir, "host-*"))
	if err != nil {
		return err
	}
	for _, dir := range hosts {
		of, err := inventory.Marks(dir)
		if err != nil {
			return err
		}
		if err := removeGroups(of); err != nil {
			return err
		}
	}
	return nil
}

// removeGroups removes the control groups below fuse/MARK. Their processes have
// been killed, and may take a moment to end.
func removeGroups(marks []string) error {
	for _, mark := range marks {
		tops, err := filepath.Glob("/sys/fs/cgroup/*/fuse/" + mark)
		if err != nil {
			return err
		}
		v2, err := filepath.Glob("/sys/fs/cgroup/fuse/" + mark)
		if err != nil {
			return err
		}
		for _, top := range append(tops, v2...) {
			if err := removeGroup(top); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeGroup(top string) error {
	below, err := filepath.Glob(filepath.Join(top, "*"))
	if err != nil {
		return err
	}
	for _, dir := range append(below, top) {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			continue
		}
		var err error
		for end := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
			if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				break
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
	return nil
}

// removeNetwork removes the lab's namespaces, and with them every link.
func (r *run) removeNetwork() error {
	names, err := namespaces()
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "labfuse-"+r.id+"-") {
			if err := command("ip", "netns", "delete", name); err != nil {
				return err
			}
		}
	}
	// The machine's end of its link goes with the other one, a moment later.
	if exec.Command("ip", "link", "show", r.rootLink()).Run() == nil { //nolint:noctx // it ends by itself
		_ = command("ip", "link", "delete", r.rootLink()) // it may be on its way already
	}
	return nil
}

func (r *run) rootLink() string           { return "labfuse" + r.id }
func (r *run) netns(name string) string   { return "labfuse-" + r.id + "-" + name }
func (r *run) nsPath(name string) string  { return "/run/netns/" + r.netns(name) }
func (r *run) in(name string) []string    { return []string{"ip", "netns", "exec", r.netns(name)} }
func (r *run) path(elem ...string) string { return filepath.Join(append([]string{r.dir}, elem...)...) }

func namespaces() ([]string, error) {
	entries, err := os.ReadDir("/run/netns")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// command runs a program; its error has what the program said.
func command(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput() //nolint:noctx // it ends by itself
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}

// inAll runs programs one after another.
func inAll(prefix []string, argvs ...string) error {
	for _, line := range argvs {
		if err := command(slices.Concat(prefix, strings.Fields(line))...); err != nil {
			return err
		}
	}
	return nil
}

// childOf waits for the first child of a process and returns its pid.
func childOf(pid int, ended <-chan struct{}) (int, error) {
	path := fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		raw, err := os.ReadFile(path)
		if f := strings.Fields(string(raw)); err == nil && len(f) > 0 {
			return strconv.Atoi(f[0])
		}
		select {
		case <-ended:
			return 0, errors.New("it ended at once")
		case <-time.After(2 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("process %d starts nothing", pid)
}
