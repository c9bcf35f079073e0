package rig

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fusevm/fuse/test/inventory"
)

// HostOptions shape one host.
type HostOptions struct {
	ID     string // what it is registered as; host-1 and so on
	Driver string // qemu or sim
	Sim    string // options of the sim driver
	// Capacity that is handed out; zero fields have defaults of the lab.
	CPUs, RamMB, StorageGB, VMs int
	Labels                      map[string]string
	Region                      string
	Args                        []string // more flags of the agent
	Binary                      string   // another agent than the lab's, an older one say; empty: the lab's
}

// Host is a set of namespaces with a host agent. Cut, CutOut, CutIn, CutFrom,
// Slow and Heal act on its link.
type Host struct {
	node
	opts    HostOptions
	token   string
	out     *output
	first   *process // of its namespaces; all its processes end with it
	agent   *process // nil before the first start
	cert    string
	objects []string // before the agent's first start
}

// hostPort is where every agent listens.
const hostPort = 8090

// boot is what the first process of a host does. Its arguments are the
// directory of its data and its name. It collects those that nobody waits for.
const boot = `set -e
mount --make-rprivate /
mount -t proc proc /proc
umount -R /run/netns 2>/dev/null || true
mount -t tmpfs tmpfs /run/netns
mount --make-shared /run/netns
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
[ ! -e /etc/machine-id ] || mount --bind "$1/machine-id" /etc/machine-id
hostname "$2"
echo the host is up
while :; do sleep 86400 & wait $!; done`

// ID is what the host is registered as.
func (h *Host) ID() string { return h.opts.ID }

// URL is where its agent listens.
func (h *Host) URL() string { return fmt.Sprintf("https://%s:%d", h.addr, hostPort) }

// Token opens its agent.
func (h *Host) Token() string { return h.token }

// Dir is the data directory of its agent.
func (h *Host) Dir() string { return h.l.run.path("host-" + h.name) }

// AgentPID is the process of a host's agent.
func AgentPID(h *Host) int { return h.agent.pid }

// Output is what its agent has printed, over all its starts.
func (h *Host) Output() string {
	text, _ := h.out.text()
	return text
}

// Up reports whether the host runs, whatever its agent does.
func (h *Host) Up() bool { return h.first != nil && h.first.alive() }

// prepareHost makes what stays over reboots: the directory, the token and the
// machine's id.
func prepareHost(h *Host) error {
	if err := os.MkdirAll(h.Dir(), 0o755); err != nil {
		return err
	}
	h.token = randomHex(16)
	err := errors.Join(
		os.WriteFile(h.l.run.path(h.name+"-token"), []byte(h.token+"\n"), 0o600),
		os.MkdirAll(h.l.run.path("boot-"+h.name), 0o755),
		os.WriteFile(h.l.run.path("boot-"+h.name, "machine-id"), []byte(randomHex(16)+"\n"), 0o644),
	)
	if err != nil || h.opts.Driver != "qemu" {
		return err
	}
	from, err := images()
	if err != nil {
		return err
	}
	for _, sub := range []string{"images", "kernels"} {
		if err := os.Symlink(from+"/"+sub, h.Dir()+"/"+sub); err != nil {
			return err
		}
	}
	return nil
}

// powerOn makes the host's namespaces, with a new boot id.
func (h *Host) powerOn() error {
	if err := h.l.fabric.attach(h.name, h.addr); err != nil {
		return err
	}
	dir := h.l.run.path("boot-" + h.name)
	if err := os.WriteFile(dir+"/boot_id", []byte(randomUUID()+"\n"), 0o600); err != nil {
		return err
	}
	var err error
	out := newOutput(nil)
	h.first, err = h.l.run.spawn(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC},
		nil, out, "nsenter", "--net="+h.l.run.nsPath(h.name), "/bin/sh", "-c", boot, "boot", dir, h.opts.ID)
	if err != nil {
		return err
	}
	_, err = h.first.line(0, "the host is up", 2*time.Minute)
	return err
}

// inside is what goes before a command that is to run on the host.
func (h *Host) inside() []string {
	return []string{"nsenter", "--target=" + strconv.Itoa(h.first.pid), "--mount", "--net", "--pid", "--uts", "--ipc", "--"}
}

// Enter is a command line that runs a program on the host, with its network,
// processes and mounts.
func (h *Host) Enter(argv ...string) []string { return append(h.inside(), argv...) }

// startAgent starts the agent and waits until it accepts calls.
func startAgent(h *Host) error {
	before := len(h.Output())
	program := program.fuse
	if h.opts.Binary != "" {
		program = h.opts.Binary
	}
	argv := append(h.inside(), program, "hostd", "--driver", h.opts.Driver, "--data-dir", h.Dir(), "--golden-disk-gb", "0",
		"--listen", fmt.Sprintf("%s:%d", h.addr, hostPort), "--token-file", h.l.run.path(h.name+"-token"),
		"--host-cpus", strconv.Itoa(h.opts.CPUs), "--host-ram-mb", strconv.Itoa(h.opts.RamMB),
		"--host-storage-gb", strconv.Itoa(h.opts.StorageGB), "--max-vms", strconv.Itoa(h.opts.VMs))
	if h.opts.Sim != "" {
		argv = append(argv, "--sim", h.opts.Sim)
	}
	p, err := h.l.run.spawn(nil, nil, h.out, append(argv, h.opts.Args...)...)
	if err != nil {
		return err
	}
	// nsenter waits for what it has started, which is whom signals are for.
	if p.pid, err = childOf(p.cmd.Process.Pid, p.done); err != nil {
		return fmt.Errorf("%w:\n%s", err, tail(h.Output()))
	}
	h.agent = p
	if h.cert, err = p.line(before, "certificate ", 2*time.Minute); err != nil {
		return err
	}
	return nil
}

