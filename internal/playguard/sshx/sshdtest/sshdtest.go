// Package sshdtest runs real sshd servers on loopback for tests, with keys of
// their own and a link that can be cut.
package sshdtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/testkit"
)

// Server is one running sshd.
type Server struct {
	Address string // 127.0.0.1:port
	User    string
	HostKey string // in authorized_keys form
	Key     []byte // a private key that it takes, in PEM form
	Dir     string // AuthorizedKeys and logs are in it

	cmd    *exec.Cmd
	exited chan struct{}
}

// Options change the server. The zero value is sshd's own defaults.
type Options struct {
	Config  []string // lines of sshd_config
	HostKey []byte   // private, in PEM form; nil makes one
	Port    int      // 0 takes a free one
	Shell   string   // what sessions find at /bin/sh; empty leaves the machine's
	// Mounts are what sessions find at other paths: the path, and the file or
	// directory that is there instead.
	Mounts map[string]string
}

// Start runs an sshd for the present user until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{Dir: t.TempDir(), User: "root", exited: make(chan struct{})}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // its privilege separation asks for it
		t.Fatal(err)
	}
	if o.HostKey == nil {
		o.HostKey = NewKey(t)
	}
	s.HostKey, s.Key = public(t, o.HostKey), NewKey(t)
	if s.Address = fmt.Sprintf("127.0.0.1:%d", o.Port); o.Port == 0 {
		s.Address = testkit.Addr(t)
	}
	s.write(t, "host_key", o.HostKey)
	s.write(t, "authorized_keys", []byte(public(t, s.Key)+"\n"))
	config := append(environment(o.Config),
		"ListenAddress "+s.Address, "HostKey "+s.path("host_key"), "AuthorizedKeysFile "+s.path("authorized_keys"),
		"PidFile none", "UsePAM no", "StrictModes no", "PermitRootLogin yes", "PasswordAuthentication no", "LogLevel ERROR",
		"Subsystem sftp internal-sftp")
	s.write(t, "sshd_config", []byte(strings.Join(config, "\n")+"\n"))
	if o.Shell != "" {
		o.Mounts = maps.Clone(o.Mounts)
		if o.Mounts == nil {
			o.Mounts = map[string]string{}
		}
		o.Mounts["/bin/sh"] = o.Shell
	}
	s.run(t, o.Mounts)
	return s
}

// environment has all variables in one line, for sshd takes the first alone, and
// tells bash that it is no login's first shell: what this machine's user has in
// ~/.bashrc costs each session time, and one that is cut may leave a lock there
// that keeps all others for a minute.
func environment(config []string) (out []string) {
	set := "SetEnv SHLVL=1"
	for _, line := range config {
		if vars, ok := strings.CutPrefix(line, "SetEnv "); ok {
			set += " " + vars
		} else {
			out = append(out, line)
		}
	}
	return append(out, set)
}

func (s *Server) run(t testing.TB, mounts map[string]string) {
	t.Helper()
	var log bytes.Buffer
	args := []string{"/usr/sbin/sshd", "-D", "-e", "-f", s.path("sshd_config")}
	if len(mounts) > 0 { // in a mount namespace of its own
		script := `while [ "$1" != -- ]; do mount --bind "$1" "$(readlink -f "$2")" || exit; shift 2; done; shift; exec "$@"`
		own := []string{"unshare", "-m", "bash", "-c", script, "mounts"}
		for at, what := range mounts {
			own = append(own, what, at)
		}
		args = append(append(own, "--"), args...)
	}
	s.cmd = exec.CommandContext(context.Background(), args[0], args[1:]...)
	s.cmd.Stderr = &log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, exited := s.cmd, s.exited
	go func() {
		cmd.Wait() //nolint:errcheck // it is killed
		close(exited)
	}()
	t.Cleanup(s.Stop)
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", s.Address)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-s.exited:
			t.Fatalf("sshd ended at once: %s", log.String())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("sshd does not listen: %v", err)
		}
	}
}

// Stop kills the server and every session of it, at one stroke: none of them sees
// another go and tells of it.
func (s *Server) Stop() {
	select {
	case <-s.exited: // its number may be another's by now
		return
	default:
	}
	for _, pid := range s.signalAll(syscall.SIGSTOP) {
		syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
	}
	<-s.exited
}

// Freeze stops the server and its sessions without ending them; Thaw lets them
// go on.
func (s *Server) Freeze() { s.signalAll(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (s *Server) Thaw() { s.signalAll(syscall.SIGCONT) }

// KillSessions kills what sshd runs for its connections, as a crash of it
// does; what runs in the sessions is not killed with it.
func (s *Server) KillSessions() {
	for _, pid := range tree(s.cmd.Process.Pid, func(int) {})[1:] {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.HasPrefix(string(name), "sshd") {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
		}
	}
}

// signalAll reaches the listener and the processes of its sessions, which sshd
// puts into sessions of their own, and lists them.
func (s *Server) signalAll(sig syscall.Signal) []int {
	return tree(s.cmd.Process.Pid, func(pid int) { syscall.Kill(pid, sig) }) //nolint:errcheck // it may be gone
}

// tree lists a process and those below it, parents first. Each is visited before
// those below it are listed: one that is stopped there begins no more of them.
func tree(pid int, visit func(pid int)) []int {
	visit(pid)
	all := []int{pid}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return all
	}
	for _, f := range strings.Fields(string(raw)) {
		var child int
		if _, err := fmt.Sscan(f, &child); err == nil {
			all = append(all, tree(child, visit)...)
		}
	}
	return all
}

// Authorize replaces the keys that the server takes.
func (s *Server) Authorize(t testing.TB, keys ...[]byte) {
	t.Helper()
	var lines []string
	for _, k := range keys {
		lines = append(lines, public(t, k))
	}
	s.write(t, "authorized_keys", []byte(strings.Join(lines, "\n")+"\n"))
}

func (s *Server) path(name string) string { return filepath.Join(s.Dir, name) }

func (s *Server) write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(s.path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// NewKey makes a private key in PEM form.
func NewKey(t testing.TB) []byte {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "test")
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

func public(t testing.TB, private []byte) string {
	t.Helper()
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}
