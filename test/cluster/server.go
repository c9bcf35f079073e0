package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// Token opens the API of every server, HostToken every host.
const (
	Token     = "cluster-test"
	HostToken = "cluster-test-host"
	// Key seals what the servers of a test store: they share it, as they must.
	Key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// ServerOptions say how a server is started.
type ServerOptions struct {
	DatabaseURL string        // empty: SQLite in DataDir
	DataDir     string        // empty: a directory of its own
	Addr        string        // empty: a free one
	Lease       time.Duration // zero: 1 s
	Args        []string      // more of them
}

// Server is a fuse server process.
type Server struct {
	*Process
	URL  string
	opts ServerOptions
}

// StartServer starts a server and returns once it answers, whatever its part.
func StartServer(t testing.TB, o ServerOptions) *Server {
	t.Helper()
	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	if o.Addr == "" {
		o.Addr = testkit.Addr(t)
	}
	if o.Lease == 0 {
		o.Lease = time.Second
	}
	args := []string{
		"server", "--data-dir", o.DataDir, "--listen", o.Addr, "--auth-token", Token, "--lease", o.Lease.String(),
		"--reconcile-interval", "2s",
	}
	if o.DatabaseURL != "" {
		args = append(args, "--database-url-file", secretFile(t, o.DatabaseURL))
	}
	s := &Server{Process: Start(t, append(args, o.Args...)...), URL: "http://" + o.Addr, opts: o}
	s.Eventually(2*time.Minute, "the server answers", func() bool {
		a, err := s.Do(http.MethodGet, "/livez", "")
		return err == nil && a.Status == http.StatusOK
	})
	return s
}

func secretFile(t testing.TB, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Again starts a server with the same options, after this one has ended.
func (s *Server) Again() *Server {
	s.t.Helper()
	return StartServer(s.t, s.opts)
}

// Eventually waits for a condition and fails the test if it does not come.
func (s *Server) Eventually(within time.Duration, what string, cond func() bool) {
	s.t.Helper()
	for end := time.Now().Add(within); ; {
		began := time.Now()
		if cond() {
			return
		}
		select {
		case <-s.done:
			s.t.Fatalf("the server has ended; waiting for: %s\n%s", what, tail(s.Output(), 4000))
		case <-time.After(testkit.Pause(time.Since(began))):
		}
		if time.Now().After(end) {
			s.t.Fatalf("not within %v: %s\n%s", within, what, tail(s.Output(), 4000))
		}
	}
}

// Ready reports whether this server leads and is ready.
func (s *Server) Ready() bool {
	a, err := s.Do(http.MethodGet, "/readyz", "")
	return err == nil && a.Status == http.StatusOK
}

// StandsBy reports whether this server follows another one.
func (s *Server) StandsBy() bool {
	a, err := s.Do(http.MethodGet, "/readyz", "")
	return err == nil && a.Status == http.StatusServiceUnavailable && strings.Contains(a.Body, "standby: ")
}

// WaitReady waits until this server leads and is ready.
func (s *Server) WaitReady() {
	s.t.Helper()
	s.Eventually(2*time.Minute, "the server leads and is ready", s.Ready)
}

// WaitStandby waits until this server follows another one.
func (s *Server) WaitStandby() {
	s.t.Helper()
	s.Eventually(2*time.Minute, "the server stands by", s.StandsBy)
}

// Freeze stops the process with SIGSTOP, Thaw lets it go on.
func (s *Server) Freeze() { s.Signal(syscall.SIGSTOP) }

// Thaw is the end of Freeze.
func (s *Server) Thaw() { s.Signal(syscall.SIGCONT) }

// Answer is an HTTP answer read whole.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// JSON reads the body into v.
func (a Answer) JSON(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.Body), v); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
}

// CallTimeout bounds a call of Do.
const CallTimeout = 10 * time.Second