// RefusedError is a registration that was answered with a refusal.
type RefusedError struct {
	Status int
	Body   string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%d %s", e.Status, e.Body) }

// Register tells the servers of the host. Again does no harm.
func (h *Host) Register() {
	h.l.t.Helper()
	if err := h.TryRegister(); err != nil {
		h.l.t.Fatalf("register %s: %v", h.opts.ID, err)
	}
}

// TryRegister is Register where a refusal is a result, a RefusedError.
func (h *Host) TryRegister() error { return h.TryRegisterAs(h.opts.ID, h.token) }

// TryRegisterAs is TryRegister under another id or with another token.
func (h *Host) TryRegisterAs(id, token string) error {
	body, err := json.Marshal(map[string]any{
		"id": id, "url": h.URL(), "token": token, "cert_sha256": h.cert, "labels": h.opts.Labels, "region": h.opts.Region,
	})
	if err != nil {
		return err
	}
	a, err := h.l.Do(http.MethodPost, "/v1/hosts", string(body))
	if err == nil && a.Status/100 != 2 {
		err = &RefusedError{a.Status, a.Body}
	}
	return err
}

// StopAgent ends the agent as an init system does; machines go on running.
func (h *Host) StopAgent() {
	h.l.t.Helper()
	if err := h.agent.stop(); err != nil {
		h.l.t.Errorf("agent of %s: %v", h.name, err)
	}
}

// KillAgent ends the agent with SIGKILL; machines go on running.
func (h *Host) KillAgent() { h.agent.kill() }

// StartAgent starts the agent anew that has ended.
func (h *Host) StartAgent() {
	h.l.t.Helper()
	if err := startAgent(h); err != nil {
		h.l.t.Fatalf("agent of %s: %v", h.name, err)
	}
}

// Freeze stops the agent where it is, Thaw lets it go on.
func (h *Host) Freeze() { signalAgent(h, syscall.SIGSTOP) }

// Thaw is the end of Freeze.
func (h *Host) Thaw() { signalAgent(h, syscall.SIGCONT) }

func signalAgent(h *Host, sig syscall.Signal) {
	h.l.t.Helper()
	if err := h.agent.signal(sig); err != nil {
		h.l.t.Fatalf("agent of %s: %v", h.name, err)
	}
}

// Kill is a loss of power: every process on the host ends at once, its network
// is gone. What is on its disk stays; Boot finds it again.
func (h *Host) Kill() {
	h.l.t.Helper()
	if err := h.powerOff(); err != nil {
		h.l.t.Fatalf("kill %s: %v", h.name, err)
	}
}

func (h *Host) powerOff() error {
	if !h.Up() {
		return nil
	}
	h.hasten()
	h.first.kill()
	if h.agent != nil {
		<-h.agent.done
	}
	marks, err := inventory.Marks(h.Dir())
	if err != nil {
		return err
	}
	// Control groups are the only thing of a host that its namespaces do not
	// hold: a kernel that died would have taken them along.
	return errors.Join(removeGroups(marks), h.l.fabric.detach(h.name))
}

// Boot starts a host that was killed, with a new boot id and the same disk,
// addresses and machine id, and its agent.
func (h *Host) Boot() {
	h.l.t.Helper()
	if err := h.powerOn(); err != nil {
		h.l.t.Fatalf("boot %s: %v", h.name, err)
	}
	h.StartAgent()
}

// Reboot is Kill and Boot.
func (h *Host) Reboot() {
	h.l.t.Helper()
	h.Kill()
	h.Boot()
}

// Wipe empties the disk of a host that was killed: another machine stands at its
// address from then on, with an identity of its own.
func (h *Host) Wipe() {
	h.l.t.Helper()
	if err := errors.Join(os.RemoveAll(h.Dir()), prepareHost(h)); err != nil {
		h.l.t.Fatalf("wipe %s: %v", h.name, err)
	}
}

// Objects is the inventory of the host: of its own namespaces, links, tables,
// mounts and processes, and of its control groups.
func (h *Host) Objects() []string {
	h.l.t.Helper()
	all, err := listObjects(h)
	if err != nil {
		h.l.t.Fatalf("inventory of %s: %v", h.name, err)
	}
	return all
}

func listObjects(h *Host) ([]string, error) {
	marks, err := inventory.Marks(h.Dir())
	if err != nil {
		return nil, err
	}
	v := inventory.View{Enter: h.inside(), Proc: fmt.Sprintf("/proc/%d/root/proc", h.first.pid)}
	all, err := v.List()
	// Its namespaces hold nothing of others; control groups are the machine's.
	return slices.DeleteFunc(notOthers(all, marks), func(o string) bool {
		return strings.HasPrefix(o, "cgroup ") && !slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(o, m) })
	}), err
}

// Machines are the lives that the host has on its disk, by their uids.
func (h *Host) Machines() []string {
	h.l.t.Helper()
	entries, err := os.ReadDir(h.Dir() + "/host/vms")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.l.t.Fatal(err)
	}
	var uids []string
	for _, e := range entries {
		uids = append(uids, e.Name())
	}
	return uids
}

// Running are the names of the QEMU processes on the host.
func (h *Host) Running() []string {
	h.l.t.Helper()
	var names []string
	for _, o := range h.Objects() {
		if name, ok := strings.CutPrefix(o, "process "); ok {
			names = append(names, name)
		}
	}
	return names
}

func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // it does not fail
	return hex.EncodeToString(raw)
}

func randomUUID() string {
	h := randomHex(16)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
