package rig

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cluster"
)

// serverPort is where every server listens.
const serverPort = 8080

// Server is a control plane in a network namespace of its own. Cut, CutFrom,
// Slow and Heal act on its link.
type Server struct {
	node
	dir  string
	args []string // of this server alone
	out  *output
	p    *process
}

// URL is where it serves.
func (s *Server) URL() string { return fmt.Sprintf("http://%s:%d", s.addr, serverPort) }

// PID of its process.
func (s *Server) PID() int { return s.p.pid }

// Output is what it has printed, over all its starts.
func (s *Server) Output() string {
	text, _ := s.out.text()
	return text
}

func (s *Server) start() error {
	argv := []string{
		"nsenter", "--net=" + s.l.run.nsPath(s.name), program.fuse,
		"server", "--data-dir", s.dir, "--listen", fmt.Sprintf("%s:%d", s.addr, serverPort), "--advertise", s.URL(),
		"--auth-token-file", s.l.run.path("token"), "--lease", "1s", "--reconcile-interval", "1s",
	}
	if s.l.dbURL != "" {
		argv = append(argv, "--database-url-file", s.l.run.path("database-url"))
	}
	env := []string{"TOKEN_ENCRYPTION_KEY=" + s.l.key}
	p, err := s.l.run.spawn(nil, env, s.out, slices.Concat(argv, s.l.opts.ServerArgs, s.args)...)
	if err != nil {
		return err
	}
	s.p = p
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		a, err := s.call(ctx, http.MethodGet, "/readyz", "")
		if err == nil && (a.Status == http.StatusOK || strings.Contains(a.Body, "standby: ")) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("server %s has ended:\n%s", s.name, tail(s.Output()))
		case <-ctx.Done():
			return fmt.Errorf("server %s does not answer (%w: %s):\n%s", s.name, err, a.Body, tail(s.Output()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the server as an init system does.
func (s *Server) Stop() {
	s.l.t.Helper()
	if err := s.p.stop(); err != nil {
		s.l.t.Errorf("server %s: %v", s.name, err)
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() { s.p.kill() }

// Start starts a server anew that has ended, with these flags beside its usual
// ones; it leads or stands by once this returns.
func (s *Server) Start(args ...string) {
	s.l.t.Helper()
	s.args = args
	if err := s.start(); err != nil {
		s.l.t.Fatal(err)
	}
}

// Pause stops the server where it is, Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume is the end of Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.l.t.Helper()
	if err := s.p.signal(sig); err != nil {
		s.l.t.Fatalf("server %s: %v", s.name, err)
	}
}

// Leads reports whether this server leads and is ready.
func (s *Server) Leads() bool {
	a, err := s.Do(http.MethodGet, "/readyz", "")
	return err == nil && a.Status == http.StatusOK
}

// WaitLeads waits until this server leads and is ready.
func (s *Server) WaitLeads(within time.Duration) {
	s.l.t.Helper()
	testkit.Eventually(s.l.t, within, "server "+s.name+" leads", s.Leads)
}

// Answer is an HTTP answer read whole.
type Answer = cluster.Answer

// Do makes one request with the lab's token; an error means that no answer came
// within two minutes.
func (s *Server) Do(method, path, body string, header ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return s.call(ctx, method, path, body, header...)
}

func (s *Server) call(ctx context.Context, method, path, body string, header ...string) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	r.Header.Set("Authorization", "Bearer "+s.l.token)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := s.l.client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, err
	}
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(raw)}, nil
}
