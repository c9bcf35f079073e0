package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/store/postgres/pgtest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/inventory"
)

// Options of a lab. The zero value is one server with a database in its own
// directory and no host.
type Options struct {
	Hosts    int
	Driver   string // qemu or sim; empty: qemu
	Servers  int    // 0: 1; with more of them Postgres is needed
	Postgres bool
	// Shape changes what a host is started with, before it is.
	Shape func(n int, o *HostOptions)
	// ServerArgs are more flags of each server. A lease and a reconcile interval of
	// one second are among those it has.
	ServerArgs []string
	// Unregistered leaves it to the test to register the hosts.
	Unregistered bool
	// Log gets what everybody prints; may be nil.
	Log io.Writer
}

// Lab is hosts, servers and a database on a network of their own.
type Lab struct {
	t       testing.TB
	opts    Options
	run     *run
	fabric  *fabric
	hosts   []*Host
	servers []*Server
	dbURL   string
	token   string
	key     string
	client  *http.Client
	objects []string // of this machine, before

	mu sync.Mutex // guards fabric.blocked
}

// New builds a lab that goes with its test, and holds the test to leaving hosts
// and machine as they were. It fails the test where it cannot.
func New(t testing.TB, o Options) *Lab {
	t.Helper()
	if o.Driver == "" {
		o.Driver = "qemu"
	}
	o.Servers = max(o.Servers, 1)
	l := &Lab{t: t, opts: o, token: randomHex(16), key: randomHex(32), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	end := sync.OnceFunc(l.close)
	t.Cleanup(end) // also if the database does not start
	if err := l.build(); err != nil {
		t.Fatalf("lab: %v", err)
	}
	t.Cleanup(end) // before the database ends
	return l
}

func (l *Lab) build() error {
	if l.opts.Servers > 1 && !l.opts.Postgres {
		return errors.New("several servers need Postgres")
	}
	if err := available(); err != nil {
		return err
	}
	var err error
	if l.run, err = begin(); err != nil {
		return err
	}
	if l.objects, err = l.machine(); err != nil {
		return err
	}
	l.fabric = &fabric{run: l.run}
	if err := l.fabric.build(); err != nil {
		return err
	}
	if err := os.WriteFile(l.run.path("token"), []byte(l.token), 0o600); err != nil {
		return err
	}
	if l.opts.Postgres {
		l.dbURL = pgtest.New(l.t, pgtest.Options{Listen: l.fabric.addr(dbAddr).String()}).Database(l.t)
		if err := os.WriteFile(l.run.path("database-url"), []byte(l.dbURL), 0o600); err != nil {
			return err
		}
	}
	for n := range l.opts.Servers {
		if err := l.addServer(n); err != nil {
			return err
		}
	}
	for n := range l.opts.Hosts {
		if err := l.addHost(n, nil); err != nil {
			return fmt.Errorf("host %d: %w", n+1, err)
		}
	}
	if !l.opts.Unregistered {
		for _, h := range l.hosts {
			h.Register()
		}
	}
	return nil
}

func (l *Lab) addServer(n int) error {
	name := fmt.Sprint("s", n+1)
	s := &Server{
		node: node{l: l, name: name, addr: l.fabric.addr(servers + n)},
		dir:  l.run.path("server-" + name), out: newOutput(l.opts.Log),
	}
	l.servers = append(l.servers, s)
	if err := l.fabric.attach(name, s.addr); err != nil {
		return err
	}
	return s.start()
}

func (l *Lab) addHost(n int, shape func(*HostOptions)) error {
	o := HostOptions{
		ID: fmt.Sprint("host-", n+1), Driver: l.opts.Driver, CPUs: 16, RamMB: 4096, StorageGB: 64, VMs: 16,
	}
	if o.Driver == "sim" {
		o.CPUs, o.RamMB, o.StorageGB, o.VMs = 1000, 1<<20, 10000, 1000
	}
	if l.opts.Shape != nil {
		l.opts.Shape(n, &o)
	}
	if shape != nil {
		shape(&o)
	}
	name := fmt.Sprint("h", n+1)
	h := &Host{node: node{l: l, name: name, addr: l.fabric.addr(hosts + n)}, opts: o, out: newOutput(l.opts.Log)}
	l.hosts = append(l.hosts, h)
	if err := prepareHost(h); err != nil {
		return err
	}
	if err := h.powerOn(); err != nil {
		return err
	}
	var err error
	if h.objects, err = listObjects(h); err != nil {
		return err
	}
	return startAgent(h)
}

// AddHost adds one more host, which is not registered. Shape may be nil.
func (l *Lab) AddHost(shape func(*HostOptions)) *Host {
	l.t.Helper()
	if err := l.addHost(len(l.hosts), shape); err != nil {
		l.t.Fatalf("lab: another host: %v", err)
	}
	return l.hosts[len(l.hosts)-1]
}

// Host is the nth host, from 0.
func (l *Lab) Host(n int) *Host { return l.hosts[n] }

// Hosts are all of them.
func (l *Lab) Hosts() []*Host { return l.hosts }

// Server is the nth server, from 0.
func (l *Lab) Server(n int) *Server { return l.servers[n] }

// Database is where servers reach the database, for Server.CutFrom.
func (l *Lab) Database() interface{ CutFrom(*Server) } {
	return dbCutter{database{l.fabric.addr(dbAddr)}}
}

type dbCutter struct{ database }

// CutFrom parts a server from the database, both ways, until the server's Heal.
func (d dbCutter) CutFrom(s *Server) { s.CutFrom(d.database) }

// Leader is the server that leads now; it waits for one.
func (l *Lab) Leader() *Server {
	l.t.Helper()
	var leads *Server
	testkit.Eventually(l.t, 2*time.Minute, "a server leads", func() bool {
		for _, s := range l.servers {
			if s.p.alive() && s.Leads() {
				leads = s
				return true
			}
		}
		return false
	})
	return leads
}

// Do makes one request to the first server that runs; one that stands by passes
// it on.
func (l *Lab) Do(method, path, body string, header ...string) (Answer, error) {
	for _, s := range l.servers {
		if s.p != nil && s.p.alive() {
			return s.Do(method, path, body, header...)
		}
	}
	return Answer{}, errors.New("no server runs")
}

// Outcome is what a command left.
type Outcome struct {
	Code     int
	Out, Err string
}

// Environ is what a shell needs so that fuse speaks to this lab.
func (l *Lab) Environ() []string {
	home := l.run.path("home")
	return []string{"FUSE_URL=" + l.servers[0].URL(), "FUSE_TOKEN_FILE=" + l.run.path("token"), "XDG_CONFIG_HOME=" + home, "HOME=" + home}
}

// Binary is the fuse that the lab runs.
func (l *Lab) Binary() string { return program.fuse }

// ID is in the names of all that the lab has made.
func (l *Lab) ID() string { return l.run.id }

// Try runs the command line against the lab, as a person does.
func (l *Lab) Try(args ...string) Outcome {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program.fuse, args...)
	cmd.Env = append(os.Environ(), l.Environ()...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		l.t.Fatalf("fuse %s: %v", strings.Join(args, " "), err)
	}
	return Outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// CLI runs the command line and fails the test unless it exits with 0.
func (l *Lab) CLI(args ...string) string {
	l.t.Helper()
	o := l.Try(args...)
	if o.Code != 0 {
		l.t.Fatalf("fuse %s: exit code %d\n%s%s", strings.Join(args, " "), o.Code, o.Out, o.Err)
	}
	return o.Out
}

// Empty destroys every environment and waits until none is listed.
func (l *Lab) Empty() {
	l.t.Helper()
	testkit.Eventually(l.t, 3*time.Minute, "every environment is destroyed", func() bool {
		if l.opts.Servers == 1 {
			l.CLI("rm", "--all", "--yes")
			return true
		}
		return l.Try("rm", "--all", "--yes").Code == 0 // where the lead changes, again
	})
	testkit.Eventually(l.t, 3*time.Minute, "no environment is listed", func() bool {
		o := l.Try("ls", "-o", "name")
		return o.Code == 0 && strings.TrimSpace(o.Out) == ""
	})
}

// machine is the inventory of the machine that the lab is on.
func (l *Lab) machine() ([]string, error) {
	marks, err := l.run.marks()
	if err != nil {
		return nil, err
	}
	all, err := inventory.View{Of: marks}.List()
	return notOthers(all, marks), err
}

// notOthers leaves out what programs beside the lab mount in temporary
// directories, such as the Docker of another test.
func notOthers(objects, marks []string) []string {
	return slices.DeleteFunc(objects, func(o string) bool {
		return strings.HasPrefix(o, "mount /tmp/") && !slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(o, m) })
	})
}