// client keeps connections, as real clients do.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// Do makes one request with the token; an error means that no answer came.
func (s *Server) Do(method, path, body string, header ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	defer cancel()
	return s.DoCtx(ctx, method, path, body, header...)
}

// DoCtx is Do for as long as ctx lasts.
func (s *Server) DoCtx(ctx context.Context, method, path, body string, header ...string) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	r.Header.Set("Authorization", "Bearer "+Token)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, err
	}
	return Answer{resp.StatusCode, resp.Header, string(raw)}, nil
}

// Create makes an environment for a task; key may be empty.
func (s *Server) Create(task, key string) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	defer cancel()
	return s.CreateCtx(ctx, task, key)
}

// CreateCtx is Create for as long as ctx lasts.
func (s *Server) CreateCtx(ctx context.Context, task, key string) (Answer, error) {
	var header []string
	if key != "" {
		header = []string{"Idempotency-Key", key}
	}
	return s.DoCtx(ctx, http.MethodPost, "/v1/environments", fmt.Sprintf(`{"task_id":%q,"spec":{"cpus":1,"ram_mb":64,"storage_gb":1}}`, task), header...)
}

// Environments lists task ids and states of all environments.
func (s *Server) Environments() (map[string]string, error) {
	out := map[string]string{}
	for cursor := ""; ; {
		a, err := s.Do(http.MethodGet, "/v1/environments?limit=200&cursor="+cursor, "")
		if err != nil {
			return nil, err
		}
		if a.Status != http.StatusOK {
			return nil, fmt.Errorf("list: %d %s", a.Status, a.Body)
		}
		var page struct {
			Environments []struct {
				TaskID string `json:"task_id"`
				State  string `json:"state"`
			} `json:"environments"`
			Next string `json:"next_cursor"`
		}
		if err := json.Unmarshal([]byte(a.Body), &page); err != nil {
			return nil, err
		}
		for _, e := range page.Environments {
			out[e.TaskID] = e.State
		}
		if cursor = page.Next; cursor == "" {
			return out, nil
		}
	}
}

// Stream reads an event stream and gives every event's id and data to each,
// until ctx ends or the stream does; it returns why.
func (s *Server) Stream(ctx context.Context, path, lastID string, each func(id, data string)) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+Token)
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("stream: %s", resp.Status)
	}
	var id, data string
	for lines := bufio.NewScanner(resp.Body); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
		case "id":
			id = value
		case "data":
			data = value
		case "":
			if id != "" || data != "" {
				each(id, data)
			}
			id, data = "", ""
		}
	}
}

// Host is a simulated host.
type Host struct {
	*Process
	ID, URL string
	Dir     string // its data directory
}

// StartHost starts a host agent with the sim driver on a loopback port. via is
// the address that servers are told; empty: its own.
func StartHost(t testing.TB, id, sim string) *Host {
	t.Helper()
	addr, dir := testkit.Addr(t), t.TempDir()
	p := Start(t, "hostd", "--driver", "sim", "--sim", sim, "--data-dir", dir, "--listen", addr, "--token", HostToken,
		"--host-cpus", "20000", "--host-ram-mb", "4000000", "--host-storage-gb", "100000", "--max-vms", "20000")
	p.Prints("host agent at ", 1, 2*time.Minute)
	return &Host{Process: p, ID: id, URL: "http://" + addr, Dir: dir}
}

// Register tells a server of a host at url; again while nobody leads the fleet.
func (s *Server) Register(id, url string) {
	s.t.Helper()
	s.Eventually(time.Minute, "the host is registered", func() bool {
		a, err := s.Do(http.MethodPost, "/v1/hosts", fmt.Sprintf(`{"id":%q,"url":%q,"token":%q}`, id, url, HostToken))
		if err == nil && a.Status/100 == 4 {
			s.t.Fatalf("register %s: %d %s", id, a.Status, a.Body)
		}
		return err == nil && a.Status/100 == 2
	})
}