// close ends everything. After a test that went well, each host that is up must
// be as it was before its agent's first start, and the machine as before the lab.
func (l *Lab) close() {
	l.t.Helper()
	if l.run == nil {
		return
	}
	failed := l.t.Failed()
	if failed {
		l.tellAll()
	}
	for _, s := range l.servers {
		s.hasten()
		if s.p != nil && s.p.alive() {
			_ = s.p.signal(syscall.SIGCONT) // it may be paused
			if err := s.p.stop(); err != nil && !failed {
				l.t.Errorf("server %s: %v", s.name, err)
			}
		}
	}
	for _, h := range l.hosts {
		l.closeHost(h, failed)
	}
	l.client.CloseIdleConnections()
	marks, err := l.run.marks()
	if err == nil {
		err = l.run.remove()
	}
	if err != nil {
		l.t.Errorf("remove the lab: %v", err)
		return
	}
	inventory.Same(l.t, "this machine", l.objects, func() []string {
		all, err := inventory.View{Of: marks}.List()
		if err != nil {
			l.t.Error(err)
		}
		return notOthers(all, marks)
	})
}

func (l *Lab) closeHost(h *Host, failed bool) {
	l.t.Helper()
	h.hasten()
	if h.Up() && h.agent != nil && h.agent.alive() {
		_ = h.agent.signal(syscall.SIGCONT) // it may be frozen
		if err := h.agent.stop(); err != nil && !failed {
			l.t.Errorf("agent of %s: %v", h.name, err)
		}
	}
	if h.Up() && !failed {
		inventory.Same(l.t, h.name, h.objects, h.Objects)
	}
	if err := h.powerOff(); err != nil {
		l.t.Errorf("power off %s: %v", h.name, err)
	}
}

// tellAll logs the end of what everybody has printed.
func (l *Lab) tellAll() {
	l.t.Helper()
	for _, s := range l.servers {
		l.t.Logf("output of server %s:\n%s", s.name, tail(s.Output()))
	}
	for _, h := range l.hosts {
		l.t.Logf("output of the agent of %s:\n%s", h.name, tail(h.Output()))
	}
}
